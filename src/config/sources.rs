//! Checks of sources. A new type of source is a struct in `raw_source`, a function here, and its defaults in the YAML.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    DelayFrom, DelayQueueConfig, KafkaSourceConfig, MemberPayload, RabbitMqSourceConfig, SortedSetConfig, SourceConfig,
    check::millis,
    kafka,
    problem::{Path, Problems},
    raw_source::{RawDelayQueue, RawKafkaSource, RawRabbitMqSource, RawSortedSet, RawSource},
    read::unknown,
    routes, sinks,
    value::{Period, Whole},
};
use crate::secret::Secret;
use crate::sink::template::Place;

const POLL_INTERVAL: &str = "max.poll.interval.ms";
/// Milliseconds. What is on its way to Redis has 5 s to land, brokers 5 s to say where partitions begin and 10 s for
/// a commit.
const MIN_POLL_INTERVAL: u64 = 30_000;

/// What a source has to fit in with.
pub struct Limits<'a> {
    pub routes: &'a BTreeSet<String>,
    pub key_prefix: &'a str,
}

pub fn source(raw: RawSource, at: &Path, limits: &Limits, problems: &mut Problems) -> Option<SourceConfig> {
    match raw {
        RawSource::SortedSet(raw) => sorted_set(raw, at, limits, problems).map(SourceConfig::SortedSet),
        RawSource::DelayQueue(raw) => delay_queue(raw, at, limits, problems).map(SourceConfig::DelayQueue),
        RawSource::RabbitMq(raw) => rabbitmq(raw, at, limits, problems).map(SourceConfig::RabbitMq),
        RawSource::Kafka(raw) => kafka_source(raw, at, limits, problems).map(SourceConfig::Kafka),
    }
}

fn route(raw: Option<String>, at: &Path, limits: &Limits, problems: &mut Problems) -> Option<Arc<str>> {
    let at = at.key("route");
    let route = problems.require(&at, raw)?;
    if !limits.routes.contains(&route) {
        problems.add(&at, format!("route {}", unknown(&route, limits.routes)));
    }
    Some(route.into())
}

fn poll(raw: Option<Period>, at: &Path, problems: &mut Problems) -> Option<std::time::Duration> {
    problems.within(&at.key("poll"), raw, millis(10)..=millis(300_000)).map(|poll| poll.0)
}

/// Text that must be there and not empty.
fn text(raw: Option<String>, at: &Path, problems: &mut Problems) -> Option<String> {
    problems.require(at, raw.filter(|text| !text.is_empty()))
}

fn sorted_set(raw: RawSortedSet, at: &Path, limits: &Limits, problems: &mut Problems) -> Option<SortedSetConfig> {
    let route = route(raw.route, at, limits, problems);
    let key = text(raw.key, &at.key("key"), problems);
    let prefix = limits.key_prefix;
    let own = |key: &&String| key.starts_with(&format!("{{{prefix}:")) || **key == format!("{prefix}:routes");
    if let Some(key) = key.as_ref().filter(own) {
        problems.add(&at.key("key"), format!("`{}` is one of punctual's own keys", key.escape_debug()));
    }
    let unit = problems.require(&at.key("unit"), raw.unit);
    let payload = problems.require(&at.key("payload"), raw.payload);
    let hash_prefix = hash_prefix(raw.hash_prefix, payload, at, problems);
    let poll = poll(raw.poll, at, problems);
    Some(SortedSetConfig { route: route?, key: key?, unit: unit?, hash_prefix, poll: poll? })
}

fn hash_prefix(
    raw: Option<String>,
    payload: Option<MemberPayload>,
    at: &Path,
    problems: &mut Problems,
) -> Option<String> {
    let at = at.key("hash_prefix");
    match payload? {
        MemberPayload::Member => {
            if raw.is_some() {
                problems.add(&at, "does nothing without `payload: hash`");
            }
            None
        }
        MemberPayload::Hash => {
            let prefix = text(raw, &at, problems)?;
            if prefix.starts_with('{') {
                problems.add(&at, "must not begin with `{`: so do punctual's own keys");
            }
            Some(prefix)
        }
    }
}

fn delay_queue(raw: RawDelayQueue, at: &Path, limits: &Limits, problems: &mut Problems) -> Option<DelayQueueConfig> {
    let route = route(raw.route, at, limits, problems);
    let name = text(raw.name, &at.key("name"), problems);
    let prefix = text(raw.prefix, &at.key("prefix"), problems);
    let hash_tag = problems.require(&at.key("hash_tag"), raw.hash_tag);
    if prefix.as_deref() == Some(limits.key_prefix) && hash_tag.is_some_and(|hash_tag| hash_tag.0) {
        problems.add(&at.key("prefix"), "with a hash tag, keys of this prefix are punctual's own");
    }
    let poll = poll(raw.poll, at, problems);
    Some(DelayQueueConfig { route: route?, name: name?, prefix: prefix?, hash_tag: hash_tag?.0, poll: poll? })
}

fn rabbitmq(
    raw: RawRabbitMqSource,
    at: &Path,
    limits: &Limits,
    problems: &mut Problems,
) -> Option<RabbitMqSourceConfig> {
    let route = route(raw.route, at, limits, problems);
    let tls = [raw.ca_file, raw.cert_file, raw.key_file];
    let server = sinks::rabbitmq_server(raw.url, raw.username, raw.password, tls, at, problems);
    let queue = text(raw.queue, &at.key("queue"), problems);
    if let Some(queue) = &queue {
        problems.check(&at.key("queue"), Place::RoutingKey.check(queue));
    }
    let prefetch = problems.within(&at.key("prefetch"), raw.prefetch, Whole(1)..=Whole(65_535));
    let id_from = problems.require(&at.key("id_from"), raw.id_from);
    let delay_from = problems.require(&at.key("delay_from"), raw.delay_from);
    let backoff = routes::backoff(&raw.backoff, &at.key("backoff"), problems);
    Some(RabbitMqSourceConfig {
        route: route?,
        server: server?,
        queue: queue?,
        prefetch: u16::try_from(prefetch?.0).expect("at most 65535"),
        id_from: id_from?,
        backoff: match delay_from? {
            DelayFrom::Headers => None,
            DelayFrom::XDeath => Some(backoff?),
        },
    })
}

fn kafka_source(raw: RawKafkaSource, at: &Path, limits: &Limits, problems: &mut Problems) -> Option<KafkaSourceConfig> {
    let route = route(raw.route, at, limits, problems);
    if raw.topics.is_empty() {
        problems.require::<()>(&at.key("topics"), None);
    }
    let mut topics = Vec::new();
    for (place, topic) in raw.topics.items() {
        problems.check(&at.key("topics").key(place.to_string()), Place::Topic.check(&topic));
        topics.push(topic);
    }
    let group_id = text(raw.group_id, &at.key("group_id"), problems);
    let start = problems.require(&at.key("start"), raw.start);
    let most = millis(10_000 * 24 * 3_600_000);
    let within = |period| problems.within(&at.key("max_overdue"), Some(period), millis(1_000)..=most);
    // Without one that is wrong nothing starts anyway.
    let max_overdue = raw.max_overdue.and_then(within).map(|most| most.0);
    let tls = [raw.ca_file, raw.cert_file, raw.key_file];
    let access = kafka::Access {
        brokers: raw.brokers,
        username: raw.username,
        password: raw.password,
        tls,
        options: raw.options,
        refused: &kafka::REFUSED_OF_SOURCES,
    };
    let server = kafka::server(access, at, problems);
    let given = server.options.get(POLL_INTERVAL).map(Secret::expose);
    if let Some(given) = given.filter(|given| given.trim().parse().is_ok_and(|millis: u64| millis < MIN_POLL_INTERVAL))
    {
        let text = format!("`{given}` is below {MIN_POLL_INTERVAL}: a rebalance waits for Redis and for a commit");
        problems.add(&at.key("options").key(POLL_INTERVAL), text);
    }
    Some(KafkaSourceConfig { route: route?, server, topics, group_id: group_id?, start: start?, max_overdue })
}

/// A group hands each partition to one of its members: were they to lead to different routes, chance would tell where
/// a record goes. And ids are `topic:partition:offset`: those of two clusters must not meet on one route.
pub fn check_groups(sources: &BTreeMap<String, SourceConfig>, problems: &mut Problems) {
    let kafka: Vec<_> = sources
        .iter()
        .filter_map(|(name, source)| match source {
            SourceConfig::Kafka(source) => Some((name, source)),
            _ => None,
        })
        .collect();
    for (place, (name, one)) in kafka.iter().enumerate() {
        for (other_name, other) in &kafka[..place] {
            let Some(topic) = one.topics.iter().find(|topic| other.topics.contains(topic)) else { continue };
            let one_cluster = one.server.brokers.iter().any(|broker| other.server.brokers.contains(broker));
            let one_route = one.route == other.route;
            let at = Path::of("sources").key(*name);
            if one_cluster && !one_route && one.group_id == other.group_id {
                let group = one.group_id.escape_debug();
                let text = format!("`{group}` reads topic {topic} for another route too: sources.{other_name}");
                problems.add(&at.key("group_id"), text);
            } else if !one_cluster && one_route {
                let text = format!(
                    "{topic} of other brokers leads to this route too (sources.{other_name}), with the same ids: give it \
                     another route; if they are one cluster, name a common broker"
                );
                problems.add(&at.key("topics"), text);
            }
        }
    }
}

/// Two sources on the same keys would compete, and with different units one of them would be early.
pub fn check_keys(sources: &BTreeMap<String, SourceConfig>, problems: &mut Problems) {
    let mut seen: BTreeMap<(&str, &str, bool), &str> = BTreeMap::new();
    for (name, source) in sources {
        let (keys, setting) = match source {
            SourceConfig::SortedSet(set) => ((&*set.key, "", false), "key"),
            SourceConfig::DelayQueue(queue) => ((&*queue.name, &*queue.prefix, queue.hash_tag), "name"),
            SourceConfig::RabbitMq(_) | SourceConfig::Kafka(_) => continue,
        };
        if let Some(other) = seen.insert(keys, name) {
            problems.add(&Path::of("sources").key(name).key(setting), format!("is that of sources.{other} too"));
        }
    }
}
