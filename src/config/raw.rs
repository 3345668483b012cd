//! The configuration as it is written: the keys, their descriptions, and what kind of value each takes. Nothing
//! is required here and no default is spelled: those come from `config/defaults.yaml` before this is read.
//! Descriptions end up in the JSON Schema.

use std::{collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    LogFormat,
    raw_server::RawServer,
    raw_source::{RawSource, RawSourceDefaults},
    value::{Flag, List, Period, Property, Real, Size, Whole},
};
use crate::secret::Secret;
use crate::sink::envelope::ListFormat;

/// The configuration of punctual. Text expands `${VAR}`, `${VAR:-default}` and `${file:/path}`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "punctual")]
pub struct RawConfig {
    pub redis: RawRedis,
    pub server: RawServer,
    pub log: RawLog,
    /// After SIGTERM, how long messages under way may take to finish: 100ms to 10m.
    pub shutdown_timeout: Option<Period>,
    /// Longest sleep of a route, should a wake-up get lost: 100ms to 5m.
    pub max_sleep: Option<Period>,
    pub sink_defaults: RawSinkDefaults,
    /// Where messages go, by name.
    pub sinks: BTreeMap<String, RawSink>,
    /// What every route starts from.
    pub route_defaults: RawRoute,
    /// Named queues.
    pub routes: BTreeMap<String, RawRoute>,
    pub source_defaults: RawSourceDefaults,
    /// Where messages come from beside the API, by name.
    pub sources: BTreeMap<String, RawSource>,
}

/// The Redis that keeps the messages.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawRedis {
    /// `redis://`, `rediss://` or `unix://`, or `embedded`: a private redis-server child.
    pub url: Option<Secret>,
    /// ACL user, instead of in the URL.
    pub username: Option<String>,
    /// Instead of in the URL.
    pub password: Option<Secret>,
    /// PEM; for `rediss://`, in place of the system's certificates.
    pub ca_file: Option<PathBuf>,
    /// PEM; with `key_file`.
    pub cert_file: Option<PathBuf>,
    /// PEM; with `cert_file`.
    pub key_file: Option<PathBuf>,
    /// Begins every key: 1 to 64 of A-Za-z0-9._-
    pub key_prefix: Option<String>,
    /// For `embedded`: its data, socket and log.
    pub data_dir: Option<PathBuf>,
    /// Longest time that one command may take: 100ms to 60s.
    pub timeout: Option<Period>,
    /// Most memory of the embedded Redis, which takes no more messages then: at least 16MiB.
    pub max_memory: Option<Size>,
    /// Start although Redis may evict keys. It will lose messages.
    pub allow_eviction: Option<Flag>,
}

/// Logs, on standard error.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawLog {
    pub format: Option<LogFormat>,
    pub level: Option<RawLevel>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RawLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// What every sink of a type starts from.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawSinkDefaults {
    pub http: RawHttp,
    pub kafka: RawKafka,
    pub redis_list: RawRedisList,
    pub rabbitmq: RawRabbitMq,
}

/// A sink: `type` decides what else it takes.
// As serde reads it, `{http: {...}}`: `load` takes the `type` out first, because the path of a mistake gets
// lost within an internally tagged enum.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(tag = "type")]
pub enum RawSink {
    Http(RawHttp),
    Kafka(RawKafka),
    RedisList(RawRedisList),
    #[serde(rename = "rabbitmq")]
    RabbitMq(RawRabbitMq),
}

/// The values of a sink's `type`.
pub const SINK_TYPES: [&str; 4] = ["http", "kafka", "redis_list", "rabbitmq"];

/// POST to an HTTP endpoint.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawHttp {
    /// `http://` or `https://`; required. Path and query may have `{key}`, `{route}`, `{header:NAME}`.
    pub url: Option<Secret>,
    /// Required with placeholders: patterns of the paths that they may become, percent-encoded; with the query
    /// where it has placeholders. `*` is any text without `/`, `**` any text, `?` one character.
    pub allow: List<String>,
    /// Whether what stands for a placeholder in the path may have `/` and `\`: they are sent percent-encoded, and many
    /// servers make path segments of them.
    pub allow_slashes: Option<Flag>,
    /// Longest time of one attempt: 100ms to 1h; with 500ms it must fit in the lease of every route.
    pub timeout: Option<Period>,
    /// Standard Webhooks: `whsec_` and base64 of at least 24 bytes (HMAC-SHA256), or `whsk_` and base64 of the seed of an
    /// ed25519 key. Every secret signs.
    pub signing_secrets: List<Secret>,
    /// Sent with every request, before those of the message. Authorization and Content-Type may be among them.
    pub headers: BTreeMap<String, Secret>,
    /// PEM; for `https://`, in place of the system's certificates.
    pub ca_file: Option<PathBuf>,
    /// PEM; with `key_file`.
    pub cert_file: Option<PathBuf>,
    /// PEM; with `cert_file`.
    pub key_file: Option<PathBuf>,
}

/// A record in a Kafka topic.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawKafka {
    /// `host:port` of one or more of the cluster's brokers; required.
    pub brokers: List<String>,
    /// Required. It may have `{key}`, `{route}`, `{header:NAME}`.
    pub topic: Option<String>,
    /// Required with placeholders: patterns of what `topic` may become. `*` is any text, `?` one character.
    pub allow: List<String>,
    /// Longest time of one batch: 100ms to 1h; with 500ms it must fit in the lease of every route.
    pub timeout: Option<Period>,
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

/// RPUSH to a Redis list.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawRedisList {
    /// The list; required. It may have `{key}`, `{route}`, `{header:NAME}`; `{{` and `}}` are braces.
    pub key: Option<String>,
    /// Required with placeholders: patterns of what `key` may become. `*` is any text without `/`, `**` any text,
    /// `?` one character.
    pub allow: List<String>,
    pub format: Option<ListFormat>,
    /// Longest time of one batch: 100ms to 1h; with 500ms it must fit in the lease of every route.
    pub timeout: Option<Period>,
    /// Another Redis than the queue's: `redis://`, `rediss://` or `unix://`.
    pub url: Option<Secret>,
    /// ACL user, instead of in the URL.
    pub username: Option<String>,
    /// Instead of in the URL.
    pub password: Option<Secret>,
    /// PEM; for `rediss://`, in place of the system's certificates.
    pub ca_file: Option<PathBuf>,
    /// PEM; with `key_file`.
    pub cert_file: Option<PathBuf>,
    /// PEM; with `cert_file`.
    pub key_file: Option<PathBuf>,
}

/// Publish to an exchange of RabbitMQ, with publisher confirms.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawRabbitMq {
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
    /// It must exist; required. Empty is the default exchange, which routes to the queue that the routing key names.
    /// It may have `{key}`, `{route}`, `{header:NAME}`; `{{` and `}}` are braces.
    pub exchange: Option<String>,
    /// In place of the message's `key`; it may have the same.
    pub routing_key: Option<String>,
    /// Required with placeholders: patterns of what `routing_key` may become, or where `exchange` has them of
    /// `exchange/routing_key`. `*` is any text without `/`, `**` any text, `?` one character.
    pub allow: List<String>,
    /// Longest time of one batch: 100ms to 1h; with 500ms it must fit in the lease of every route.
    pub timeout: Option<Period>,
}

/// A queue and its policy.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawRoute {
    /// Name of a sink; required.
    pub sink: Option<String>,
    /// 1 to 256; cannot be changed while the route holds messages.
    pub partitions: Option<Whole>,
    /// How long a claimed message is ours: 1s to 1h.
    pub lease: Option<Period>,
    /// Most messages under way on one instance: 1 to 100000.
    pub max_in_flight: Option<Whole>,
    /// Most bytes under way on one instance: at least `server.max_payload` and 128KiB.
    pub max_in_flight_bytes: Option<Size>,
    pub retry: RawRetry,
    pub remember: RawRemember,
    pub limits: RawLimits,
    pub dead: RawDead,
}

/// What the route accepts; beyond it the API answers 429. Dead letters do not count.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawLimits {
    /// Most messages that wait or are in flight: `partitions` to 1000000000.
    pub messages: Option<Whole>,
    /// Most bytes of their bodies: for each partition at least `server.max_payload` and 128KiB.
    pub bytes: Option<Size>,
    /// Longest time from acceptance to the due time: 1ms to 100years.
    pub delay: Option<Period>,
}

/// Which dead letters are kept; the oldest are deleted first.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawDead {
    /// How long: 1m to 100years.
    pub max_age: Option<Period>,
    /// How many: `partitions` to 1000000000.
    pub max_count: Option<Whole>,
}

/// Which ids are remembered after delivery or cancellation: scheduling one again changes nothing.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawRemember {
    /// How long: up to 30days; without it, and with 0s, none is.
    pub r#for: Option<Period>,
    /// How many, the latest ones: 1 to 10000000.
    pub max: Option<Whole>,
}

/// What follows a failed attempt.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawRetry {
    /// Attempts before a message is dead: at least 1.
    pub max_attempts: Option<Whole>,
    /// Wait after the first failure: at least 1ms.
    pub initial: Option<Period>,
    /// Times so much after each further failure: 1 to 100.
    pub factor: Option<Real>,
    /// Longest wait.
    pub max: Option<Period>,
    /// Share of the wait that is drawn at random: 0 to 1.
    pub jitter: Option<Real>,
}

/// A wait that grows.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawBackoff {
    /// The first: at least 1ms.
    pub initial: Option<Period>,
    /// Times so much each further time: 1 to 100.
    pub factor: Option<Real>,
    /// Longest wait.
    pub max: Option<Period>,
    /// Share of the wait that is drawn at random: 0 to 1.
    pub jitter: Option<Real>,
}
