//! One instance: live objects made from the configuration. The start and a reload make them in the same way.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use futures::{FutureExt, future::Either};
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout},
};

use super::{
    backend::Backend,
    clock::RedisClock,
    differences::{Change, Differences},
    forwarder::Passes,
    reachability::Reachability,
    running::{RouteUnit, Running, SinkUnit, SourceUnit},
    schedules::{self, FileSchedules},
    sinks::RunningSink,
    sources::RunningSource,
    table::{self, CurrentTable, Table},
    unit::{Panic, Unit, Units},
    upkeep::Upkeep,
    waiting::Waiting,
};
use crate::{
    api::{Api, Development, Statuses, VIA},
    config::{Config, RouteConfig},
    incidents::{Incidents, Subject},
    message::MAX_METADATA_BYTES,
    metrics,
    queue::{Queue, ShownRoute},
    scheduler::{Policy, Pool, RouteSetup, Scheduler, Unanswered},
    sink::inbox::Inbox,
    spans::Spans,
    store::{
        Partition,
        redis::{RedisStore, RouteSettings, WakeListener},
    },
};

/// Bytes of a stored message in addition to payload and metadata.
const STORED_OVERHEAD_BYTES: usize = 64;

/// The settings of a route that its scripts need.
fn stored(name: &str, route: &RouteConfig, config: &Config) -> RouteSettings {
    RouteSettings {
        name: name.into(),
        partitions: route.partitions,
        max_payload: config.server.max_payload,
        remember: route.remember,
        limits: route.limits,
        flow: route.flow.clone(),
        forwards: route.forward.is_some(),
        history: route.history,
    }
}

/// Host and process, as an operator finds an instance.
fn instance_name() -> Arc<str> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().filter(char::is_ascii_graphic).collect();
    format!("{}:{}", if host.is_empty() { "localhost" } else { &host }, std::process::id()).into()
}

/// Bytes of the largest message as it is stored.
pub fn largest_message(config: &Config) -> u64 {
    (config.server.max_payload + MAX_METADATA_BYTES + STORED_OVERHEAD_BYTES) as u64
}

/// Maximum time of the first check of a sink. A later result is not logged.
const FIRST_ANSWER: Duration = Duration::from_secs(15);

/// The parts of an instance.
pub struct Instance {
    pub queue: Arc<Queue>,
    pub wakes: Arc<WakeListener>,
    pub incidents: Incidents,
    table: CurrentTable,
    clock: Arc<RedisClock>,
    backend: Arc<Backend>,
    scheduler: Arc<Scheduler>,
    spans: Spans,
    /// As operators find it.
    name: Arc<str>,
    passes: Arc<Passes>,
    units: Units,
    running: Mutex<Running>,
}

/// Live sinks and sources that are not part of an instance yet.
pub struct Opened {
    pub sinks: BTreeMap<String, RunningSink>,
    pub sources: BTreeMap<String, RunningSource>,
}

impl Instance {
    /// `opened`: all configured sinks and sources. `seed` determines the jitter of retries. `opening`: whether parts can
    /// work, which is when Redis is prepared. Panics of parts are sent to `panics`. Must be called within a tokio runtime.
    pub fn new(
        config: Arc<Config>,
        backend: Arc<Backend>,
        opened: Opened,
        (incidents, spans): (Incidents, Spans),
        (opening, panics): (watch::Receiver<bool>, mpsc::UnboundedSender<Panic>),
        seed: u64,
    ) -> Self {
        let prefix = &config.redis.key_prefix;
        let store = Arc::new(backend.store(prefix, []).listing_over(backend.servers()));
        let queue = Queue::showing(store, &BTreeMap::new(), config.redis.allow_eviction.0);
        let queue = Arc::new(queue.with_spans(spans.clone()));
        let running = Running {
            delivering: RedisStore::new(backend.servers(), prefix, []),
            routes: BTreeMap::new(),
            sources: BTreeMap::new(),
            sinks: BTreeMap::new(),
            schedules: None,
            ending: Vec::new(),
            has_stopped: false,
        };
        let (sinks, sources) = (BTreeMap::new(), BTreeMap::new());
        let pool = Pool::new(config.max_in_flight_bytes);
        let instance = Self {
            clock: Arc::new(RedisClock::new(queue.clone())),
            queue,
            wakes: Arc::new(backend.wakes()),
            table: Arc::new(ArcSwap::from_pointee(Table { config: config.clone(), sinks, sources })),
            scheduler: Arc::new(Scheduler::new(config.max_sleep, &pool, seed, &incidents)),
            units: Units { opened: opening, limit: config.shutdown_timeout, panics },
            incidents,
            backend,
            spans,
            name: instance_name(),
            passes: Arc::default(),
            running: Mutex::new(running),
        };
        let differences = Differences::between(None, &config);
        instance.replace(config, &differences, opened);
        instance
    }

    /// The configuration, as far as it takes effect without a restart.
    pub fn config(&self) -> Arc<Config> {
        self.table.load().config.clone()
    }

    pub fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }

    /// Replaces the parts that differ. `opened`: the sinks and sources that are added or replaced. The former parts end as at
    /// a stop of the process, and their successors begin after that. Does nothing while the instance stops.
    pub fn replace(&self, config: Arc<Config>, differences: &Differences, opened: Opened) {
        let mut running = self.running.lock();
        if running.has_stopped {
            return;
        }
        running.ending.retain(|unit| !unit.has_ended());
        let Opened { sinks, sources } = opened;
        let former_sinks = running.take_sinks(differences, sinks);
        for (name, former) in &former_sinks {
            former.sink.breaker().retire();
            self.incidents.forget(&Subject::Sink(name.as_str().into()));
        }
        for unit in running.sinks.values() {
            // After the former one of its name reports no more.
            unit.sink.breaker().show();
        }
        let upkeeps = running.upkeeps(&config, differences, &self.passes);
        self.serve(&mut running, &config, differences, &upkeeps);
        self.replace_routes(&mut running, &config, differences, upkeeps);
        self.close(&mut running, former_sinks);
        self.replace_sources(&mut running, &config, differences, sources);
        // A route that is configured again can have schedules that the file has on another route.
        let adds_routes = differences.routes.values().any(|change| *change == Change::Added);
        if differences.schedules || adds_routes {
            let file = FileSchedules { schedules: config.schedules.clone(), revision: config.schedules_revision };
            let (queue, is_first) = (self.queue.clone(), differences.schedules);
            let former = running.schedules.take().into_iter().collect();
            let work = move |stop| async move { schedules::run(file, queue, is_first, stop).await };
            running.schedules = Some(self.units.start("schedules".to_owned(), former, work));
        }
        self.show(&running, config);
    }

    /// Replaces the routes that calls and deliveries know.
    fn serve(
        &self,
        running: &mut Running,
        config: &Config,
        differences: &Differences,
        upkeeps: &BTreeMap<String, Arc<Upkeep>>,
    ) {
        let settings = || config.routes.iter().map(|(name, route)| stored(name, route, config));
        let burials = || upkeeps.iter().map(|(name, upkeep)| (name.as_str().into(), upkeep.signals())).collect();
        let shown = |(name, route): (&String, &RouteConfig)| {
            let RouteConfig { sink, window, lease, .. } = route;
            (name.as_str().into(), ShownRoute { sink: Some(sink.clone()), window: window.clone(), lease: Some(*lease) })
        };
        running.delivering = running.delivering.serving(settings()).notifying_of_deaths(burials());
        let store = self.queue.store().serving(settings()).notifying_of_deaths(burials());
        let shown = config.routes.iter().map(shown).collect();
        self.queue.replace(Arc::new(store), &shown, |name| differences.routes.contains_key(name));
    }

    fn replace_routes(
        &self,
        running: &mut Running,
        config: &Config,
        differences: &Differences,
        mut upkeeps: BTreeMap<String, Arc<Upkeep>>,
    ) {
        for (name, change) in &differences.routes {
            let former = running.routes.remove(name);
            let former_signals = former.as_ref().map(|former| former.signals.clone()).unwrap_or_default();
            let former: Vec<Unit> = former.into_iter().map(|former| former.unit).collect();
            if *change == Change::Removed {
                former.iter().for_each(Unit::stop);
                running.ending.extend(former);
            } else {
                let upkeep = upkeeps.remove(name).expect("one for each route");
                let route = self.start_route(running, name, config, upkeep, former);
                running.routes.insert(name.clone(), route);
            }
            // After the new ones were added, so that the subscription goes on.
            self.wakes.forget(&former_signals);
        }
    }

    fn start_route(
        &self,
        running: &Running,
        name: &str,
        config: &Config,
        upkeep: Arc<Upkeep>,
        former: Vec<Unit>,
    ) -> RouteUnit {
        let (route, own): (_, Arc<str>) = (&config.routes[name], name.into());
        let sources = config.sources.iter().filter(|(_, source)| **source.route() == *name);
        let vias: Vec<&str> = sources.map(|(name, _)| name.as_str()).chain([VIA]).collect();
        metrics::begin_queue(name, &vias);
        let prefix = &config.redis.key_prefix;
        let partitions: Vec<_> = Partition::all(&own, route.partitions)
            .map(|partition| {
                let signal = self.wakes.signal(prefix, &partition);
                (partition, signal)
            })
            .collect();
        let signals = partitions.iter().map(|(_, signal)| signal.clone()).collect();
        let sink = &running.sinks[&*route.sink];
        let user = sink.user.clone();
        let setup = RouteSetup {
            route: own,
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
            target: sink.sink.target(),
            spans: self.spans.clone(),
            instance: self.name.clone(),
        };
        let delivering = Arc::new(running.delivering.of_route(name));
        let store = self.queue.store().of_route(name);
        let (queue, scheduler, incidents) = (self.queue.clone(), self.scheduler.clone(), self.incidents.clone());
        let (shared, own) = (upkeep.clone(), name.to_owned());
        let start = move || scheduler.route(delivering, setup);
        // The metrics of a route begin with it, those of a replaced route only after the end of its predecessor.
        let begun = if former.is_empty() { Either::Left(start()) } else { Either::Right(start) };
        let work = move |stop: watch::Receiver<bool>| async move {
            let work = match begun {
                Either::Left(work) => work,
                Either::Right(start) => {
                    metrics::forget_optional(&own);
                    start()
                }
            };
            tokio::join!(work.run(stop.clone()), shared.run(&queue, &store, &incidents, stop));
            drop(user);
        };
        RouteUnit { unit: self.units.start(format!("routes.{name}"), former, work), upkeep, signals }
    }

    fn replace_sources(
        &self,
        running: &mut Running,
        config: &Config,
        differences: &Differences,
        mut opened: BTreeMap<String, RunningSource>,
    ) {
        for (name, change) in &differences.sources {
            let former = running.sources.remove(name);
            let (former, former_kind) = match former {
                Some(SourceUnit { unit, source }) => {
                    if let Some(bells) = source.bells() {
                        self.wakes.forget_source(&[&bells.changed, &bells.woken]);
                    }
                    (vec![unit], Some(source.kind()))
                }
                None => (Vec::new(), None),
            };
            // After the end of the former one, which can report an outage before that.
            let subject = Subject::Source(name.as_str().into());
            let (incidents, own) = (self.incidents.clone(), name.clone());
            let forget = move || {
                if let Some(kind) = former_kind {
                    incidents.forget(&subject);
                    metrics::source(&own, kind, false, None);
                }
            };
            if *change == Change::Removed {
                let work = |_| async move { forget() };
                running.ending.push(self.units.start(format!("sources.{name}"), former, work));
                continue;
            }
            let source = opened.remove(name).expect("opened");
            if let Some(bells) = source.bells() {
                self.wakes.notify_on(bells.channels.clone(), &bells.changed);
                let partitions = config.routes[&**source.route()].partitions;
                for partition in Partition::all(source.route(), partitions) {
                    self.wakes.also_notify(&config.redis.key_prefix, &partition, &bells.woken);
                }
            }
            metrics::scheduled(source.route(), name, 0);
            let (taking, queue, incidents) = (source.clone(), self.queue.clone(), self.incidents.clone());
            let work = |stop| async move {
                forget();
                taking.run(queue, incidents, stop).await;
            };
            let unit = self.units.start(format!("sources.{name}"), former, work);
            running.sources.insert(name.clone(), SourceUnit { unit, source });
        }
    }

    /// Closes sinks as soon as no route uses them.
    fn close(&self, running: &mut Running, sinks: Vec<(String, SinkUnit)>) {
        for (name, SinkUnit { sink, user, mut users }) in sinks {
            sink.stop();
            drop(user);
            let limit = self.units.limit;
            let work = move |_| async move {
                // Routes end within that time, too.
                let _ = timeout(limit * 2, users.recv()).await;
                if timeout(limit, sink.close()).await.is_err() {
                    tracing::warn!(sink = name, "did not close in time");
                }
            };
            running.ending.push(self.units.start("a former sink".to_owned(), Vec::new(), work));
        }
    }

    /// Shows the parts to readers. Parts that go on keep the results of their checks.
    fn show(&self, running: &Running, config: Arc<Config>) {
        let former = self.table.load_full();
        let own = self.backend.connection().ok().map(|(connection, _)| connection);
        let reachability = |(name, unit): (&String, &SinkUnit)| {
            let known = former.sinks.get(name).filter(|known| Arc::ptr_eq(known.sink().breaker(), unit.sink.breaker()));
            let reachability = known.cloned().unwrap_or_else(|| Reachability::new(unit.sink.clone(), own.clone()));
            (name.clone(), reachability)
        };
        let sinks = running.sinks.iter().map(reachability).collect();
        let sources = running.sources.iter().map(|(name, unit)| (name.clone(), unit.source.clone())).collect();
        self.table.store(Arc::new(Table { config, sinks, sources }));
    }

    /// Connects the sinks with these names before their first message, in the background, and logs failures. Must be called
    /// within a tokio runtime.
    pub fn check_sinks(&self, wanted: impl Fn(&str, &RunningSink) -> bool) {
        for (name, reachability) in &self.table.load().sinks {
            if !wanted(name, reachability.sink()) {
                continue;
            }
            let (name, reachability) = (name.clone(), reachability.clone());
            tokio::spawn(async move {
                if let Some(Err(error)) = reachability.answer(FIRST_ANSWER).await {
                    tracing::warn!(sink = name, error, "cannot deliver at present");
                }
            });
        }
    }

    pub fn statuses(&self, max_wait: Duration) -> Statuses {
        table::statuses(&self.table, &self.clock, max_wait)
    }

    /// Counts messages for log lines.
    pub fn waiting(&self) -> Waiting {
        Waiting { queue: self.queue.clone(), table: self.table.clone() }
    }

    /// The parts that the development clock moves.
    pub fn development(&self, api: Arc<Api>, inbox: Arc<Inbox>) -> Arc<Development> {
        let (settling, table) = (self.scheduler.settling(), self.table.clone());
        let (queue, of_file, passes) = (self.queue.clone(), self.table.clone(), self.passes.clone());
        Arc::new(Development {
            api,
            inbox,
            passes: Box::new(move || (passes.ended(), passes.begun())),
            is_busy: Box::new(move || is_busy(&settling, &table.load())),
            set_schedules: Box::new(move || {
                let (queue, config) = (queue.clone(), of_file.load().config.clone());
                async move {
                    let schedules = config.schedules.clone();
                    let file = FileSchedules { schedules, revision: config.schedules_revision };
                    file.apply(&queue, true).await.map_err(|error| error.to_string())
                }
                .boxed()
            }),
            turn: tokio::sync::Mutex::default(),
        })
    }

    /// Tells all parts to end. Sinks start no further message, and no part begins after that.
    pub fn begin_stop(&self) {
        let mut running = self.running.lock();
        running.has_stopped = true;
        running.units().for_each(Unit::stop);
        running.sinks.values().for_each(|unit| unit.sink.stop());
    }

    /// Tells all parts to end, and waits for their end until `deadline` at the latest.
    pub async fn stop(&self, deadline: Instant) {
        self.begin_stop();
        let units = self.running.lock().take_units();
        for unit in units {
            unit.ended(deadline).await;
        }
    }

    /// The sinks. No message is handed to them after `stop`.
    pub fn sinks(&self) -> BTreeMap<String, RunningSink> {
        self.running.lock().sinks.iter().map(|(name, unit)| (name.clone(), unit.sink.clone())).collect()
    }
}

/// Whether sinks have messages, or the end of one is not counted yet.
fn is_busy(settling: &Unanswered, table: &Table) -> bool {
    settling.any() || table.sinks.values().any(|sink| sink.sink().breaker().status().in_flight > 0)
}
