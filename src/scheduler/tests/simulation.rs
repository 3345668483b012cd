//! Thousands of seeded runs: random messages, routes, instances and faults for twenty seconds, then no faults.

use std::{collections::BTreeSet, ops::Range};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

use super::{
    sink::{Act, SinkEnd},
    *,
};

/// After this time there are no faults.
const CALM: Duration = Duration::from_secs(20);

/// The faults of a run.
#[expect(clippy::struct_excessive_bools, reason = "each may be there beside the others")]
#[derive(Clone, Copy, Debug, Default)]
struct Plan {
    sinks_fail: bool,
    sinks_down: bool,
    /// One part of each sink fails.
    parts_fail: bool,
    store_fails: bool,
    kills: bool,
}

struct World {
    plan: Plan,
    store: Arc<TestStore>,
    rng: StdRng,
    sinks: Vec<Arc<FakeSink>>,
    breakers: usize,
    partitions: u16,
    policy: Policy,
    instances: usize,
    scheduled: BTreeSet<String>,
}

#[test]
fn without_faults_each_message_is_delivered_once_and_on_time() {
    simulate(0..400, Plan::default());
}

#[test]
fn whatever_sinks_do_nothing_is_lost_and_attempts_are_bounded() {
    simulate(0..400, Plan { sinks_fail: true, ..Plan::default() });
}

#[test]
fn an_outage_of_sinks_kills_nothing_and_burns_no_attempt() {
    simulate(0..400, Plan { sinks_down: true, ..Plan::default() });
}

#[test]
fn one_part_of_each_sink_that_fails_holds_up_no_other_and_loses_nothing() {
    simulate(0..400, Plan { parts_fail: true, ..Plan::default() });
}

#[test]
fn lost_replies_and_outages_of_the_store_lose_nothing() {
    simulate(0..400, Plan { store_fails: true, ..Plan::default() });
}

#[test]
fn all_faults_together_and_killed_instances_lose_nothing() {
    simulate(0..600, Plan { sinks_fail: true, sinks_down: true, parts_fail: true, store_fails: true, kills: true });
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
    for seed in seeds {
        let _seed = Seed(seed);
        let recorder = recorder();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        // Created in the runtime, so that its times are those of the paused clock.
        let world = async { World::new(seed, plan).run(&recorder).await };
        metrics::with_local_recorder(&recorder, || runtime.block_on(world));
    }
}

impl World {
    fn new(seed: u64, plan: Plan) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let store = TestStore::new(rng.random());
        let routes = rng.random_range(1..=3);
        let sinks = (0..routes).map(|_| random_sink(&store, plan, &mut rng)).collect();
        let policy = Policy { max_in_flight: *pick(&mut rng, &[1, 3, 10, 100]), ..policy() };
        Self {
            plan,
            store,
            sinks,
            breakers: rng.random_range(1..=routes),
            partitions: rng.random_range(1..=2),
            policy,
            instances: rng.random_range(1..=2),
            scheduled: BTreeSet::new(),
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
            if self.plan.store_fails {
                self.store.set_faults(random_faults(&mut self.rng));
            }
            if self.plan.kills && self.rng.random_bool(0.05) {
                instances.pop().expect("one runs").kill().await;
                instances.push(self.start());
            }
            sleep(CALM / 40).await;
        }
        self.store.set_faults(Faults::default());
        assert!(begun.elapsed() >= CALM);
        until("an empty queue", || self.everywhere().all(|queue| queue.0 + queue.1 == 0)).await;
        self.check(recorder);
        self.check_idle().await;
        for instance in instances {
            instance.stop().await;
        }
    }

    fn start(&self) -> Instance {
        let breakers: Vec<_> = (0..self.breakers).map(|n| Breaker::new(&format!("s{n}"))).collect();
        let routes = self.sinks.iter().enumerate().map(|(n, sink)| {
            let target = to_sink(sink, &breakers[n % breakers.len()]);
            let signals = self.partitions_of(n).map(|partition| (partition.clone(), self.store.subscribe(&partition)));
            RouteSetup {
                route: route(n),
                partitions: signals.collect(),
                policy: self.policy,
                window: None,
                has_flows: false,
                keeps_history: n % 2 == 0,
                target,
                spans: Spans::default(),
                instance: "test:1".into(),
            }
        });
        Instance::start(&self.store, routes.collect())
    }

    fn partitions_of(&self, n: usize) -> impl Iterator<Item = Partition> + use<> {
        Partition::all(&route(n), self.partitions)
    }

    fn everywhere(&self) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        (0..self.sinks.len()).flat_map(|n| self.partitions_of(n)).map(|partition| self.store.count(&partition))
    }

    fn schedule_some(&mut self) {
        for _ in 0..self.rng.random_range(0..8) {
            let n = self.rng.random_range(0..self.sinks.len());
            let index = self.rng.random_range(0..self.partitions);
            let id = format!("{}-{n}-{index}", self.scheduled.len());
            let delay = self.rng.random_range(0..3000) * MILLI;
            self.store.schedule(
                &Partition { route: route(n), index, count: self.partitions },
                &id,
                delay,
                Metadata::default(),
            );
            self.scheduled.insert(id);
        }
    }

    fn check(&self, recorder: &PrometheusRecorder) {
        self.store.check();
        let plan = self.plan;
        let mut ended = BTreeSet::new();
        let mut dead = 0;
        for (n, sink) in self.sinks.iter().enumerate() {
            assert_eq!(sink.early(), 0);
            assert!(sink.most_inside() <= self.policy.max_in_flight * self.instances, "in flight");
            assert!(sink.seen().iter().all(|seen| seen.attempt <= self.policy.retry.max_attempts), "attempts");
            ended.extend(sink.taken().into_keys());
            for partition in self.partitions_of(n) {
                let (_, _, buried) = self.store.count(&partition);
                dead += buried;
                if buried > 0 {
                    ended.extend(self.store.dead(&partition).into_keys());
                }
            }
            let once = sink.taken().values().all(|times| *times == 1);
            assert!(once || plan.sinks_fail || plan.parts_fail || plan.kills, "delivered twice");
            let burnt = sink.seen().iter().any(|seen| seen.attempt > 1);
            assert!(!burnt || plan.sinks_fail || plan.parts_fail, "an attempt was burnt");
        }
        assert_eq!(ended, self.scheduled, "nothing is lost");
        assert!(dead == 0 || plan.sinks_fail || plan.parts_fail, "nothing is dead");
        if !plan.store_fails {
            let delivered = counted(recorder, "punctual_messages_delivered_total", "");
            let buried = counted(recorder, "punctual_messages_dead_total", "");
            assert_eq!((delivered + buried, buried), (self.scheduled.len() as u64, dead as u64), "counters add up");
            assert_eq!(counted(recorder, "punctual_stale_settlements_total", ""), 0);
        }
        if !plan.sinks_down && !plan.sinks_fail && !plan.parts_fail && !plan.store_fails {
            let late = self.sinks.iter().map(|sink| sink.most_late()).max().unwrap();
            let limit = if self.policy.max_in_flight < 100 { 5000 } else { 12 };
            assert!(late <= limit, "{late} ms late");
        }
    }

    /// Counts the calls of two idle minutes.
    async fn check_idle(&self) {
        sleep(LEASE + SECOND).await;
        let before = self.store.all_calls();
        sleep(2 * MINUTE).await;
        let sleepers = u32::from(self.partitions) * u32::try_from(self.sinks.len() * self.instances).unwrap();
        let calls = self.store.all_calls() - before;
        assert!(calls <= sleepers * 5, "{calls} calls of {sleepers} idle sleepers");
    }
}

fn route(n: usize) -> Arc<str> {
    format!("r{n}").into()
}

fn pick<'a, T>(rng: &mut StdRng, from: &'a [T]) -> &'a T {
    &from[rng.random_range(0..from.len())]
}

/// The faults of the next half second.
fn random_faults(rng: &mut StdRng) -> Faults {
    let share = |rng: &mut StdRng| if rng.random_bool(0.5) { 0.0 } else { rng.random_range(0.0..0.3) };
    Faults {
        before: share(rng),
        after: share(rng),
        latency: rng.random_range(0..30) * MILLI,
        down: rng.random_bool(0.1),
        wake_ups_lost: rng.random_bool(0.1),
        ..Faults::default()
    }
}

fn random_sink(store: &Arc<TestStore>, plan: Plan, rng: &mut StdRng) -> Arc<FakeSink> {
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
    FakeSink::with_domains(store, domain, move |delivery| {
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
