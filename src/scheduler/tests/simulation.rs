//! Hundreds of seeded runs of schedulers, the Redis store and its scripts: random messages, routes, instances and faults
//! for twenty seconds, then no faults. `PUNCTUAL_SIMULATION=<n>` runs n times as many seeds; `PUNCTUAL_SEED=<n>` runs only
//! that one.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use parking_lot::Mutex;
use punctual_model::LinkFaults;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

use super::{
    simulated::{Process, SimulatedRedis, signals},
    sink::{Act, SinkEnd},
    *,
};
use crate::{
    message::{HistoryLimits, MessageId, NewMessage, OnConflict, Remember, RouteLimits},
    store::redis::RouteSettings,
    time::Due,
};

/// After this time there are no faults.
const CALM: Duration = Duration::from_secs(20);

/// The faults of a run.
#[expect(clippy::struct_excessive_bools, reason = "each may be there beside the others")]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Plan {
    sinks_fail: bool,
    sinks_down: bool,
    /// One part of each sink fails.
    parts_fail: bool,
    /// Links end, calls and replies are lost, Redis is down.
    store_fails: bool,
    /// A command of a script fails.
    scripts_fail: bool,
    /// Another server becomes the master and misses the last writes.
    fail_overs: bool,
    /// The clock of Redis is stepped.
    clock_steps: bool,
    kills: bool,
}

impl Plan {
    /// Whether an attempt can be repeated although its message was taken.
    fn repeats(self) -> bool {
        self.sinks_fail || self.parts_fail || self.kills || self.clock_steps || self.fail_overs || self.scripts_fail
    }
}

struct World {
    plan: Plan,
    redis: Arc<SimulatedRedis>,
    producer: Process,
    producing: Vec<JoinHandle<()>>,
    rng: StdRng,
    sinks: Vec<Arc<FakeSink>>,
    breakers: usize,
    partitions: u16,
    policy: Policy,
    instances: usize,
    scheduled: BTreeSet<String>,
    /// How often the producer repeated a call, by id. The route may not remember the id any more.
    repeated: Arc<Mutex<BTreeMap<String, u64>>>,
}

#[test]
fn without_faults_each_message_is_delivered_once_and_on_time() {
    simulate(0..100, Plan::default());
}

#[test]
fn whatever_sinks_do_nothing_is_lost_and_attempts_are_bounded() {
    simulate(0..100, Plan { sinks_fail: true, ..Plan::default() });
}

#[test]
fn an_outage_of_sinks_kills_nothing_and_burns_no_attempt() {
    simulate(0..100, Plan { sinks_down: true, ..Plan::default() });
}

#[test]
fn one_part_of_each_sink_that_fails_holds_up_no_other_and_loses_nothing() {
    simulate(0..100, Plan { parts_fail: true, ..Plan::default() });
}

#[test]
fn lost_replies_and_outages_of_the_store_lose_nothing() {
    simulate(0..100, Plan { store_fails: true, ..Plan::default() });
}

#[test]
fn an_error_at_any_command_of_a_script_loses_nothing() {
    simulate(0..100, Plan { scripts_fail: true, ..Plan::default() });
}

#[test]
fn a_fail_over_loses_and_repeats_only_the_writes_that_it_drops() {
    simulate(0..100, Plan { fail_overs: true, ..Plan::default() });
}

#[test]
fn steps_of_the_clock_of_redis_lose_nothing_and_make_nothing_early() {
    simulate(0..100, Plan { clock_steps: true, ..Plan::default() });
}

#[test]
fn all_faults_together_and_killed_instances_lose_nothing() {
    let plan = Plan { sinks_fail: true, sinks_down: true, parts_fail: true, store_fails: true, ..Plan::default() };
    simulate(0..100, Plan { kills: true, ..plan });
    simulate(0..100, Plan { kills: true, scripts_fail: true, fail_overs: true, clock_steps: true, ..plan });
}

/// Names the seed when its run fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}

fn simulate(seeds: Range<u64>, plan: Plan) {
    let asked = |name| std::env::var(name).ok().map(|number| number.parse::<u64>().expect("a number"));
    let seeds = match asked("PUNCTUAL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..seeds.end * asked("PUNCTUAL_SIMULATION").unwrap_or(1),
    };
    for seed in seeds {
        let _seed = Seed(seed);
        let recorder = recorder();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        // Created in the runtime, so that its times are those of the paused clock.
        let world = async { Box::pin(World::new(seed, plan).await.run(&recorder)).await };
        metrics::with_local_recorder(&recorder, || runtime.block_on(world));
    }
}

impl World {
    async fn new(seed: u64, plan: Plan) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let (routes, partitions) = (rng.random_range(1..=3), rng.random_range(1..=2));
        let settings = (0..routes).map(|n| random_route(n, partitions, &mut rng)).collect();
        let redis = SimulatedRedis::new(rng.random(), settings).await;
        let sinks = (0..routes).map(|_| random_sink(&redis, plan, &mut rng)).collect();
        let policy = Policy { max_in_flight: *pick(&mut rng, &[1, 3, 10, 100]), ..policy() };
        Self {
            plan,
            producer: redis.process(rng.random()),
            producing: Vec::new(),
            redis,
            sinks,
            breakers: rng.random_range(1..=routes),
            partitions,
            policy,
            instances: rng.random_range(1..=2),
            scheduled: BTreeSet::new(),
            repeated: Arc::default(),
            rng,
        }
    }

    async fn run(mut self, recorder: &PrometheusRecorder) {
        let begun = Instant::now();
        let mut instances: Vec<_> = (0..self.instances).map(|_| self.start()).collect();
        for step in 0..40u32 {
            if step < 8 {
                self.schedule_some();
            }
            self.disturb();
            if self.plan.kills && self.rng.random_bool(0.05) {
                instances.pop().expect("one runs").1.kill().await;
                instances.push(self.start());
            }
            sleep(CALM / 40).await;
            self.everywhere().for_each(|partition| self.redis.check(&partition));
        }
        self.redis.set_faults(LinkFaults::default());
        self.redis.lose_messages(false);
        assert!(begun.elapsed() >= CALM);
        for producing in std::mem::take(&mut self.producing) {
            producing.await.expect("each message is accepted");
        }
        let is_empty = |(pending, unack, _)| pending + unack == 0;
        let is_done = || self.everywhere().all(|partition| is_empty(self.redis.count(&partition)));
        for _ in 0..24_000 {
            if is_done() {
                break;
            }
            sleep(25 * MILLI).await;
        }
        assert!(is_done(), "ten minutes passed without an empty queue");
        self.check(recorder);
        self.check_idle().await;
        for (_process, instance) in instances {
            instance.stop().await;
        }
    }

    /// Sets the faults of the next half second.
    fn disturb(&mut self) {
        let rng = &mut self.rng;
        let mut faults = LinkFaults::default();
        if self.plan.store_fails {
            faults = random_faults(rng);
            self.redis.lose_messages(rng.random_bool(0.1));
        }
        if self.plan.scripts_fail && rng.random_bool(0.5) {
            faults.errors = rng.random_range(0.0..0.5);
        }
        self.redis.set_faults(faults);
        if self.plan.fail_overs && rng.random_bool(0.1) {
            self.redis.fail_over(rng.random_range(0..20));
        }
        if self.plan.clock_steps && rng.random_bool(0.1) {
            let most = *pick(rng, &[100_000, 2_000_000, 60_000_000]);
            self.redis.step_clock(rng.random_range(-most..most));
        }
    }

    fn start(&mut self) -> (Process, Instance) {
        let process = self.redis.process(self.rng.random());
        let breakers: Vec<_> = (0..self.breakers).map(|n| Breaker::new(&format!("s{n}"))).collect();
        let routes = self.sinks.iter().enumerate().map(|(n, sink)| {
            let target = to_sink(sink, &breakers[n % breakers.len()]);
            RouteSetup {
                route: route(n),
                partitions: signals(&process, Partition::all(&route(n), self.partitions)),
                policy: self.policy,
                window: None,
                has_flows: false,
                keeps_history: n % 2 == 0,
                target,
                spans: Spans::default(),
                instance: "test:1".into(),
            }
        });
        let store: Arc<dyn Store> = process.store.clone();
        let instance = Instance::start_over(&store, self.rng.random(), routes.collect());
        (process, instance)
    }

    fn everywhere(&self) -> impl Iterator<Item = Partition> + use<> {
        let partitions = self.partitions;
        (0..self.sinks.len()).flat_map(move |n| Partition::all(&route(n), partitions))
    }

    /// Schedules messages. A call without an answer is repeated until it has one.
    fn schedule_some(&mut self) {
        for _ in 0..self.rng.random_range(0..8) {
            let n = self.rng.random_range(0..self.sinks.len());
            let index = self.rng.random_range(0..self.partitions);
            let id = format!("{}-{n}-{index}", self.scheduled.len());
            let message = NewMessage {
                id: MessageId::parse(&id).expect("an id"),
                due: Due::After(self.rng.random_range(0..3000)),
                payload: id.clone().into(),
                metadata: Metadata::default(),
                on_conflict: OnConflict::Keep,
                debounce: None,
                record: None,
            };
            self.scheduled.insert(id);
            let partition = Partition { route: route(n), index, count: self.partitions };
            let (store, repeated) = (self.producer.store.clone(), self.repeated.clone());
            self.producing.push(tokio::spawn(async move {
                while store.schedule(&partition, std::slice::from_ref(&message)).await.is_err() {
                    *repeated.lock().entry(message.id.to_string()).or_default() += 1;
                    sleep(100 * MILLI).await;
                }
            }));
        }
    }

    fn check(&self, recorder: &PrometheusRecorder) {
        let plan = self.plan;
        let (mut ended, mut died) = (BTreeSet::new(), BTreeSet::new());
        for partition in self.everywhere() {
            self.redis.check(&partition);
            died.extend(self.redis.dead(&partition));
        }
        let failed_over = self.redis.failed_over.lock();
        for sink in &self.sinks {
            assert_eq!(sink.early(), 0);
            assert!(sink.most_inside() <= self.policy.max_in_flight * self.instances, "in flight");
            assert!(sink.seen().iter().all(|seen| seen.attempt <= self.policy.retry.max_attempts), "attempts");
            let mut taken = sink.taken();
            ended.extend(taken.keys().cloned());
            taken.retain(|_, times| *times > 1);
            // Each other repeated delivery has a cause that is not known here, such as a lost lease.
            for (id, times) in taken.into_iter().filter(|_| !plan.repeats()) {
                let repeated = self.repeated.lock().get(&id).copied().unwrap_or(0);
                assert!(
                    u64::from(times) <= 1 + repeated,
                    "{id} was delivered {times} times, accepted {repeated} times again"
                );
            }
            let burnt = sink.seen().iter().any(|seen| seen.attempt > 1);
            assert!(!burnt || plan.sinks_fail || plan.parts_fail, "an attempt was burnt");
        }
        ended.extend(died.iter().cloned());
        let missing: BTreeSet<_> = self.scheduled.difference(&ended).cloned().collect();
        assert!(missing.is_subset(&failed_over.lost), "lost: {missing:?}, by fail-overs {:?}", failed_over.lost);
        assert!(ended.is_subset(&self.scheduled), "nothing else ends");
        assert!(died.is_empty() || plan.sinks_fail || plan.parts_fail, "dead: {died:?}");
        if !plan.store_fails && !plan.scripts_fail && !plan.fail_overs && !plan.clock_steps {
            let delivered = counted(recorder, "punctual_messages_delivered_total", "");
            let buried = counted(recorder, "punctual_messages_dead_total", "");
            assert_eq!(
                (delivered + buried, buried),
                (self.scheduled.len() as u64, died.len() as u64),
                "counters add up"
            );
            assert_eq!(counted(recorder, "punctual_stale_settlements_total", ""), 0);
        }
        if plan == Plan::default() || plan == (Plan { kills: true, ..Plan::default() }) {
            let late = self.sinks.iter().map(|sink| sink.most_late()).max().unwrap();
            let limit = if self.policy.max_in_flight < 100 { 5000 } else { 12 };
            assert!(late <= limit, "{late} ms late");
        }
    }

    /// Counts the calls of two idle minutes.
    async fn check_idle(&self) {
        sleep(LEASE + SECOND).await;
        let before = self.redis.counts().scripts;
        sleep(2 * MINUTE).await;
        let sleepers = u64::from(self.partitions) * (self.sinks.len() * self.instances) as u64;
        let calls = self.redis.counts().scripts - before;
        assert!(calls <= sleepers * 5, "{calls} calls of {sleepers} idle sleepers");
    }
}

/// A route with its partitions; each second one has a history, and some remember.
fn random_route(n: usize, partitions: u16, rng: &mut StdRng) -> RouteSettings {
    RouteSettings {
        name: route(n),
        partitions,
        max_payload: 1 << 20,
        remember: rng.random_bool(0.5).then_some(Remember { period: MINUTE, max: 5 }),
        limits: RouteLimits::default(),
        flow: None,
        forwards: false,
        history: n.is_multiple_of(2).then_some(HistoryLimits { period: MINUTE, max: 50 }),
    }
}

fn route(n: usize) -> Arc<str> {
    format!("r{n}").into()
}

fn pick<'a, T>(rng: &mut StdRng, from: &'a [T]) -> &'a T {
    &from[rng.random_range(0..from.len())]
}

/// The faults of links in the next half second.
fn random_faults(rng: &mut StdRng) -> LinkFaults {
    let share = |rng: &mut StdRng| if rng.random_bool(0.5) { 0.0 } else { rng.random_range(0.0..0.3) };
    LinkFaults {
        before: share(rng),
        after: share(rng),
        silence: share(rng) / 10.0,
        latency: rng.random_range(0..30) * MILLI,
        down: rng.random_bool(0.1),
        ..LinkFaults::default()
    }
}

fn random_sink(redis: &Arc<SimulatedRedis>, plan: Plan, rng: &mut StdRng) -> Arc<FakeSink> {
    let begun = Instant::now();
    let trouble = if plan.sinks_fail { rng.random_range(0.0..0.9) } else { 0.0 };
    let outage = rng.random_range(0..CALM.as_millis());
    let outage = outage..outage + rng.random_range(0..10_000);
    // Sinks share breakers, so each sink has one to three domains of its own.
    let (own, parts) = (rng.random::<u32>(), rng.random_range(1..=3));
    let domain = move |delivery: &Delivery| Some(format!("{own}/{}", part(delivery, parts)).into());
    let broken = rng.random_range(0..parts);
    let how = rng.random_range(0..4);
    let rng = std::sync::Mutex::new(StdRng::seed_from_u64(rng.random()));
    FakeSink::with_domains(redis, domain, move |delivery| {
        let mut rng = rng.lock().unwrap();
        let quick = rng.random_range(0..50) * MILLI;
        if plan.parts_fail && begun.elapsed() < CALM && part(delivery, parts) == broken {
            return match how {
                0 => Act { delay: quick, ..Act::report(unavailable()) },
                1 => Act { delay: 1999 * MILLI, takes: true, ..Act::report(unavailable()) },
                2 => Act { delay: quick, ..Act::report(throttled()) },
                _ => Act { delay: quick, ..Act::report(failed()) },
            };
        }
        if plan.sinks_down && outage.contains(&begun.elapsed().as_millis()) {
            return Act { delay: quick, ..Act::report(unavailable()) };
        }
        if begun.elapsed() >= CALM || !rng.random_bool(trouble) {
            return Act::confirm(quick);
        }
        let slow = rng.random_range(0..2500) * MILLI;
        match rng.random_range(0..10) {
            0 => Act::report(failed()),
            1 => Act { delay: slow, ..Act::report(failed()) },
            2 => Act { takes: true, ..Act::report(throttled()) },
            3 => Act { takes: true, ..Act::end(SinkEnd::Hang) },
            4 => Act::end(SinkEnd::Panic),
            5 => Act::end(SinkEnd::Silence),
            6 => Act::report(throttled()),
            8 => Act { takes: true, ..Act::report(lost()) },
            7 => Act::report(Outcome::Rejected { error: "HTTP 400".into() }),
            _ => Act::confirm(slow),
        }
    })
}

fn part(delivery: &Delivery, parts: usize) -> usize {
    delivery.id.as_str().bytes().map(usize::from).sum::<usize>() % parts
}
