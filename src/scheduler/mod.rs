//! Takes due messages from the store, hands them to their sinks, and settles them.
//!
//! Each partition has a `claimer`: it sleeps until the next poll is due, and claims as many messages as there is
//! capacity for. Each claim becomes a `batch` in its own task: the messages are decoded and sent to the sink, and each
//! outcome becomes a decision (`attempt`). The partition's `settler` settles many of them in one call.
//!
//! Limits, outermost first: the sink's `breaker` (only one probe a second is sent while the sink or the message's
//! failure domain is down) and the route's `budget` (messages and bytes in flight). One slow destination leaves a part
//! of the budget to the others (`crowd`). `pace` determines the time of the next claim. A claimed message holds its
//! permits of breaker and budget (`held`) until the `settler` frees them. Permits are returned on drop, so an aborted
//! task cannot keep any. Instances share a partition by the delays of `sharing`.
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
mod recurring;
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
    budget::Pool,
    route::{Policy, RouteSetup, Target},
    unanswered::Unanswered,
};
use self::{budget::Budget, claimer::Claimer, crowd::Crowds, route::ActiveRoute, settler::Settler};
use crate::{
    incidents::Incidents,
    metrics::RouteMetrics,
    store::{Partition, Store, WakeSignal},
};

/// Partitions with their wake signals.
type Partitions = Vec<(Partition, Arc<WakeSignal>)>;

/// All routes of one instance.
pub struct Scheduler {
    routes: Vec<(Arc<ActiveRoute>, Partitions)>,
    rng: StdRng,
}

impl Scheduler {
    /// `max_sleep`: maximum sleep of a partition with a listening wake signal. `seed` determines the jitter of retries
    /// and the number that identifies the instance, so it must differ between instances. Creates the metrics of the
    /// routes. Dead messages and outages are reported to `incidents`.
    pub fn new(
        store: &Arc<dyn Store>,
        routes: Vec<RouteSetup>,
        max_sleep: Duration,
        pool: &Arc<Pool>,
        seed: u64,
        incidents: &Incidents,
    ) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let instance = rng.random();
        let started = Instant::now();
        // A process has suspects of only one claim in flight: if it crashes, the cause is among few messages.
        let suspects = Arc::new(Semaphore::new(1));
        let active = |RouteSetup {
                          route: name,
                          partitions,
                          policy,
                          window,
                          has_flows,
                          keeps_history,
                          target,
                          spans,
                          instance: instance_name,
                      }| {
            let breaker = target.breaker();
            breaker.join(policy.max_in_flight, incidents);
            let messages = u32::try_from(policy.max_in_flight).unwrap_or(u32::MAX);
            let budget = Budget::new(messages, policy.max_in_flight_bytes, policy.largest_message, pool);
            let route = Arc::new(ActiveRoute {
                metrics: RouteMetrics::new(&name, breaker.sink(), has_flows),
                crowds: Crowds::new(&budget),
                budget,
                name,
                policy,
                window,
                target,
                spans,
                store: Arc::clone(store),
                instance,
                instance_name,
                keeps_history,
                suspects: Arc::clone(&suspects),
                max_sleep,
                started,
                incidents: incidents.clone(),
                unreadable: Once::new(),
                settling: Unanswered::default(),
            });
            (route, partitions)
        };
        Self { routes: routes.into_iter().map(active).collect(), rng }
    }

    /// Returns whether a call with settlements has no answer yet: their permits are free, and they are not counted.
    pub fn is_settling(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let routes: Vec<_> = self.routes.iter().map(|(route, _)| route.settling.clone()).collect();
        move || routes.iter().any(Unanswered::any)
    }

    /// Runs until `shutdown` is true or its sender is dropped. Claims nothing after that, and returns when all attempts
    /// in progress have ended and are settled. The caller bounds that time: dropping the future aborts the rest, and
    /// their messages return when their leases expire.
    ///
    /// # Panics
    /// If one of its tasks panics, which is a defect: a partition must not stop unnoticed.
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
