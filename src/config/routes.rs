//! Checks of routes, alone and against their sinks.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    RouteConfig,
    check::millis,
    entries::fill,
    problem::{Origins, Path, Problems},
    raw::{RawRemember, RawRetry, RawRoute},
    read::{mapping, read, read_defaults, unknown},
    registry::Section,
    shared::GrowingDelay,
    value::{Period, Size, Whole},
};
use crate::{
    message::{MAX_PARTITIONS, Remember},
    retry::RetryPolicy,
};

/// Time that a lease must hold beside the sink's timeout: for the claim's reply and the settlement.
const LEASE_MARGIN: Duration = Duration::from_millis(500);

/// Longest time for which an ended id is remembered: what repeats later is no repetition any more.
const LONGEST_MEMORY: Duration = Duration::from_hours(30 * 24);

/// How long a route with a Kafka source remembers, unless it says so: after a crash a topic is read again from the last
/// commit, and nothing of it should come twice.
const MEMORY_OF_KAFKA: Period = Period(Duration::from_mins(10));

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

/// Every route that can be read, mistakes or not.
pub fn all(section: Section, limits: &Limits, problems: &mut Problems) -> BTreeMap<String, RouteConfig> {
    let from = Path::of(section.defaults_name);
    let mut defaults = section.defaults;
    read_defaults::<RawRoute>(&mut defaults, &from, section.built_in, problems);
    fill(&mut defaults, section.built_in, &from, &from, &mut Origins::new());
    let mut routes = BTreeMap::new();
    for (name, mut entry) in section.entries {
        let at = Path::of(section.name).key(&name);
        let Some(settings) = mapping(&mut entry, &at, problems) else { continue };
        fill(settings, &defaults, &at, &from, &mut problems.origins);
        let raw = read::<RawRoute>(settings, &at, &defaults, problems);
        routes.extend(raw.and_then(|raw| route(&name, raw, limits, problems)).map(|route| (name, route)));
    }
    routes
}

fn route(name: &str, raw: RawRoute, limits: &Limits, problems: &mut Problems) -> Option<RouteConfig> {
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
        let [timeout, margin]: [Period; 2] = [Period(*timeout), Period(LEASE_MARGIN)];
        let text = format!("`{lease}` is too short for the timeout of its sink, {timeout}, and {margin}");
        problems.add(&at.key("lease"), text);
    }
    let max_in_flight = problems.within(&at.key("max_in_flight"), raw.max_in_flight, Whole(1)..=Whole(100_000));
    let bytes_at = at.key("max_in_flight_bytes");
    let max_in_flight_bytes = problems.require(&bytes_at, raw.max_in_flight_bytes);
    let smallest: Size = Size(limits.max_payload.unwrap_or(0).saturating_add(LARGEST_OVERHEAD));
    if let Some(bytes) = max_in_flight_bytes.filter(|bytes| *bytes < smallest) {
        let text = format!("`{bytes}` is too small for one message: server.max_payload and 128KiB, {smallest}");
        problems.add(&bytes_at, text);
    }
    let retry = retry(&raw.retry, &at.key("retry"), problems);
    let unless_said = limits.from_kafka.contains(name).then_some(MEMORY_OF_KAFKA);
    let remember = remember(&raw.remember, unless_said, &at.key("remember"), problems);
    Some(RouteConfig {
        sink: sink?.into(),
        partitions: u16::try_from(partitions?.0).expect("at most 256"),
        lease: lease?.0,
        max_in_flight: usize::try_from(max_in_flight?.0).expect("at most 100000"),
        max_in_flight_bytes: max_in_flight_bytes?.0,
        retry: retry?,
        remember,
    })
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
    let backoff = GrowingDelay { initial: raw.initial?, factor: raw.factor?, max: raw.max?, jitter: raw.jitter? };
    let backoff = backoff.check(at, problems);
    Some(RetryPolicy { max_attempts: u32::try_from(max_attempts?.0).expect("within u32"), backoff: backoff? })
}
