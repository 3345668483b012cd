//! Sources as they are written, see `raw`.

use std::{collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    DelayFrom, IdFrom, MemberPayload, ScoreUnit, Start,
    raw::RawBackoff,
    value::{Flag, List, Period, Property, Whole},
};
use crate::secret::Secret;

/// What every source of a type starts from.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawSourceDefaults {
    pub sorted_set: RawSortedSet,
    pub delayqueue: RawDelayQueue,
    pub rabbitmq: RawRabbitMqSource,
    pub kafka: RawKafkaSource,
}

/// A source: `type` decides what else it takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(tag = "type")]
pub enum RawSource {
    SortedSet(RawSortedSet),
    #[serde(rename = "delayqueue")]
    DelayQueue(RawDelayQueue),
    #[serde(rename = "rabbitmq")]
    RabbitMq(RawRabbitMqSource),
    Kafka(RawKafkaSource),
}

/// The values of a source's `type`.
pub const SOURCE_TYPES: [&str; 4] = ["delayqueue", "kafka", "rabbitmq", "sorted_set"];

/// Members of a sorted set on `redis.url`, scored with their due times.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawSortedSet {
    /// Where its messages go; required.
    pub route: Option<String>,
    /// The sorted set; required.
    pub key: Option<String>,
    /// Of the scores; fractions count.
    pub unit: Option<ScoreUnit>,
    /// `member`: it is the payload. `hash`: it names a hash, whose fields make the payload, a JSON object.
    pub payload: Option<MemberPayload>,
    /// Required with `payload: hash`: only hashes whose names begin with it are read and deleted.
    pub hash_prefix: Option<String>,
    /// How often to look where Redis does not tell of changes (`notify-keyspace-events`): 10ms to 5m.
    pub poll: Option<Period>,
}

/// The keys of hdt3213/delayqueue on `redis.url`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawDelayQueue {
    /// Where its messages go; required.
    pub route: Option<String>,
    /// As its producers call the queue; required.
    pub name: Option<String>,
    /// Whether its producers use hash tags.
    pub hash_tag: Option<Flag>,
    /// As its producers have it.
    pub prefix: Option<String>,
    /// How often to look where Redis does not tell of changes (`notify-keyspace-events`): 10ms to 5m.
    pub poll: Option<Period>,
}

/// A queue of RabbitMQ.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawRabbitMqSource {
    /// Where its messages go; required.
    pub route: Option<String>,
    /// `amqp://` or `amqps://`, ending with the virtual host, `/%2f` for the default one; required.
    pub url: Option<Secret>,
    /// Instead of in the URL.
    pub username: Option<String>,
    /// Instead of in the URL.
    pub password: Option<Secret>,
    /// PEM; for `amqps://`, in place of the system's certificates.
    pub ca_file: Option<PathBuf>,
    /// PEM; with `key_file`.
    pub cert_file: Option<PathBuf>,
    /// PEM; with `cert_file`.
    pub key_file: Option<PathBuf>,
    /// It must exist; required.
    pub queue: Option<String>,
    /// Most messages that were taken and are not in Redis yet: 1 to 65535.
    pub prefetch: Option<Whole>,
    /// `ulid`: every message gets a new id. `message_id`: the producer's, which must be unique.
    pub id_from: Option<IdFrom>,
    /// `headers`: `x-delay` or `x-deliver-at`. `x_death`: `backoff`, by how often the message was dead-lettered.
    pub delay_from: Option<DelayFrom>,
    /// For `delay_from: x_death`.
    pub backoff: RawBackoff,
}

/// Topics of Kafka.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawKafkaSource {
    /// Where its messages go; required.
    pub route: Option<String>,
    /// `host:port` of one or more of the cluster's brokers; required.
    pub brokers: List<String>,
    /// Required.
    pub topics: List<String>,
    /// The consumer group, which all instances share; required.
    pub group_id: Option<String>,
    /// Where a group begins at its first start on a topic; what comes later is always read.
    pub start: Option<Start>,
    /// What such a first start finds that is overdue by more is skipped and counted: 1s to 10000 days. Without it nothing
    /// is.
    pub max_overdue: Option<Period>,
    /// SASL; PLAIN, unless `options` have another `sasl.mechanism`. Without TLS only with `security.protocol:
    /// sasl_plaintext` in `options`.
    pub username: Option<String>,
    pub password: Option<Secret>,
    /// PEM; trusted in place of the system's certificates. It or `cert_file` means TLS.
    pub ca_file: Option<PathBuf>,
    /// PEM; with `key_file`.
    pub cert_file: Option<PathBuf>,
    /// PEM; with `cert_file`.
    pub key_file: Option<PathBuf>,
    /// Any other property of librdkafka.
    pub options: BTreeMap<String, Property>,
}
