//! The routes of a simulation: random settings, a sink with random faults or a list, and the checks of each kind.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use punctual_model::LinkFaults;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

use super::{
    super::{
        sink::{Act, SinkEnd, Taken},
        *,
    },
    redis::SimulatedRedis,
};
use crate::{
    message::{FlowLimits, HistoryLimits, Rate, Remember, RouteLimits},
    store::{RouteFlow, redis::RouteSettings},
};

/// After this time there are no faults.
pub const CALM: Duration = Duration::from_secs(20);

/// Time in microseconds from a claim to the arrival at a sink, if no link has a latency.
const SENT_WITHIN: f64 = 20_000.0;

/// The faults of a run.
#[expect(clippy::struct_excessive_bools, reason = "each may be there beside the others")]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Plan {
    pub sinks_fail: bool,
    pub sinks_down: bool,
    /// One part of each sink fails.
    pub parts_fail: bool,
    /// Links end, calls and replies are lost, Redis is down.
    pub store_fails: bool,
    /// A command of a script fails.
    pub scripts_fail: bool,
    /// Another server becomes the master and misses the last writes.
    pub fail_overs: bool,
    /// The clock of Redis is stepped.
    pub clock_steps: bool,
    pub kills: bool,
}

impl Plan {
    /// Whether an attempt can be repeated although its message was taken.
    pub fn repeats(self) -> bool {
        self.sinks_fail || self.parts_fail || self.kills || self.clock_steps || self.fail_overs || self.scripts_fail
    }
}

/// A route, with the sink that its messages go to.
pub struct SimulatedRoute {
    pub settings: RouteSettings,
    /// `None`: a list on the Redis of the queue.
    sink: Option<Arc<FakeSink>>,
}

impl SimulatedRoute {
    pub fn new(settings: RouteSettings, redis: &Arc<SimulatedRedis>, plan: Plan, rng: &mut StdRng) -> Self {
        let is_list = settings.flow.is_none() && rng.random_bool(0.25);
        let sink = (!is_list).then(|| random_sink(redis, plan, rng));
        Self { settings, sink }
    }

    pub fn name(&self) -> Arc<str> {
        self.settings.name.clone()
    }

    pub fn partitions(&self) -> impl Iterator<Item = Partition> + use<> {
        Partition::all(&self.settings.name, self.settings.partitions)
    }

    pub fn target(&self, breaker: &Arc<Breaker>) -> Target {
        match &self.sink {
            Some(sink) => to_sink(sink, breaker),
            None => to_list(&self.settings.name, breaker),
        }
    }

    /// The flow of the next message.
    pub fn random_flow(&self, rng: &mut StdRng) -> Option<String> {
        self.settings.flow.as_ref()?;
        pick(rng, &[None, Some("a"), Some("b")]).map(str::to_owned)
    }

    /// The maximum lateness, if no flow makes messages wait.
    pub fn most_late(&self) -> Option<u64> {
        self.sink.as_ref().filter(|_| self.settings.flow.is_none()).map(|sink| sink.most_late())
    }

    /// Checks what arrived. `most_in_flight`: over all instances. Returns how often each message was delivered.
    pub fn check(
        &self,
        redis: &SimulatedRedis,
        plan: Plan,
        policy: &Policy,
        most_in_flight: usize,
    ) -> BTreeMap<String, u32> {
        let Some(sink) = &self.sink else { return redis.list(&self.settings.name) };
        assert_eq!(sink.early(), 0);
        assert!(sink.most_inside() <= most_in_flight, "in flight");
        assert!(sink.seen().iter().all(|seen| seen.attempt <= policy.retry.max_attempts), "attempts");
        let burnt = sink.seen().iter().any(|seen| seen.attempt > 1);
        assert!(!burnt || plan.sinks_fail || plan.parts_fail, "an attempt was burnt");
        if let Some(flow) = &self.settings.flow {
            self.partitions().for_each(|partition| redis.check_ended_flows(&partition));
            if !plan.fail_overs && !plan.clock_steps {
                check_flows(sink, flow.limits, plan);
            }
        }
        sink.taken()
    }

    /// Checks that a message is not sent any more after the answer to its cancellation.
    pub fn check_cancelled(&self, never_sent_after: &BTreeMap<String, Instant>) {
        for seen in self.sink.iter().flat_map(|sink| sink.seen()) {
            let answered = never_sent_after.get(&seen.id);
            assert!(
                answered.is_none_or(|answered| seen.at <= *answered),
                "{} was sent after its cancellation",
                seen.id
            );
        }
    }

    /// Whether an attempt can be repeated although its message was delivered.
    pub fn repeats(&self, plan: Plan) -> bool {
        if self.sink.is_some() { plan.repeats() } else { plan.fail_overs }
    }
}

/// Checks the order, the number in flight and the rate of each flow.
fn check_flows(sink: &FakeSink, limits: FlowLimits, plan: Plan) {
    if let Some(most) = limits.parallel.or(limits.ordered.then_some(1)) {
        let inside = sink.most_inside_of_a_flow();
        assert!(inside <= most as usize, "{inside} messages of a flow at once: {limits:?}");
    }
    let mut latest = BTreeMap::new();
    for taken in sink.first_taken().into_iter().filter(|_| limits.ordered) {
        let before = latest.insert(taken.flow.clone(), taken.clone());
        let due = |taken: &Taken| format!("{} due at {}", taken.id, taken.due);
        assert!(
            before.as_ref().is_none_or(|before| before.due <= taken.due),
            "{} after {}",
            due(&taken),
            before.as_ref().map_or_else(String::new, due),
        );
    }
    let is_prompt = !plan.store_fails && !plan.scripts_fail && !plan.kills;
    if let Some(rate) = limits.rate.filter(|_| is_prompt) {
        check_rate(sink, rate, limits.burst);
    }
}

/// Checks that in no interval more arrived than the burst and what the rate allows.
fn check_rate(sink: &FakeSink, rate: Rate, burst: u32) {
    let seen = sink.seen();
    let flows: BTreeSet<_> = seen.iter().map(|seen| &seen.flow).collect();
    for flow in flows {
        let times: Vec<_> = seen.iter().filter(|seen| seen.flow == *flow).map(|seen| seen.at).collect();
        for (first, begin) in times.iter().enumerate() {
            for (more, end) in times[first..].iter().enumerate() {
                let micros = (*end - *begin).as_secs_f64() * 1e6 + SENT_WITHIN;
                #[expect(clippy::cast_precision_loss, reason = "tens of messages")]
                let over = more as f64 - micros / rate.interval();
                assert!(over < f64::from(burst), "{} messages in {micros} us at {rate}, burst {burst}", more + 1);
            }
        }
    }
}

/// A route with its partitions; each second one has a history, and some remember. One in four has flows.
pub fn random_settings(n: usize, partitions: u16, rng: &mut StdRng) -> RouteSettings {
    let flow = rng.random_bool(0.25).then(|| RouteFlow { key: None, limits: random_limits(rng) });
    RouteSettings {
        name: format!("r{n}").into(),
        partitions: if flow.is_some() { 1 } else { partitions },
        max_payload: 1 << 20,
        remember: rng.random_bool(0.5).then_some(Remember { period: MINUTE, max: 5 }),
        limits: RouteLimits::default(),
        flow,
        forwards: false,
        history: n.is_multiple_of(2).then_some(HistoryLimits { period: MINUTE, max: 50 }),
    }
}

fn random_limits(rng: &mut StdRng) -> FlowLimits {
    let rate = pick(rng, &["2/s", "10/s", "600/m"]);
    let rate = rng.random_bool(0.5).then(|| Rate::parse(rate).expect("a rate"));
    let burst = rng.random_range(1..=5);
    match rng.random_range(0..3) {
        0 => FlowLimits { rate, burst, parallel: None, ordered: true },
        1 => FlowLimits { rate, burst, parallel: Some(rng.random_range(1..=3)), ordered: false },
        _ => FlowLimits { rate: rate.or(Rate::parse("5/s").ok()), burst, parallel: None, ordered: false },
    }
}

pub fn pick<'a, T>(rng: &mut StdRng, from: &'a [T]) -> &'a T {
    &from[rng.random_range(0..from.len())]
}

/// The faults of links in the next half second.
pub fn random_faults(rng: &mut StdRng) -> LinkFaults {
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
    let rng = Mutex::new(StdRng::seed_from_u64(rng.random()));
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
