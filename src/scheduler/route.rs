//! State that the tasks of one route share.

use std::{
    sync::{Arc, Once},
    time::Duration,
};

use tokio::{sync::Semaphore, time::Instant};

use super::{breaker::Breaker, budget::Budget, crowd::Crowds, unanswered_settlements::Unanswered};
use crate::{
    calendar::Calendar,
    incidents::{Incidents, Sample},
    message::DeadReason,
    metrics::RouteMetrics,
    retry::RetryPolicy,
    sink::{Render, Sink},
    spans::Spans,
    store::{Partition, Store, WakeSignal},
};

/// The settings of a route in the scheduler.
pub struct RouteSetup {
    pub route: Arc<str>,
    /// Partitions with their wake signals. A signal need not be subscribed yet: it notifies when it is.
    pub partitions: Vec<(Partition, Arc<WakeSignal>)>,
    pub policy: Policy,
    /// `None`: always open.
    pub window: Option<Arc<Calendar>>,
    pub has_flows: bool,
    pub keeps_history: bool,
    pub target: Target,
    pub spans: Spans,
    /// The name of this instance in the log of attempts; without spaces.
    pub instance: Arc<str>,
}

#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// At least the target's timeout and 500 ms.
    pub lease: Duration,
    /// Maximum messages of the route that are claimed by this instance and not settled.
    pub max_in_flight: usize,
    pub max_in_flight_bytes: u64,
    /// Bytes of the largest message as it is stored.
    pub largest_message: u64,
    pub retry: RetryPolicy,
}

/// Where a route's messages go.
pub enum Target {
    Sink {
        sink: Arc<dyn Sink>,
        breaker: Arc<Breaker>,
    },
    /// A list on the queue's own Redis: pushed and acknowledged in one step of the store, exactly once.
    List {
        render: Render,
        /// Whether all messages go to the same list. If so, an error of the list is not a failure of the message.
        one_list: bool,
        breaker: Arc<Breaker>,
    },
}

impl Target {
    pub fn breaker(&self) -> &Arc<Breaker> {
        match self {
            Target::Sink { breaker, .. } | Target::List { breaker, .. } => breaker,
        }
    }

    /// `None`: a list on the queue's own Redis.
    pub fn sink(&self) -> Option<&Arc<dyn Sink>> {
        match self {
            Target::Sink { sink, .. } => Some(sink),
            Target::List { .. } => None,
        }
    }

    /// Minimum rest of the lease at the start of an attempt. Zero for a list: the store completes a transfer at once.
    pub fn timeout(&self) -> Duration {
        match self {
            Target::Sink { sink, .. } => sink.timeout(),
            Target::List { .. } => Duration::ZERO,
        }
    }
}

/// A running route.
pub struct ActiveRoute {
    pub name: Arc<str>,
    pub policy: Policy,
    pub window: Option<Arc<Calendar>>,
    pub target: Target,
    pub spans: Spans,
    pub metrics: RouteMetrics,
    pub budget: Arc<Budget>,
    pub crowds: Arc<Crowds>,
    pub store: Arc<dyn Store>,
    /// The number that identifies this instance in claims.
    pub instance: u64,
    pub instance_name: Arc<str>,
    pub keeps_history: bool,
    /// The permission to have suspects in flight, held for one claim at a time.
    pub suspects: Arc<Semaphore>,
    /// Maximum sleep of a partition with a listening signal. Sleeps end at multiples of it, counted from `started`.
    pub max_sleep: Duration,
    pub started: Instant,
    pub incidents: Incidents,
    /// Completed once it was logged that messages of a later release wait.
    pub unreadable: Once,
    /// Calls with settlements in progress.
    pub settling: Unanswered,
}

impl Drop for ActiveRoute {
    fn drop(&mut self) {
        self.target.breaker().leave(self.policy.max_in_flight);
    }
}

impl ActiveRoute {
    /// Records messages that became dead letters. The error of the sample contains neither payload nor secret.
    pub fn died(&self, reason: DeadReason, count: u64, sample: Option<Sample>) {
        self.metrics.dead(reason, count);
        self.incidents.died(&self.name, reason, count, sample);
    }

    pub fn show_in_flight(&self) {
        self.metrics.in_flight(self.budget.in_flight());
    }
}
