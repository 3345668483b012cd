//! The configuration as plain structs. `load` reads and validates it, `app` turns it into live objects.
//!
//! Its way: `source` (files, environment, command line: trees of values and where each was written) ->
//! figment merges them over `config/defaults.yaml` -> `expand` (`${VAR}`) -> `read` (the `raw` structs, which
//! also make the JSON Schema) -> `check` (ranges, and what must fit together) -> `Config`. Every step reports to
//! `Problems` and goes on, so that all mistakes show at once. No report holds a secret.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use ::http::HeaderMap;
use schemars::JsonSchema;
use serde::Deserialize;

pub use self::{
    http::SigningSecret,
    listen::Listen,
    load::{RedisUrlOption, Sources, load, schema},
    problem::{ConfigErrors, Origin, Path, Problem},
    tokens::TokenDigest,
};

use crate::{
    message::{DeadLimits, Remember, RouteLimits},
    retry::{Backoff, RetryPolicy},
    secret::{Secret, SecretUrl},
    sink::{
        envelope::ListFormat,
        template::{Address, Allow, Template},
    },
    store::redis::connection::RedisEndpoint,
};

mod check;
mod entries;
mod expand;
mod http;
mod kafka;
mod listen;
mod load;
mod problem;
mod raw;
mod raw_auth;
mod raw_server;
mod raw_source;
mod read;
mod routes;
mod sinks;
mod source;
mod sources;
#[cfg(test)]
mod tests;
mod tokens;
mod value;

/// A validated configuration.
#[derive(Clone, Debug)]
pub struct Config {
    pub redis: RedisConfig,
    pub server: ServerConfig,
    pub log: LogConfig,
    pub shutdown_timeout: Duration,
    /// Longest sleep of a route that waits for its next due time.
    pub max_sleep: Duration,
    pub sinks: BTreeMap<String, SinkConfig>,
    pub routes: BTreeMap<String, RouteConfig>,
    pub sources: BTreeMap<String, SourceConfig>,
}

#[derive(Clone, Debug)]
pub struct RedisConfig {
    pub url: RedisUrl,
    /// ACL user; `None` leaves it to the URL.
    pub username: Option<String>,
    pub password: Option<Secret>,
    pub ca_file: Option<PathBuf>,
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub key_prefix: String,
    pub data_dir: PathBuf,
    /// Of the embedded server, bytes.
    pub max_memory: u64,
    /// Outer bound of every command.
    pub timeout: Duration,
    pub allow_eviction: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisUrl {
    /// A private redis-server child.
    Embedded,
    /// `redis://`, `rediss://` or `unix://`.
    Url(SecretUrl),
}

#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub listen: Listen,
    /// `None`: plain HTTP.
    pub tls: Option<ServerTls>,
    /// For /livez and /readyz alone.
    pub health_listen: Option<std::net::SocketAddr>,
    /// `None`: half of all.
    pub max_connections_per_address: Option<usize>,
    /// `None`: no token is asked for.
    pub auth: Option<AuthConfig>,
    /// Bytes.
    pub max_payload: usize,
    pub request_timeout: Duration,
}

/// The API's own certificate chain and key, PEM.
#[derive(Clone, Debug)]
pub struct ServerTls {
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
}

#[derive(Clone, Debug)]
pub struct AuthConfig {
    pub tokens: Vec<TokenConfig>,
    /// Whether /metrics answers without a token.
    pub open_metrics: bool,
}

#[derive(Clone, Debug)]
pub struct TokenConfig {
    pub digest: TokenDigest,
    pub rights: Vec<Right>,
    /// Route names, or `*` for all.
    pub routes: Vec<String>,
    /// At least 1; `None`: any number.
    pub messages_per_second: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    Schedule,
    Read,
    Admin,
}

#[derive(Clone, Copy, Debug)]
pub struct LogConfig {
    pub format: LogFormat,
    pub level: tracing::Level,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Clone, Debug)]
pub enum SinkConfig {
    Http(HttpSinkConfig),
    Kafka(KafkaSinkConfig),
    RedisList(RedisListConfig),
    RabbitMq(RabbitMqConfig),
}

impl SinkConfig {
    /// The setting that says where a message goes, if that depends on the message: what is there then cannot be checked.
    pub fn varying(&self) -> Option<&'static str> {
        let (setting, varies) = match self {
            // Only the server is ever looked at.
            SinkConfig::Http(_) => return None,
            SinkConfig::Kafka(kafka) => ("topic", kafka.topic.as_constant().is_none()),
            SinkConfig::RedisList(list) => ("key", list.key.as_constant().is_none()),
            SinkConfig::RabbitMq(rabbitmq) => ("exchange", rabbitmq.address.constant_exchange().is_none()),
        };
        varies.then_some(setting)
    }
}

#[derive(Clone, Debug)]
pub struct HttpSinkConfig {
    /// Path and query may have placeholders (`UrlTemplate`).
    pub url: SecretUrl,
    /// What they may become.
    pub allow: Allow,
    /// Whether values in the path may have `/` and `\`.
    pub allow_slashes: bool,
    pub timeout: Duration,
    /// Standard Webhooks: each signs, so that they can be rotated.
    pub signing_secrets: Vec<SigningSecret>,
    /// Sent with every request; the values are marked as sensitive.
    pub headers: HeaderMap,
    pub ca_file: Option<PathBuf>,
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
}

#[derive(Clone, Debug)]
pub struct KafkaSinkConfig {
    pub server: KafkaServer,
    pub topic: Template,
    /// What it may become.
    pub allow: Allow,
    pub timeout: Duration,
}

/// A Kafka cluster and how to be let in.
#[derive(Clone, Debug)]
pub struct KafkaServer {
    /// `host:port` each; some of the cluster's.
    pub brokers: Vec<String>,
    /// Properties of librdkafka.
    pub options: BTreeMap<String, Secret>,
    pub username: Option<String>,
    pub password: Option<Secret>,
    pub ca_file: Option<PathBuf>,
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
}

#[derive(Clone, Debug)]
pub struct RedisListConfig {
    pub key: Template,
    /// What it may become.
    pub allow: Allow,
    pub format: ListFormat,
    /// `None`: the Redis of the queue itself, exactly once.
    pub server: Option<RedisEndpoint>,
    pub timeout: Duration,
}

#[derive(Clone, Debug)]
pub struct RabbitMqConfig {
    pub server: RabbitMqServer,
    pub address: Address,
    /// What it may become.
    pub allow: Allow,
    pub timeout: Duration,
}

#[derive(Clone, Debug)]
pub struct RabbitMqServer {
    /// `amqp://` or `amqps://`; the path is the virtual host, percent-encoded.
    pub url: SecretUrl,
    /// `None` leaves it to the URL.
    pub username: Option<String>,
    pub password: Option<Secret>,
    pub ca_file: Option<PathBuf>,
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
}

#[derive(Clone, Debug)]
pub struct RouteConfig {
    pub sink: Arc<str>,
    pub partitions: u16,
    pub lease: Duration,
    pub max_in_flight: usize,
    /// Bytes.
    pub max_in_flight_bytes: u64,
    pub retry: RetryPolicy,
    /// `None`: not said, which means no. A `period` of zero: no.
    pub remember: Option<Remember>,
    pub limits: RouteLimits,
    pub dead: DeadLimits,
}

#[derive(Clone, Debug)]
pub enum SourceConfig {
    SortedSet(SortedSetConfig),
    DelayQueue(DelayQueueConfig),
    RabbitMq(RabbitMqSourceConfig),
    Kafka(KafkaSourceConfig),
}

impl SourceConfig {
    /// Where its messages go.
    pub fn route(&self) -> &Arc<str> {
        match self {
            Self::SortedSet(SortedSetConfig { route, .. })
            | Self::DelayQueue(DelayQueueConfig { route, .. })
            | Self::RabbitMq(RabbitMqSourceConfig { route, .. })
            | Self::Kafka(KafkaSourceConfig { route, .. }) => route,
        }
    }

    /// Whether it reads on the queue's own Redis.
    pub fn is_on_redis(&self) -> bool {
        matches!(self, Self::SortedSet(_) | Self::DelayQueue(_))
    }
}

/// A sorted set on the queue's Redis, with the due times as scores.
#[derive(Clone, Debug)]
pub struct SortedSetConfig {
    pub route: Arc<str>,
    pub key: String,
    pub unit: ScoreUnit,
    /// With which the names of hashes begin whose fields are the payload; `None`: the member itself is the payload.
    pub hash_prefix: Option<String>,
    /// Between two looks where Redis does not tell of changes.
    pub poll: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScoreUnit {
    Seconds,
    Milliseconds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MemberPayload {
    /// The member itself.
    Member,
    /// The fields of the hash that the member names, as a JSON object.
    Hash,
}

/// The keys of hdt3213/delayqueue on the queue's Redis.
#[derive(Clone, Debug)]
pub struct DelayQueueConfig {
    pub route: Arc<str>,
    pub name: String,
    pub prefix: String,
    pub hash_tag: bool,
    /// Between two looks where Redis does not tell of changes.
    pub poll: Duration,
}

#[derive(Clone, Debug)]
pub struct RabbitMqSourceConfig {
    pub route: Arc<str>,
    pub server: RabbitMqServer,
    pub queue: String,
    pub prefetch: u16,
    pub id_from: IdFrom,
    /// The delay by the count in `x-death`; `None`: headers tell it.
    pub backoff: Option<Backoff>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IdFrom {
    Ulid,
    MessageId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DelayFrom {
    Headers,
    XDeath,
}

#[derive(Clone, Debug)]
pub struct KafkaSourceConfig {
    pub route: Arc<str>,
    pub server: KafkaServer,
    pub topics: Vec<String>,
    pub group_id: String,
    pub start: Start,
    /// What a first start finds that is overdue by more is skipped.
    pub max_overdue: Option<Duration>,
}

/// Where a consumer group begins at its first start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Start {
    Earliest,
    Latest,
}
