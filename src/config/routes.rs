//! Routes, and their checks against sinks and sources.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use figment::value::{Dict, Value};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    connectors::GrowingDelay,
    deserialize::{correct, kind_of, read, unknown},
    entries::fill,
    flow::Flow,
    problem::{Path, Problems},
    value::{Period, Real, Size, Whole},
    windows::Windows,
};
use crate::{
    calendar::Calendar,
    message::{DeadLimits, Forwarding, HistoryLimits, MAX_PARTITIONS, Remember, RouteLimits},
    retry::RetryPolicy,
    sink::SinkSettings,
    source::SourceSettings,
    store::RouteFlow,
};

/// Minimum time by which a lease exceeds the sink's timeout: for the claim's reply and the settlement.
const LEASE_MARGIN: Duration = Duration::from_millis(500);

/// Maximum `remember.for`, in milliseconds: 30 days. Later uses of an id count as new.
const LONGEST_MEMORY: u64 = 30 * 24 * 3_600_000;

/// Default of `remember.for` if a source of the route reads messages again after a crash: no message should be accepted
/// twice.
const MEMORY_OF_READERS: Duration = Duration::from_mins(10);

/// Maximum `limits.delay` and `dead.max_age`, in milliseconds: 100 years.
const LONGEST: u64 = 100 * 8766 * 3_600_000;

/// Maximum `limits.messages` and `dead.max_count`: more than a Redis can hold.
const MOST: u64 = 1_000_000_000;

/// Minimum and maximum `history.for`, in milliseconds: 1 minute and 366 days.
const SHORTEST_HISTORY: u64 = 60_000;
const LONGEST_HISTORY: u64 = 366 * 24 * 3_600_000;

/// Path of the default of `history.max` for all routes.
const HISTORY_MAX_DEFAULT: &str = "route_defaults.history.max";

/// Path of the default of `remember.max` for all routes.
const MAX_DEFAULT: &str = "route_defaults.remember.max";

/// Paths of the defaults of `dead.forward` and `dead.then` for all routes.
const FORWARD_DEFAULT: &str = "route_defaults.dead.forward";
const THEN_DEFAULT: &str = "route_defaults.dead.then";

/// Maximum number of routes over which dead letters are forwarded, one after another.
const MAX_HOPS: usize = 3;

/// Maximum bytes of a message besides its payload: metadata (64 KiB) and encoding, with a reserve.
const LARGEST_OVERHEAD: u64 = 128 << 10;

/// A number of messages that the partitions share.
type Count = Whole<1, MOST>;

/// A validated route.
#[derive(Clone, Debug)]
pub struct RouteConfig {
    pub sink: Arc<str>,
    pub partitions: u16,
    pub lease: Duration,
    pub max_in_flight: usize,
    /// Bytes.
    pub max_in_flight_bytes: u64,
    pub retry: RetryPolicy,
    /// `None`: not set, and no ids are remembered. A `period` of zero also means that none are.
    pub remember: Option<Remember>,
    /// `None`: nothing is kept of messages that ended.
    pub history: Option<HistoryLimits>,
    pub limits: RouteLimits,
    pub dead: DeadLimits,
    /// `None`: dead letters are not forwarded.
    pub forward: Option<Forwarding>,
    /// `None`: always open.
    pub window: Option<Arc<Calendar>>,
    pub flow: Option<RouteFlow>,
}

/// A queue and its policy.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Name of a sink; required.
    sink: Arc<str>,
    /// Number of partitions: 1 to 256. After a change punctual moves the messages.
    partitions: Whole<1, { MAX_PARTITIONS as u64 }>,
    /// Maximum time from claim to settlement of a message: 1s to 1h. After it another instance can claim the message.
    lease: Period<1_000, 3_600_000>,
    /// Maximum messages of the route under way on one instance: 1 to 100000.
    max_in_flight: Whole<1, 100_000>,
    /// Maximum bytes of messages of the route under way on one instance: at least `server.max_payload` plus 128KiB.
    max_in_flight_bytes: Size,
    retry: Retry,
    remember: RememberIds,
    history: History,
    limits: Limits,
    dead: Dead,
    /// Times of the week in which messages are delivered: a mapping or a list of mappings. Unless set: always.
    window: Option<Windows>,
    /// Rate, parallelism and order of the messages of a key. Unless set: no limits. With it the route has one partition.
    flow: Option<Flow>,
}

/// Limits of the route. Beyond a limit the API answers 429. Dead letters do not count.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Limits {
    /// Maximum messages that wait or are in flight: `partitions` to 1000000000.
    messages: Option<Count>,
    /// Maximum stored bytes of messages that wait or are in flight: at least `server.max_payload` plus 128KiB for each
    /// partition.
    bytes: Option<Size>,
    /// Maximum time from acceptance to the due time: 1ms to 100years.
    delay: Option<Period<1, LONGEST>>,
}

/// Limits of the dead letters that are kept. The oldest are deleted first.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Dead {
    /// Maximum age of dead letters: 1m to 100years. Older dead letters are deleted.
    max_age: Option<Period<60_000, LONGEST>>,
    /// Maximum number of dead letters: `partitions` to 1000000000. Beyond it the oldest dead letters are deleted.
    max_count: Option<Count>,
    /// Route to which each dead letter is forwarded, as a message that is due at once. Unless set: dead letters are not
    /// forwarded.
    forward: Option<Arc<str>>,
    /// End of a dead letter that was forwarded: `keep` it, or `purge` it.
    then: Then,
}

/// The end of a dead letter that was forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Then {
    Keep,
    Purge,
}

/// Ids that are remembered after delivery or cancellation. Scheduling a remembered id again changes nothing.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RememberIds {
    /// Time for which ids of delivered and cancelled messages are remembered: 0s to 30days. With 0s no id is
    /// remembered. Unless set: 10m with a Kafka source, otherwise 0s.
    r#for: Option<Period<0, LONGEST_MEMORY>>,
    /// Maximum remembered ids: 1 to 10000000. Beyond it the oldest ids are forgotten.
    max: Whole<1, 10_000_000>,
}

/// Ends of messages that are kept: delivered, dead, cancelled, expired or replaced.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct History {
    /// Time for which the history keeps the end of a message: 1m to 366days. Unless set: no history.
    r#for: Option<Period<SHORTEST_HISTORY, LONGEST_HISTORY>>,
    /// Maximum ends in the history: 1 to 10000000. Beyond it the oldest ends are deleted.
    max: Whole<1, 10_000_000>,
}

/// Retries after failed attempts.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Retry {
    /// Maximum attempts: at least 1. After the last failed attempt the message becomes a dead letter.
    max_attempts: Whole<1, { u32::MAX as u64 }>,
    /// Delay after the first failed attempt: at least 1ms.
    initial: Period,
    /// Factor by which each further failed attempt lengthens the delay: 1 to 100.
    factor: Real,
    /// Maximum delay.
    max: Period,
    /// Random share of the delay: 0 to 1.
    jitter: Real,
}

/// The settings that a route is checked against.
pub struct Surroundings<'a> {
    /// Also of sinks with mistakes.
    pub sink_names: &'a BTreeSet<String>,
    /// Also of routes with mistakes.
    pub route_names: &'a BTreeSet<String>,
    pub sinks: &'a BTreeMap<String, Arc<dyn SinkSettings>>,
    pub sources: &'a BTreeMap<String, Arc<dyn SourceSettings>>,
    /// Bytes.
    pub max_payload: u64,
}

/// Every readable route, also those with mistakes. A mistake in `defaults` is reported once, at the defaults.
pub fn all(
    entries: Dict,
    mut defaults: Dict,
    built_in: &Dict,
    around: &Surroundings,
    problems: &mut Problems,
) -> BTreeMap<String, RouteConfig> {
    let from = Path::of("route_defaults");
    correct::<Route>(&mut defaults, &from, built_in, problems);
    let mut routes = BTreeMap::new();
    for (name, mut entry) in entries {
        let at = Path::of("routes").key(&name);
        let Value::Dict(_, settings) = &mut entry else {
            problems.refuse(&at, format!("must be a mapping, not {}", kind_of(&entry.to_actual())));
            continue;
        };
        fill(settings, &defaults, &at, &from, &mut problems.origins);
        let route = read::<Route>(settings, &at, &defaults, problems);
        routes.extend(route.and_then(|route| route.check(&name, &at, around, problems)).map(|route| (name, route)));
    }
    check_forwarding(&routes, around, problems);
    routes
}

impl Route {
    fn check(self, name: &str, at: &Path, around: &Surroundings, problems: &mut Problems) -> Option<RouteConfig> {
        if !around.sink_names.contains(&*self.sink) {
            problems.add(&at.key("sink"), format!("sink {}", unknown(&self.sink, around.sink_names)));
        }
        let lease = self.lease;
        if let Some(timeout) = around.sinks.get(&*self.sink).map(|sink| sink.timeout())
            && lease.0 < timeout.saturating_add(LEASE_MARGIN)
            && !problems.is_refused(&at.key("lease"))
            && !problems.is_refused(&Path::of("sinks").key(&*self.sink).key("timeout"))
        {
            let [timeout, margin]: [Period; 2] = [Period(timeout), Period(LEASE_MARGIN)];
            let text = format!("`{lease}` is too short for the timeout of its sink, {timeout}, and {margin}");
            problems.add(&at.key("lease"), text);
        }
        let largest: Size = Size(around.max_payload.saturating_add(LARGEST_OVERHEAD));
        let bytes = self.max_in_flight_bytes;
        if bytes < largest {
            let text = format!("`{bytes}` is too small for one message: server.max_payload and 128KiB, {largest}");
            problems.add(&at.key("max_in_flight_bytes"), text);
        }
        let Retry { max_attempts, initial, factor, max, jitter } = self.retry;
        let backoff = GrowingDelay { initial, factor, max, jitter }.check(&at.key("retry"), problems);
        let mut sources = around.sources.values();
        let read_again = sources.any(|source| source.reads_again() && **source.route() == *name);
        let unless_said = read_again.then_some(MEMORY_OF_READERS);
        let partitions = self.partitions.0;
        Some(RouteConfig {
            sink: self.sink,
            partitions: u16::try_from(partitions).expect("at most 256"),
            lease: lease.0,
            max_in_flight: usize::try_from(self.max_in_flight.0).expect("at most 100000"),
            max_in_flight_bytes: bytes.0,
            retry: RetryPolicy { max_attempts: u32::try_from(max_attempts.0).expect("within u32"), backoff: backoff? },
            remember: self.remember.check(unless_said, &at.key("remember"), problems),
            history: self.history.check(&at.key("history"), problems),
            limits: self.limits.check(partitions, largest.0, &at.key("limits"), problems),
            dead: DeadLimits {
                max_age: self.dead.max_age.map(|age| age.0),
                max_count: shared(self.dead.max_count, partitions, &at.key("dead").key("max_count"), problems),
            },
            forward: self.dead.forwarding(name, &at.key("dead"), problems),
            window: self.window.and_then(Windows::calendar),
            flow: self.flow.map(|flow| flow.check(partitions, at, problems)),
        })
    }
}

impl Dead {
    /// The route that a default names does not forward to itself. `at` is the path of `dead`.
    fn forwarding(self, name: &str, at: &Path, problems: &mut Problems) -> Option<Forwarding> {
        let is_own = |path: &Path, default: &str| {
            problems.origins.get(path).is_some_and(|written| problems.origins.get(&Path::of(default)) != Some(written))
        };
        let then = at.key("then");
        let Some(route) = self.forward else {
            if is_own(&then, THEN_DEFAULT) {
                problems.warn(&then, "has no effect without `forward`");
            }
            return None;
        };
        if *route == *name && !is_own(&at.key("forward"), FORWARD_DEFAULT) {
            return None;
        }
        Some(Forwarding { route, purges: self.then == Then::Purge })
    }
}

/// Refuses unknown routes, cycles, and chains of more than `MAX_HOPS` routes.
fn check_forwarding(routes: &BTreeMap<String, RouteConfig>, around: &Surroundings, problems: &mut Problems) {
    let names = around.route_names;
    for name in routes.keys() {
        let at = Path::of("routes").key(name).key("dead").key("forward");
        let (mut chain, mut last) = (vec![&**name], routes.get(name));
        while let Some(next) = last.and_then(|route| route.forward.as_ref()).map(|forwarding| &*forwarding.route) {
            if chain.len() == 1 && !names.contains(next) {
                let hint = if around.sink_names.contains(next) { "; it is a sink, name a route to it" } else { "" };
                problems.add(&at, format!("route {}{hint}", unknown(next, names)));
                break;
            }
            if next == &**name {
                let text = if chain.len() == 1 { "is the route itself".to_owned() } else { cycle(&chain, next) };
                problems.add(&at, text);
                break;
            }
            chain.push(next);
            // A cycle that does not lead back here is reported at its own routes.
            if chain.len() > MAX_HOPS + 1 {
                let text = format!("forwards over more than {MAX_HOPS} routes: {}", chain.join(", "));
                problems.add(&at, text);
                break;
            }
            last = routes.get(next);
        }
    }
}

fn cycle(chain: &[&str], back: &str) -> String {
    format!("forwards in a circle: {}, {back}", chain.join(", "))
}

impl Limits {
    /// `largest`: maximum size of a message, in bytes. A partition with a smaller share would never accept it.
    fn check(&self, partitions: u64, largest: u64, at: &Path, problems: &mut Problems) -> RouteLimits {
        let least: Size = Size(largest.saturating_mul(partitions));
        if let Some(bytes) = self.bytes.filter(|bytes| *bytes < least) {
            let text = format!(
                "`{bytes}` is too small for one message in each partition: server.max_payload and 128KiB, {least}"
            );
            problems.add(&at.key("bytes"), text);
        }
        RouteLimits {
            messages: shared(self.messages, partitions, &at.key("messages"), problems),
            bytes: self.bytes.map(|bytes| bytes.0),
            delay: self.delay.map(|delay| delay.0),
        }
    }
}

/// A number that the partitions share: at least one for each.
fn shared(number: Option<Count>, partitions: u64, at: &Path, problems: &mut Problems) -> Option<u64> {
    if let Some(number) = number.filter(|number| number.0 < partitions) {
        problems.add(at, format!("`{number}` is not within {partitions} .. {MOST}"));
    }
    number.map(|number| number.0)
}

impl History {
    fn check(&self, at: &Path, problems: &mut Problems) -> Option<HistoryLimits> {
        // A default of `max` for all routes is allowed without a `for`.
        let [written, default] =
            [at.key("max"), Path::of(HISTORY_MAX_DEFAULT)].map(|path| problems.origins.get(&path).cloned());
        if self.r#for.is_none() && written.is_some() && written != default && !problems.is_refused(&at.key("for")) {
            problems.add_at(written, &at.key("for"), "is missing: without it `max` means nothing");
        }
        let max = u32::try_from(self.max.0).expect("at most 10000000");
        Some(HistoryLimits { period: self.r#for?.0, max })
    }
}

impl RememberIds {
    /// `unless_said`: the period without a `for`.
    fn check(&self, unless_said: Option<Duration>, at: &Path, problems: &mut Problems) -> Option<Remember> {
        let period = self.r#for.map(|period| period.0).or(unless_said);
        // A default of `max` for all routes is allowed without a `for`.
        let [written, default] =
            [at.key("max"), Path::of(MAX_DEFAULT)].map(|path| problems.origins.get(&path).cloned());
        if period.is_none() && written.is_some() && written != default && !problems.is_refused(&at.key("for")) {
            problems.add_at(written, &at.key("for"), "is missing: without it `max` means nothing");
        }
        Some(Remember { period: period?, max: u32::try_from(self.max.0).expect("at most 10000000") })
    }
}
