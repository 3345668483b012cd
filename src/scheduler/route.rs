//! What the tasks of one route share.

use std::{
    sync::{Arc, Once},
    time::Duration,
};

use tokio::{sync::Semaphore, time::Instant};

use super::{breaker::Breaker, budget::Budget, crowd::Crowds};
use crate::{
    calendar::Calendar,
    incidents::{Incidents, Sample},
    message::DeadReason,
    metrics::RouteMetrics,
    retry::RetryPolicy,
    sink::{Render, Sink},
    store::{Partition, Store, WakeSignal},
};

/// The settings of a route in the scheduler.
pub struct RouteSetup {
    pub route: Arc<str>,
    /// Each with its wake signal, which need not be subscribed yet: it notifies once it is.
    pub partitions: Vec<(Partition, Arc<WakeSignal>)>,
    pub policy: Policy,
    /// `None`: always open.
    pub window: Option<Arc<Calendar>>,
    pub target: Target,
}

#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// At least the target's timeout and 500 ms.
    pub lease: Duration,
    /// Messages of the route claimed by this instance and not settled.
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
        /// Whether all go into the same list: what keeps it from taking them is then no message's failure.
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

    /// Time that an attempt must have left in its lease. A transfer is decided by the store at once.
    pub fn timeout(&self) -> Duration {
        match self {
            Target::Sink { sink, .. } => sink.timeout(),
            Target::List { .. } => Duration::ZERO,
        }
    }
}

/// A route at work.
pub struct ActiveRoute {
    pub name: Arc<str>,
    pub policy: Policy,
    pub window: Option<Arc<Calendar>>,
    pub target: Target,
    pub metrics: RouteMetrics,
    pub budget: Arc<Budget>,
    pub crowds: Arc<Crowds>,
    pub store: Arc<dyn Store>,
    /// The name of this instance among those that claim.
    pub instance: u64,
    /// The right to have suspects in flight, those of one claim.
    pub suspects: Arc<Semaphore>,
    /// Longest sleep of a partition whose signal is listening; sleeps end at multiples of it from `started`.
    pub max_sleep: Duration,
    pub started: Instant,
    pub incidents: Incidents,
    /// Whether it was logged that messages of a later release wait here.
    pub unreadable: Once,
}

impl ActiveRoute {
    /// Messages became dead letters. The error of the sample shows neither payload nor secret.
    pub fn died(&self, reason: DeadReason, count: u64, sample: Option<Sample>) {
        self.metrics.dead(reason, count);
        self.incidents.died(&self.name, reason, count, sample);
    }

    pub fn show_in_flight(&self) {
        self.metrics.in_flight(self.budget.in_flight());
    }
}
