//! Takes due messages from the store, hands them to their sinks, and settles them.
//!
//! Each partition has a `claimer`: it sleeps until the next poll is due, and claims as many messages as there is
//! capacity for. Each claim becomes a `batch` in its own task: the messages are decoded and sent to the sink, and each
//! outcome becomes a decision (`attempt`). The partition's `settler` settles many of them in one call.
//!
//! Limits, outermost first: the sink's `breaker` (only one probe a second is sent while the sink or the message's
//! failure domain is down) and the route's `budget` (messages and bytes in flight). A slow destination never gets all of the
//! budget (`crowd`). `polling` decides when a partition may be claimed again. A claimed message has permits of the breaker
//! and of the budget (`in_flight`), which the `settler` frees. A permit is returned on drop, so an aborted task keeps none.
//! `sharing` gives instances delays, by which they share a partition.
//!
//! Nothing here knows Redis or a protocol: it runs over `store::Store`, `store::WakeSignal` and `sink::Sink`.

mod attempt;
mod batch;
mod breaker;
mod budget;
mod claimer;
mod crowd;
mod decide;
mod in_flight;
mod last_poll;
mod opening;
mod polling;
mod recurring;
mod route;
mod settler;
mod sharing;
mod store_backoff;
mod transfer;
mod unanswered_settlements;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    future::pending,
    sync::{Arc, Once},
    time::Duration,
};

use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{
    sync::{Semaphore, watch},
    task::{JoinError, JoinSet},
    time::{Instant, sleep},
};

pub use self::{
    breaker::{Breaker, BreakerState, BreakerStatus},
    budget::Pool,
    route::{Policy, RouteSetup, Target},
    unanswered_settlements::Unanswered,
};
use self::{budget::Budget, claimer::Claimer, crowd::Crowds, route::ActiveRoute, settler::Settler};
use crate::{
    incidents::Incidents,
    metrics::RouteMetrics,
    sink::Sink,
    store::{Partition, Store, WakeSignal},
};

/// Period in which a route that stops gives back messages: a claim that is answered after the stop brings further ones.
const GIVE_BACK_PERIOD: Duration = Duration::from_millis(50);

/// State that the routes of one instance share.
pub struct Scheduler {
    max_sleep: Duration,
    started: Instant,
    /// The permission to have suspects in flight.
    suspects: Arc<Semaphore>,
    settling: Unanswered,
    pool: Arc<Pool>,
    incidents: Incidents,
    /// The number that identifies this process in claims.
    instance: u64,
    started_routes: Mutex<StartedRoutes>,
}

struct StartedRoutes {
    rng: StdRng,
    names: BTreeSet<Arc<str>>,
}

/// A route that is not running yet.
pub struct RouteWork {
    route: Arc<ActiveRoute>,
    /// The seed of each is for its claimer.
    partitions: Vec<(Partition, Arc<WakeSignal>, u64)>,
}

impl Scheduler {
    /// `max_sleep`: maximum sleep of a partition with a listening wake signal. `seed` determines the jitter of retries
    /// and the numbers that identify the instance, so it must differ between instances. `pool`: bounds the bytes of all
    /// routes. Dead messages and outages are reported to `incidents`.
    pub fn new(max_sleep: Duration, pool: &Arc<Pool>, seed: u64, incidents: &Incidents) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        Self {
            instance: rng.random(),
            pool: Arc::clone(pool),
            max_sleep,
            started: Instant::now(),
            // A process has suspects of only one claim in flight: if it crashes, the cause is among few messages.
            suspects: Arc::new(Semaphore::new(1)),
            settling: Unanswered::default(),
            incidents: incidents.clone(),
            started_routes: Mutex::new(StartedRoutes { rng, names: BTreeSet::new() }),
        }
    }

    /// Creates the metrics of the route. A route that replaces another one in this process claims with a number of its
    /// own.
    pub fn route(&self, store: Arc<dyn Store>, setup: RouteSetup) -> RouteWork {
        let RouteSetup {
            route: name,
            partitions,
            policy,
            window,
            has_flows,
            keeps_history,
            target,
            spans,
            instance: instance_name,
        } = setup;
        let mut started = self.started_routes.lock();
        let StartedRoutes { rng, names } = &mut *started;
        // The store would take the claims of a second route of a name for repeated ones of the first.
        let instance = if names.insert(name.clone()) { self.instance } else { rng.random() };
        let breaker = target.breaker();
        breaker.join(policy.max_in_flight, &self.incidents);
        let messages = u32::try_from(policy.max_in_flight).unwrap_or(u32::MAX);
        let budget = Budget::new(messages, policy.max_in_flight_bytes, policy.largest_message, &self.pool);
        let route = Arc::new(ActiveRoute {
            metrics: RouteMetrics::new(&name, breaker.sink(), has_flows),
            crowds: Crowds::new(&budget),
            budget,
            name,
            policy,
            window,
            target,
            spans,
            store,
            instance,
            instance_name,
            keeps_history,
            suspects: Arc::clone(&self.suspects),
            max_sleep: self.max_sleep,
            started: self.started,
            incidents: self.incidents.clone(),
            unreadable: Once::new(),
            settling: self.settling.clone(),
        });
        let partitions = partitions.into_iter().map(|(partition, signal)| (partition, signal, rng.random())).collect();
        RouteWork { route, partitions }
    }

    /// Calls with settlements that have no answer yet: their permits are free, and they are not counted.
    pub fn settling(&self) -> Unanswered {
        self.settling.clone()
    }
}

/// Gives back the messages that wait at the sink of a route from its stop on. Never returns.
async fn give_back(route: Arc<str>, sink: Option<Arc<dyn Sink>>, mut shutdown: watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|stop| *stop).await;
    let Some(sink) = sink else { return pending().await };
    loop {
        sink.give_back(&route);
        sleep(GIVE_BACK_PERIOD).await;
    }
}

impl RouteWork {
    /// Runs until `shutdown` is true or its sender is dropped. Claims nothing after that, gives back the messages that wait
    /// at the sink, and returns when all attempts in progress have ended and are settled. The caller bounds that time: dropping the future aborts the rest, and
    /// their messages return when their leases expire.
    ///
    /// # Panics
    /// If one of its tasks panics, which is a defect: a partition must not stop unnoticed.
    pub async fn run(self, shutdown: watch::Receiver<bool>) {
        let mut tasks = JoinSet::new();
        for (partition, signal, seed) in self.partitions {
            let settler = Settler::start(&self.route, &partition, &mut tasks);
            let claimer = Claimer::new(&self.route, (partition, signal), settler, shutdown.clone(), seed);
            tasks.spawn(claimer.run());
        }
        let (name, sink) = (self.route.name.clone(), self.route.target.sink().cloned());
        drop(self.route);
        let giving_back = give_back(name, sink, shutdown);
        tokio::pin!(giving_back);
        loop {
            let end = tokio::select! {
                end = tasks.join_next() => end,
                () = &mut giving_back => continue,
            };
            match end.map(|end| end.map_err(JoinError::try_into_panic)) {
                None => return,
                Some(Err(Ok(panic))) => std::panic::resume_unwind(panic),
                Some(_) => {}
            }
        }
    }
}
