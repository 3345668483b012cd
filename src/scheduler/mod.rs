//! Takes due messages out of the store, hands them to their sinks, and settles them.
//!
//! Per partition a `claimer` sleeps until a poll of the queue is worth it and claims what there is capacity for.
//! Each claim becomes a `batch` in a task of its own: opened, sent to the sink, each outcome turned into a
//! decision (`attempt`) and handed to the partition's `settler`, which settles many in one call.
//!
//! What bounds it, outermost first: the sink's `breaker` (nothing but a probe a second leaves while the sink or the
//! message's failure domain is down) and the route's `budget` (messages and bytes in flight), of which one slow destination
//! leaves a part to the others (`crowd`). `pace` says when to claim
//! again. A claimed message holds its share of each (`held`) until its settlement was answered; all of them are given
//! back on drop, so an aborted task cannot keep any. Several instances share a partition by the delays of `sharing`.
//!
//! Nothing here knows Redis or a protocol: it runs over `store::Store`, `store::WakeSignal` and `sink::Sink`.

mod attempt;
mod batch;
mod breaker;
mod budget;
mod claimer;
mod crowd;
mod decide;
mod held;
mod opening;
mod pace;
mod route;
mod settler;
mod sharing;
mod store_backoff;
mod transfer;
mod unanswered;
mod view;

#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, Once},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::Instant,
};

pub use self::{
    breaker::{Breaker, BreakerState, BreakerStatus},
    route::{Policy, RouteSetup, Target},
};
use self::{budget::Budget, claimer::Claimer, crowd::Crowds, route::ActiveRoute, settler::Settler};
use crate::{
    incidents::Incidents,
    metrics::RouteMetrics,
    store::{Partition, Store, WakeSignal},
};

/// Each with its wake signal.
type Partitions = Vec<(Partition, Arc<WakeSignal>)>;

/// All routes of one instance.
pub struct Scheduler {
    routes: Vec<(Arc<ActiveRoute>, Partitions)>,
    rng: StdRng,
}

impl Scheduler {
    /// `max_sleep`: longest sleep of a partition whose signal is listening. `seed` decides the jitter of retries, and
    /// the name of the instance: another one for each.
    /// The counters of the routes begin here. Deaths and outages are reported to `incidents`.
    pub fn new(
        store: &Arc<dyn Store>,
        routes: Vec<RouteSetup>,
        max_sleep: Duration,
        seed: u64,
        incidents: &Incidents,
    ) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let instance = rng.random();
        let started = Instant::now();
        // Those of one claim at a time in a process: when that dies, the cause is among few.
        let suspects = Arc::new(Semaphore::new(1));
        let active = |RouteSetup { route: name, partitions, policy, window, target }| {
            let breaker = target.breaker();
            breaker.join(policy.max_in_flight, incidents);
            let messages = u32::try_from(policy.max_in_flight).unwrap_or(u32::MAX);
            let budget = Budget::new(messages, policy.max_in_flight_bytes, policy.largest_message);
            let route = Arc::new(ActiveRoute {
                metrics: RouteMetrics::new(&name, breaker.sink()),
                crowds: Crowds::new(&budget),
                budget,
                name,
                policy,
                window,
                target,
                store: Arc::clone(store),
                instance,
                suspects: Arc::clone(&suspects),
                max_sleep,
                started,
                incidents: incidents.clone(),
                unreadable: Once::new(),
            });
            (route, partitions)
        };
        Self { routes: routes.into_iter().map(active).collect(), rng }
    }

    /// Until `shutdown` is true or its sender is dropped; then claims no more, and returns once what is being sent
    /// has ended and everything is settled. The caller bounds that: dropping the future aborts the rest, whose
    /// leases bring it back.
    ///
    /// # Panics
    /// When one of its tasks did, which is a defect: a partition must not stop unseen.
    pub async fn run(mut self, shutdown: watch::Receiver<bool>) {
        let mut tasks = JoinSet::new();
        for (route, partitions) in self.routes {
            for (partition, signal) in partitions {
                let settler = Settler::start(&route, &partition, &mut tasks);
                let claimer = Claimer::new(&route, (partition, signal), settler, shutdown.clone(), self.rng.random());
                tasks.spawn(claimer.run());
            }
        }
        while let Some(end) = tasks.join_next().await {
            if let Err(error) = end
                && let Ok(panic) = error.try_into_panic()
            {
                std::panic::resume_unwind(panic);
            }
        }
    }
}
