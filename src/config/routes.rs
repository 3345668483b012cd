//! Checks of routes, alone and against their sinks.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    RouteConfig,
    check::millis,
    problem::{Path, Problems},
    raw::{RawBackoff, RawDead, RawLimits, RawRemember, RawRetry, RawRoute},
    read::unknown,
    value::{Period, Size, Whole},
};
use crate::{
    message::{DeadLimits, MAX_PARTITIONS, Remember, RouteLimits},
    retry::{Backoff, RetryPolicy},
};

/// Time that a lease must hold beside the sink's timeout: for the claim's reply and the settlement.
const LEASE_MARGIN: Duration = Duration::from_millis(500);

/// Longest time for which an ended id is remembered: what repeats later is no repetition any more.
const LONGEST_MEMORY: Duration = Duration::from_hours(30 * 24);

/// How long a route with a Kafka source remembers, unless it says so: after a crash a topic is read again from the last
/// commit, and nothing of it should come twice.
const MEMORY_OF_KAFKA: Period = Period(Duration::from_mins(10));

/// Longest `limits.delay` and `dead.max_age`: 100 years.
const LONGEST: Period = Period(Duration::from_hours(100 * 8766));

/// Largest `limits.messages` and `dead.max_count`: more than a Redis holds.
const MOST: Whole = Whole(1_000_000_000);

/// Where the default of `remember.max` for all routes stands.
const MAX_DEFAULT: &str = "route_defaults.remember.max";

/// What a message may take beside its payload, in bytes: metadata (64 KiB) and encoding, with room.
const LARGEST_OVERHEAD: u64 = 128 << 10;

/// What a route has to fit in with.
pub struct Limits<'a> {
    pub sinks: &'a BTreeSet<String>,
    /// By sink; not all are known when there are mistakes.
    pub timeouts: &'a BTreeMap<String, Duration>,
    /// Bytes.
    pub max_payload: Option<u64>,
    /// Routes with a Kafka source.
    pub from_kafka: &'a BTreeSet<String>,
}

pub fn route(name: &str, raw: RawRoute, limits: &Limits, problems: &mut Problems) -> Option<RouteConfig> {
    let at = &Path::of("routes").key(name);
    let sink = problems.require(&at.key("sink"), raw.sink);
    if let Some(sink) = sink.as_ref().filter(|sink| !limits.sinks.contains(*sink)) {
        problems.add(&at.key("sink"), format!("sink {}", unknown(sink, limits.sinks)));
    }
    let partitions =
        problems.within(&at.key("partitions"), raw.partitions, Whole(1)..=Whole(u64::from(MAX_PARTITIONS)));
    let lease = problems.within(&at.key("lease"), raw.lease, millis(1_000)..=millis(3_600_000));
    let timeout = sink.as_ref().and_then(|sink| limits.timeouts.get(sink));
    if let (Some(lease), Some(timeout)) = (lease, timeout)
        && lease.0 < timeout.saturating_add(LEASE_MARGIN)
    {
        let (timeout, margin) = (Period(*timeout), Period(LEASE_MARGIN));
        let text = format!("`{lease}` is too short for the timeout of its sink, {timeout}, and {margin}");
        problems.add(&at.key("lease"), text);
    }
    let max_in_flight = problems.within(&at.key("max_in_flight"), raw.max_in_flight, Whole(1)..=Whole(100_000));
    let bytes_at = at.key("max_in_flight_bytes");
    let max_in_flight_bytes = problems.require(&bytes_at, raw.max_in_flight_bytes);
    let smallest = limits.max_payload.unwrap_or(0).saturating_add(LARGEST_OVERHEAD);
    if let Some(bytes) = max_in_flight_bytes.filter(|bytes| bytes.0 < smallest) {
        let text = format!("`{bytes}` is too small for one message: server.max_payload and 128KiB, {}", Size(smallest));
        problems.add(&bytes_at, text);
    }
    let retry = retry(&raw.retry, &at.key("retry"), problems);
    let unless_said = limits.from_kafka.contains(name).then_some(MEMORY_OF_KAFKA);
    let remember = remember(&raw.remember, unless_said, &at.key("remember"), problems);
    let (limits, dead) = (
        self::limits(&raw.limits, partitions, smallest, &at.key("limits"), problems),
        dead(&raw.dead, partitions, &at.key("dead"), problems),
    );
    Some(RouteConfig {
        sink: sink?.into(),
        partitions: u16::try_from(partitions?.0).expect("at most 256"),
        lease: lease?.0,
        max_in_flight: usize::try_from(max_in_flight?.0).expect("at most 100000"),
        max_in_flight_bytes: max_in_flight_bytes?.0,
        retry: retry?,
        remember,
        limits,
        dead,
    })
}

/// `largest`: of a message, in bytes: a partition's share that is smaller would never take it.
fn limits(raw: &RawLimits, partitions: Option<Whole>, largest: u64, at: &Path, problems: &mut Problems) -> RouteLimits {
    let messages = most(raw.messages, partitions, &at.key("messages"), problems);
    let bytes_at = at.key("bytes");
    let least = largest.saturating_mul(partitions.map_or(1, |number| number.0));
    if let Some(bytes) = raw.bytes.filter(|bytes| bytes.0 < least) {
        let text = format!(
            "`{bytes}` is too small for one message in each partition: server.max_payload and 128KiB, {}",
            Size(least)
        );
        problems.add(&bytes_at, text);
    }
    let delay = raw.delay.and_then(|delay| problems.within(&at.key("delay"), Some(delay), millis(1)..=LONGEST));
    RouteLimits { messages, bytes: raw.bytes.map(|bytes| bytes.0), delay: delay.map(|delay| delay.0) }
}

fn dead(raw: &RawDead, partitions: Option<Whole>, at: &Path, problems: &mut Problems) -> DeadLimits {
    let max_age = raw.max_age.and_then(|age| problems.within(&at.key("max_age"), Some(age), millis(60_000)..=LONGEST));
    let max_count = most(raw.max_count, partitions, &at.key("max_count"), problems);
    DeadLimits { max_age: max_age.map(|age| age.0), max_count }
}

/// A number of messages, of which each partition has a share.
fn most(number: Option<Whole>, partitions: Option<Whole>, at: &Path, problems: &mut Problems) -> Option<u64> {
    let least = Whole(partitions.map_or(1, |number| number.0.max(1)));
    number.and_then(|number| problems.within(at, Some(number), least..=MOST)).map(|number| number.0)
}

/// `unless_said`: how long without a `for`.
fn remember(raw: &RawRemember, unless_said: Option<Period>, at: &Path, problems: &mut Problems) -> Option<Remember> {
    let max_at = at.key("max");
    let max = problems.within(&max_at, raw.max, Whole(1)..=Whole(10_000_000));
    let Some(period) = raw.r#for.or(unless_said) else {
        // A default for all routes asks for nothing yet.
        let [written, default] = [&max_at, &Path::of(MAX_DEFAULT)].map(|path| problems.origins.get(path).cloned());
        if written.is_some() && written != default {
            problems.add_at(written, &at.key("for"), "is missing: without it `max` means nothing");
        }
        return None;
    };
    let period = problems.within(&at.key("for"), Some(period), millis(0)..=Period(LONGEST_MEMORY));
    Some(Remember { period: period?.0, max: u32::try_from(max?.0).expect("at most 10000000") })
}

fn retry(raw: &RawRetry, at: &Path, problems: &mut Problems) -> Option<RetryPolicy> {
    let most = Whole(u64::from(u32::MAX));
    let max_attempts = problems.within(&at.key("max_attempts"), raw.max_attempts, Whole(1)..=most);
    let &RawRetry { initial, factor, max, jitter, .. } = raw;
    let backoff = backoff(&RawBackoff { initial, factor, max, jitter }, at, problems);
    Some(RetryPolicy { max_attempts: u32::try_from(max_attempts?.0).expect("within u32"), backoff: backoff? })
}

pub fn backoff(raw: &RawBackoff, at: &Path, problems: &mut Problems) -> Option<Backoff> {
    let initial = problems.require(&at.key("initial"), raw.initial);
    let factor = problems.require(&at.key("factor"), raw.factor);
    let max = problems.require(&at.key("max"), raw.max);
    let jitter = problems.require(&at.key("jitter"), raw.jitter);
    let backoff = Backoff::new(initial?.0, factor?.0, max?.0, jitter?.0);
    backoff.map_err(|(key, text)| problems.add(&at.key(key), text)).ok()
}
