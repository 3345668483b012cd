//! The whole configuration: its sections, and the checks across sections.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use figment::value::{Dict, Value};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value as Json;

use super::{
    Config, LogConfig,
    connectors::Context,
    deserialize::unknown,
    entries::checked_names,
    fingerprint::Fingerprints,
    problem::{Path, Problems},
    redis::{RedisConfig, RedisTopology},
    registry::Registry,
    routes::{self, Route, Surroundings},
    schedules::{self, ScheduleEntry},
    server::Server,
    tracing::Tracing,
    value::{Period, Size, Whole},
};
use crate::{source::SourceSettings, time::MAX_MILLIS};

/// The configuration of punctual. Text expands `${VAR}`, `${VAR:-default}` and `${file:/path}`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "punctual")]
pub struct Root {
    redis: RedisConfig,
    server: Server,
    log: LogConfig,
    tracing: Tracing,
    /// Maximum time that a stop waits for messages under way: 100ms to 10m.
    shutdown_timeout: Period<100, 600_000>,
    /// Maximum time between two looks at a queue without due messages, in case a wake-up is lost: 100ms to 5m. With
    /// `redis.cluster` the default is 90s.
    max_sleep: Period<100, 300_000>,
    /// Maximum bytes of messages under way on one instance, all routes together: 1MiB to 1024GiB. Each route can exceed
    /// it by one message of maximum size.
    max_in_flight_bytes: Size<MIB, { 1 << 40 }>,
    /// Defaults of all sinks, by type.
    #[schemars(with = "BTreeMap<String, Json>")]
    sink_defaults: BTreeMap<String, Dict>,
    /// Sinks by name: where messages are sent.
    #[schemars(with = "BTreeMap<String, Json>")]
    sinks: Dict,
    /// Defaults of all routes.
    #[schemars(with = "Route")]
    route_defaults: Dict,
    /// Routes by name: queues and their policies.
    #[schemars(with = "BTreeMap<String, Route>")]
    routes: Dict,
    /// Defaults of all sources, by type.
    #[schemars(with = "BTreeMap<String, Json>")]
    source_defaults: BTreeMap<String, Dict>,
    /// Sources by name: where messages come from, besides the API.
    #[schemars(with = "BTreeMap<String, Json>")]
    sources: Dict,
    /// Recurring schedules by name.
    #[schemars(with = "BTreeMap<String, ScheduleEntry>")]
    schedules: Dict,
    /// Revision of `schedules`: 0 to 9007199254740991. Raise it when you remove a schedule: the schedule is deleted,
    /// and an instance with an older file does not set it again.
    schedules_revision: Whole<0, MAX_MILLIS>,
}

/// Bytes.
const MIB: u64 = 1 << 20;

/// Default of `max_sleep` on a cluster, where polls of several partitions cannot share a call.
const MAX_SLEEP_ON_CLUSTER: Duration = Duration::from_secs(90);

pub fn config(root: Root, registry: &Registry, built_in: &Dict, problems: &mut Problems) -> Config {
    let sink_names = checked_names(&root.sinks, "sinks", problems);
    let route_names = checked_names(&root.routes, "routes", problems);
    checked_names(&root.sources, "sources", problems);
    root.redis.check(problems);
    let max_payload = root.server.max_payload.0;
    let server = root.server.check(&route_names, problems);
    let is_cluster = matches!(root.redis.topology(), RedisTopology::Cluster(_));
    let context = Context { key_prefix: &root.redis.key_prefix, routes: &route_names, is_cluster };
    let built_in = |name: &str| built_in.get(name).and_then(Value::as_dict).expect("a section of the defaults");
    let of_types = built_in(registry.sinks.defaults);
    let sinks = registry.sinks.read(root.sinks, root.sink_defaults, of_types, &context, problems);
    let of_types = built_in(registry.sources.defaults);
    let sources = registry.sources.read(root.sources, root.source_defaults, of_types, &context, problems);
    check_sources(&sources, &route_names, is_cluster, problems);
    let around = Surroundings {
        sink_names: &sink_names,
        route_names: &route_names,
        sinks: &sinks,
        sources: &sources,
        max_payload,
    };
    let routes = routes::all(root.routes, root.route_defaults, built_in("route_defaults"), &around, problems);
    checked_names(&root.schedules, "schedules", problems);
    let revision = root.schedules_revision.0;
    let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
    let schedules = schedules::all(root.schedules, revision, &routes, &route_names, now, problems);
    let is_set = problems.origins.contains_key(&Path::of("max_sleep"));
    let max_sleep = if is_cluster && !is_set { MAX_SLEEP_ON_CLUSTER } else { root.max_sleep.0 };
    for name in sinks.keys().filter(|name| routes.values().all(|route| *route.sink != ***name)) {
        problems.warn(&Path::of("sinks").key(name), "no route uses it");
    }
    Config {
        redis: root.redis,
        server,
        log: root.log,
        tracing: root.tracing.check(problems),
        shutdown_timeout: root.shutdown_timeout.0,
        max_sleep,
        max_in_flight_bytes: root.max_in_flight_bytes.0,
        sinks,
        routes,
        sources,
        schedules,
        schedules_revision: revision,
        fingerprints: Fingerprints::default(),
        warnings: Vec::new(),
    }
}

/// Checks sources against the routes and against each other.
fn check_sources(
    sources: &BTreeMap<String, Arc<dyn SourceSettings>>,
    routes: &BTreeSet<String>,
    is_cluster: bool,
    problems: &mut Problems,
) {
    for (place, (name, source)) in sources.iter().enumerate() {
        let at = Path::of("sources").key(name);
        if !routes.contains(&**source.route()) {
            problems.add(&at.key("route"), format!("route {}", unknown(source.route(), routes)));
        }
        if is_cluster && source.is_on_redis() {
            let text = "takes keys of other programs: on a cluster they are on another server than the queue, and no script moves a message from there to here in one step";
            problems.add(&at.key("type"), text);
        }
        for (other_name, other) in sources.iter().take(place) {
            if let Some((key, text)) = source.conflict(&**other, other_name) {
                problems.add(&at.key(key), text);
            }
        }
    }
}
