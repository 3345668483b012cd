//! One instance: live objects made from the configuration, not yet started.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{FutureExt, future::join_all};
use tokio::sync::Mutex;

use super::{
    backend::Backend,
    clock::RedisClock,
    forwarder::{self, Forwarder, Passes},
    janitor::Janitor,
    reachability::Reachability,
    schedules::FileSchedules,
    sinks::RunningSink,
    sources::RunningSource,
    upkeep::Upkeep,
    waiting::Waiting,
};
use crate::{
    api::{
        Api, BreakerState, Development, DownDomain, Failing, FailingSinks, SinkStatus, SinkStatuses, SourceStatuses,
        Statuses, VIA,
    },
    config::{Config, RouteConfig},
    incidents::Incidents,
    message::MAX_METADATA_BYTES,
    metrics,
    queue::Queue,
    scheduler::{self, Policy, Pool, RouteSetup, Scheduler},
    sink::{Delivery, inbox::Inbox},
    spans::Spans,
    store::{
        Partition, Store,
        redis::{RedisStore, RouteSettings, WakeListener},
    },
};

/// Bytes of a stored message in addition to payload and metadata.
const STORED_OVERHEAD_BYTES: usize = 64;

/// Bytes of the largest message as it is stored.
pub fn largest_message(config: &Config) -> u64 {
    (config.server.max_payload + MAX_METADATA_BYTES + STORED_OVERHEAD_BYTES) as u64
}

/// Maximum time of the first check of a sink. A later result is not logged.
const FIRST_ANSWER: Duration = Duration::from_secs(15);

/// The parts of an instance.
pub struct Instance {
    pub queue: Arc<Queue>,
    /// The API's connection to Redis. Each of its reconnects prepares Redis again.
    pub store: Arc<RedisStore>,
    pub scheduler: Scheduler,
    pub wakes: WakeListener,
    pub running_sinks: BTreeMap<String, RunningSink>,
    pub running_sources: Vec<RunningSource>,
    pub upkeep: Upkeep,
    pub incidents: Incidents,
    pub waiting: Waiting,
    clock: Arc<RedisClock>,
    reachability: Vec<(String, Reachability)>,
}

/// The settings of all routes for a store.
fn settings_of(names: &BTreeMap<Arc<str>, &RouteConfig>, max_payload: usize) -> Vec<RouteSettings> {
    let settings = names.iter().map(|(name, route)| RouteSettings {
        name: name.clone(),
        partitions: route.partitions,
        max_payload,
        remember: route.remember,
        limits: route.limits,
        flow: route.flow.clone(),
        forwards: route.forward.is_some(),
        history: route.history,
    });
    settings.collect()
}

/// Host and process, as an operator finds an instance.
fn instance_name() -> Arc<str> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().filter(char::is_ascii_graphic).collect();
    format!("{}:{}", if host.is_empty() { "localhost" } else { &host }, std::process::id()).into()
}

impl Instance {
    /// `running_sinks` and `running_sources`: all configured sinks and sources. `seed` determines the jitter of
    /// retries. Must be called within a tokio runtime.
    pub fn new(
        config: &Config,
        backend: &Backend,
        running_sinks: BTreeMap<String, RunningSink>,
        running_sources: Vec<RunningSource>,
        (incidents, spans): (Incidents, Spans),
        seed: u64,
    ) -> Self {
        let prefix = &config.redis.key_prefix;
        let names: BTreeMap<Arc<str>, &RouteConfig> =
            config.routes.iter().map(|(name, route)| (name.as_str().into(), route)).collect();
        let janitors: Vec<Janitor> = names.iter().filter_map(|(name, route)| Janitor::new(name, route)).collect();
        let partitions = names.iter().map(|(name, route)| (name.clone(), route.partitions)).collect();
        let passes = Arc::<Passes>::default();
        let forwarders: Vec<Forwarder> = names
            .iter()
            .filter_map(|(name, route)| {
                let (to, partitions, passes) = (route.forward.clone()?, route.partitions, passes.clone());
                Some(Forwarder { route: name.clone(), partitions, to, signal: Arc::default(), passes })
            })
            .collect();
        let of_janitors = janitors.iter().map(|one| (one.route().clone(), one.signal().clone()));
        let of_forwarders = forwarders.iter().map(|one| (one.route.clone(), one.signal.clone()));
        let burials = forwarder::signals(of_janitors.chain(of_forwarders));
        let file = FileSchedules { schedules: config.schedules.clone(), revision: config.schedules_revision };
        let settings = || settings_of(&names, config.server.max_payload);

        let name_of_instance = instance_name();
        let mut wakes = backend.wakes();
        let routes = names
            .iter()
            .map(|(name, route)| {
                let partitions = Partition::all(name, route.partitions)
                    .map(|partition| {
                        let signal = wakes.signal(prefix, &partition);
                        (partition, signal)
                    })
                    .collect();
                RouteSetup {
                    route: name.clone(),
                    partitions,
                    policy: Policy {
                        lease: route.lease,
                        max_in_flight: route.max_in_flight,
                        max_in_flight_bytes: route.max_in_flight_bytes,
                        largest_message: largest_message(config),
                        retry: route.retry,
                    },
                    window: route.window.clone(),

                    has_flows: route.flow.is_some(),
                    keeps_history: route.history.is_some(),
                    target: running_sinks[&*route.sink].target(),
                    spans: spans.clone(),
                    instance: name_of_instance.clone(),
                }
            })
            .collect();
        for source in &running_sources {
            let Some(bells) = source.bells() else { continue };
            wakes.notify_on(bells.channels.clone(), &bells.changed);
            for partition in Partition::all(source.route(), names[source.route()].partitions) {
                wakes.also_notify(prefix, &partition, &bells.woken);
            }
        }
        let delivering = RedisStore::new(backend.servers(), prefix, settings());
        let delivering: Arc<dyn Store> = Arc::new(delivering.notifying_of_deaths(burials.clone()));
        let pool = Pool::new(config.max_in_flight_bytes);
        let scheduler = Scheduler::new(&delivering, routes, config.max_sleep, &pool, seed, &incidents);

        let sinks: BTreeMap<Arc<str>, Arc<str>> =
            names.iter().map(|(name, route)| (name.clone(), route.sink.clone())).collect();
        let windows = names.iter().filter_map(|(name, route)| Some((name.clone(), route.window.clone()?))).collect();
        let leases = names.iter().map(|(name, route)| (name.clone(), route.lease)).collect();
        let store = backend.store(prefix, settings()).listing_over(backend.servers());
        let store = Arc::new(store.notifying_of_deaths(burials));
        for route in names.keys() {
            let sources = config.sources.iter().filter(|(_, source)| source.route() == route);
            let vias: Vec<&str> = sources.map(|(name, _)| name.as_str()).chain([VIA]).collect();
            metrics::begin_queue(route, &vias);
        }
        let queue = Queue::new(store.clone(), &sinks, config.redis.allow_eviction.0);
        let queue = Arc::new(queue.with_windows(windows).with_leases(leases).with_spans(spans));
        let clock = Arc::new(RedisClock::new(queue.clone()));
        let waiting = Waiting { queue: queue.clone(), sinks, sources: running_sources.clone() };
        let own = backend.connection().ok().map(|(connection, _)| connection);
        let reachability = running_sinks.iter();
        let reachability =
            reachability.map(|(name, one)| (name.clone(), Reachability::new(one.clone(), own.clone()))).collect();
        let upkeep = Upkeep { janitors, forwarders, passes, partitions, file };
        Self {
            queue,
            store,
            scheduler,
            wakes,
            running_sinks,
            running_sources,
            upkeep,
            incidents,
            waiting,
            clock,
            reachability,
        }
    }

    /// Connects every sink before its first message, in the background, and logs failures. Lists on the queue's Redis
    /// are left to the returned function, to be called once Redis can be used. Must be called within a tokio runtime.
    pub fn check_sinks(&self) -> impl FnOnce() + Send + use<> {
        let (own, others): (Vec<_>, Vec<_>) =
            self.reachability.iter().cloned().partition(|(_, one)| one.sink().is_on_redis());
        let check = |sinks: Vec<(String, Reachability)>| {
            for (name, reachability) in sinks {
                tokio::spawn(async move {
                    if let Some(Err(error)) = reachability.answer(FIRST_ANSWER).await {
                        tracing::warn!(sink = name, error, "cannot deliver at present");
                    }
                });
            }
        };
        check(others);
        move || check(own)
    }

    /// The data of GET /v1/sinks and GET /v1/sources. Each waits at most for `max_wait`.
    pub fn statuses(&self, max_wait: Duration) -> Statuses {
        Statuses { sinks: self.sinks(max_wait), failing: self.failing(), sources: self.sources(max_wait) }
    }

    /// The parts that the development clock moves.
    pub fn development(&self, api: Arc<Api>, inbox: Arc<Inbox>) -> Arc<Development> {
        let breakers: Vec<_> = self.running_sinks.values().map(|sink| sink.breaker().clone()).collect();
        let is_settling = self.scheduler.is_settling();
        let (queue, file, passes) = (self.queue.clone(), self.upkeep.file.clone(), self.upkeep.passes.clone());
        Arc::new(Development {
            api,
            store: self.store.clone(),
            inbox,
            passes: Box::new(move || (passes.ended(), passes.begun())),
            is_busy: Box::new(move || is_settling() || breakers.iter().any(|breaker| breaker.status().in_flight > 0)),
            set_schedules: Box::new(move || {
                let (queue, file) = (queue.clone(), file.clone());
                async move { file.apply(&queue, true).await.map_err(|error| error.to_string()) }.boxed()
            }),
            turn: Mutex::default(),
        })
    }

    fn failing(&self) -> FailingSinks {
        let sinks = self.running_sinks.clone();
        Arc::new(move |name, route, snapshot| {
            let sink = sinks.get(name)?;
            let status = sink.breaker().status();
            if status.state != scheduler::BreakerState::Closed {
                return Some(Failing { domain: None, error: status.last_error, since: status.since });
            }
            if status.down.is_empty() {
                return None;
            }
            let message = snapshot.message.as_ref().ok()?;
            let domain = sink.domain(&Delivery {
                id: snapshot.id.clone(),
                route: route.into(),
                attempt: snapshot.attempts + 1,
                due: message.due,
                metadata: message.metadata.clone(),
                payload: message.payload.clone(),
                send_until: None,
            })?;
            let down = status.down.into_iter().find(|down| down.name == domain)?;
            Some(Failing { domain: Some(down.name), error: Some(down.error), since: down.since })
        })
    }

    fn sources(&self, max_wait: Duration) -> SourceStatuses {
        let (running_sources, clock) = (self.running_sources.clone(), self.clock.clone());
        Arc::new(move || {
            let (running_sources, clock) = (running_sources.clone(), clock.clone());
            async move { join_all(running_sources.iter().map(|source| source.status(max_wait, &clock))).await }.boxed()
        })
    }

    fn sinks(&self, max_wait: Duration) -> SinkStatuses {
        let (sinks, clock): (Arc<[_]>, _) = (self.reachability.clone().into(), self.clock.clone());
        Arc::new(move || {
            let (sinks, clock) = (sinks.clone(), clock.clone());
            async move { join_all(sinks.iter().map(|(name, sink)| status(name, sink, max_wait, &clock))).await }.boxed()
        })
    }
}

async fn status(name: &str, reachability: &Reachability, max_wait: Duration, clock: &RedisClock) -> SinkStatus {
    let (check, clock) = tokio::join!(reachability.answer(max_wait), clock.read(max_wait));
    let check = check.map(|answer| answer.err().unwrap_or_else(|| "ok".to_owned()));
    let at = |instant| clock.map(|clock| clock.millis_at(instant));
    let status = reachability.sink().breaker().status();
    SinkStatus {
        name: name.to_owned(),
        r#type: reachability.sink().kind(),
        check,
        breaker: match status.state {
            scheduler::BreakerState::Closed => BreakerState::Closed,
            scheduler::BreakerState::HalfOpen => BreakerState::HalfOpen,
            scheduler::BreakerState::Open => BreakerState::Open,
        },
        since: at(status.since),
        last_error: status.last_error,
        last_error_at: status.last_error_at.and_then(at),
        last_success_at: status.last_success_at.and_then(at),
        in_flight: status.in_flight,
        down_domains: (status.down.into_iter())
            .map(|down| DownDomain { name: down.name, error: down.error, since: at(down.since) })
            .collect(),
    }
}
