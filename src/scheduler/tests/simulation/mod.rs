//! Hundreds of seeded runs of schedulers, the Redis store and its scripts: random messages, routes, instances and faults
//! for twenty seconds, then no faults. `PUNCTUAL_SIMULATION=<n>` runs n times as many seeds; `PUNCTUAL_SEED=<n>` runs only
//! that one.

mod changes;
mod redis;
mod routes;
mod schedules;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use parking_lot::Mutex;
use punctual_model::LinkFaults;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

use self::{
    changes::{Changes, Produced, group_of, random_group},
    redis::{Process, SimulatedRedis, signals},
    routes::{CALM, Plan, SimulatedRoute, pick, random_faults, random_settings},
};
use super::*;
use crate::{
    message::{MessageId, NewMessage, OnConflict},
    time::Due,
};

/// For each test. A run takes up to 0.2 s in a debug build.
const SEEDS: u64 = 20;

struct World {
    plan: Plan,
    redis: Arc<SimulatedRedis>,
    producer: Process,
    producing: Vec<JoinHandle<()>>,
    rng: StdRng,
    routes: Vec<SimulatedRoute>,
    breakers: usize,
    policy: Policy,
    instances: usize,
    scheduled: BTreeSet<String>,
    /// How often the producer repeated a call, by id. The route may not remember the id any more.
    repeated: Arc<Mutex<BTreeMap<String, u64>>>,
    changes: Arc<Changes>,
}

#[test]
fn without_faults_each_message_is_delivered_once_and_on_time() {
    simulate(Plan::default());
}

#[test]
fn whatever_sinks_do_nothing_is_lost_and_attempts_are_bounded() {
    simulate(Plan { sinks_fail: true, ..Plan::default() });
}

#[test]
fn an_outage_of_sinks_kills_nothing_and_burns_no_attempt() {
    simulate(Plan { sinks_down: true, ..Plan::default() });
}

#[test]
fn one_part_of_each_sink_that_fails_holds_up_no_other_and_loses_nothing() {
    simulate(Plan { parts_fail: true, ..Plan::default() });
}

#[test]
fn lost_replies_and_outages_of_the_store_lose_nothing() {
    simulate(Plan { store_fails: true, ..Plan::default() });
}

#[test]
fn an_error_at_any_command_of_a_script_loses_nothing() {
    simulate(Plan { scripts_fail: true, ..Plan::default() });
}

#[test]
fn a_fail_over_loses_and_repeats_only_the_writes_that_it_drops() {
    simulate(Plan { fail_overs: true, ..Plan::default() });
}

#[test]
fn steps_of_the_clock_of_redis_lose_nothing_and_make_nothing_early() {
    simulate(Plan { clock_steps: true, ..Plan::default() });
}

#[test]
fn all_faults_together_and_killed_instances_lose_nothing() {
    let plan = Plan { sinks_fail: true, sinks_down: true, parts_fail: true, store_fails: true, ..Plan::default() };
    simulate(Plan { kills: true, ..plan });
    simulate(Plan { kills: true, scripts_fail: true, fail_overs: true, clock_steps: true, ..plan });
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

/// A number of the environment.
fn asked(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|number| number.parse().expect("a number"))
}

fn seeds() -> Range<u64> {
    match asked("PUNCTUAL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..SEEDS * asked("PUNCTUAL_SIMULATION").unwrap_or(1),
    }
}

fn simulate(plan: Plan) {
    let (begun, mut commands) = (Instant::now(), 0);
    for seed in seeds() {
        let _seed = Seed(seed);
        let recorder = recorder();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        // Created in the runtime, so that its times are those of the paused clock.
        let world = async { Box::pin(World::new(seed, plan).await.run(&recorder)).await };
        commands += metrics::with_local_recorder(&recorder, || runtime.block_on(world));
    }
    println!("{commands} commands of Redis in {:?}", begun.elapsed());
}

impl World {
    async fn new(seed: u64, plan: Plan) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let (routes, partitions) = (rng.random_range(1..=3), rng.random_range(1..=2));
        let settings: Vec<_> = (0..routes).map(|n| random_settings(n, partitions, &mut rng)).collect();
        let redis = SimulatedRedis::new(rng.random(), settings.clone()).await;
        let routes: Vec<_> =
            settings.into_iter().map(|settings| SimulatedRoute::new(settings, &redis, plan, &mut rng)).collect();
        let policy = Policy { max_in_flight: *pick(&mut rng, &[1, 3, 10, 100]), ..policy() };
        Self {
            plan,
            producer: redis.process(rng.random()),
            producing: Vec::new(),
            redis,
            breakers: rng.random_range(1..=routes.len()),
            routes,
            policy,
            instances: rng.random_range(1..=2),
            scheduled: BTreeSet::new(),
            repeated: Arc::default(),
            changes: Arc::default(),
            rng,
        }
    }

    /// Returns the number of commands, with those of scripts.
    async fn run(mut self, recorder: &PrometheusRecorder) -> u64 {
        let begun = Instant::now();
        let mut instances: Vec<_> = (0..self.instances).map(|_| self.start()).collect();
        for step in 0..40u32 {
            if step < 8 {
                self.schedule_some();
            }
            if step < 24 {
                self.change_some();
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
        self.redis.counts().commands
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
        let routes = self.routes.iter().enumerate().map(|(n, route)| RouteSetup {
            route: route.name(),
            partitions: signals(&process, route.partitions()),
            policy: self.policy,
            window: None,
            has_flows: route.settings.flow.is_some(),
            keeps_history: route.settings.history.is_some(),
            target: route.target(&breakers[n % breakers.len()]),
            spans: Spans::default(),
            instance: "test:1".into(),
        });
        let store: Arc<dyn Store> = process.store.clone();
        let instance = Instance::start_over(&store, self.rng.random(), routes.collect());
        (process, instance)
    }

    fn everywhere(&self) -> impl Iterator<Item = Partition> {
        self.routes.iter().flat_map(SimulatedRoute::partitions)
    }

    /// Schedules messages. A call without an answer is repeated until it has one.
    fn schedule_some(&mut self) {
        for _ in 0..self.rng.random_range(0..8) {
            let n = self.rng.random_range(0..self.routes.len());
            let route = &self.routes[n];
            let partitions: Vec<_> = route.partitions().collect();
            let partition = pick(&mut self.rng, &partitions).clone();
            let group = random_group(&mut self.rng);
            let id = format!("{}-{n}-{}-{group}", self.scheduled.len(), partition.index);
            let message = NewMessage {
                id: MessageId::parse(&id).expect("an id"),
                due: Due::After(self.rng.random_range(0..3000)),
                payload: id.clone().into(),
                metadata: Metadata {
                    flow: route.random_flow(&mut self.rng),
                    group: group_of(&id).map(str::to_owned),
                    ..Metadata::default()
                },
                on_conflict: OnConflict::Keep,
                debounce: None,
                record: None,
            };
            self.scheduled.insert(id);
            let (store, repeated, changes) = (self.producer.store.clone(), self.repeated.clone(), self.changes.clone());
            let may_move = route.settings.flow.is_none();
            let produced = Produced { id: message.id.clone(), partition: partition.clone(), may_move };
            changes.produce(produced.clone());
            self.producing.push(tokio::spawn(async move {
                while store.schedule(&partition, std::slice::from_ref(&message)).await.is_err() {
                    *repeated.lock().entry(message.id.to_string()).or_default() += 1;
                    sleep(100 * MILLI).await;
                }
                changes.accept(produced);
            }));
        }
    }

    fn change_some(&mut self) {
        for _ in 0..self.rng.random_range(0..3) {
            let (changes, store) = (self.changes.clone(), self.producer.store.clone());
            let rng = StdRng::seed_from_u64(self.rng.random());
            self.producing.push(tokio::spawn(changes.change_one(store, rng)));
        }
    }

    fn check(&self, recorder: &PrometheusRecorder) {
        let plan = self.plan;
        let (mut ended, mut died) = (BTreeSet::new(), BTreeSet::new());
        for partition in self.everywhere() {
            self.redis.check(&partition);
            died.extend(self.redis.dead(&partition));
        }
        for route in &self.routes {
            let mut taken = route.check(&self.redis, plan, &self.policy, self.policy.max_in_flight * self.instances);
            ended.extend(taken.keys().cloned());
            if !plan.fail_overs {
                route.check_cancelled(&self.changes.never_sent_after.lock());
            }
            taken.retain(|_, times| *times > 1);
            // Each other repeated delivery has a cause that is not known here, such as a lost lease.
            for (id, times) in taken.into_iter().filter(|_| !route.repeats(plan)) {
                let repeated = self.repeated.lock().get(&id).copied().unwrap_or(0);
                assert!(
                    u64::from(times) <= 1 + repeated,
                    "{id} was delivered {times} times, accepted {repeated} times again"
                );
            }
        }
        ended.extend(died.iter().cloned());
        let missing: BTreeSet<_> = self.scheduled.difference(&ended).cloned().collect();
        let (lost, cancelled) = (self.redis.lost.lock(), self.changes.may_be_cancelled.lock());
        let missing: BTreeSet<_> = missing.difference(&cancelled).collect();
        assert!(missing.iter().all(|id| lost.contains(*id)), "lost: {missing:?}, by fail-overs {lost:?}");
        assert!(ended.is_subset(&self.scheduled), "nothing else ends");
        assert!(died.is_empty() || plan.sinks_fail || plan.parts_fail, "dead: {died:?}");
        if !plan.store_fails && !plan.scripts_fail && !plan.fail_overs && !plan.clock_steps {
            let delivered = counted(recorder, "punctual_messages_delivered_total", "");
            let buried = counted(recorder, "punctual_messages_dead_total", "");
            assert_eq!(
                (delivered + buried + *self.changes.cancelled.lock(), buried),
                (self.scheduled.len() as u64, died.len() as u64 + *self.changes.purged.lock()),
                "counters add up"
            );
            assert_eq!(counted(recorder, "punctual_stale_settlements_total", ""), 0);
        }
        if plan == Plan::default() || plan == (Plan { kills: true, ..Plan::default() }) {
            let late = self.routes.iter().filter_map(SimulatedRoute::most_late).max().unwrap_or(0);
            let limit = if self.policy.max_in_flight < 100 { 5000 } else { 12 };
            assert!(late <= limit, "{late} ms late");
        }
    }

    /// Counts the calls of two idle minutes.
    async fn check_idle(&self) {
        sleep(LEASE + SECOND).await;
        let before = self.redis.counts().scripts;
        sleep(2 * MINUTE).await;
        let sleepers = (self.everywhere().count() * self.instances) as u64;
        let calls = self.redis.counts().scripts - before;
        assert!(calls <= sleepers * 5, "{calls} calls of {sleepers} idle sleepers");
    }
}
