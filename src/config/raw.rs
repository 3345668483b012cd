//! The configuration as it is written: the keys, their descriptions, and what kind of value each takes. Nothing
//! is required here and no default is spelled: those come from `config/defaults.yaml` before this is read.
//! Descriptions end up in the JSON Schema.

use std::{collections::BTreeMap, path::PathBuf};

use figment::value::Dict;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value as Json;

use super::{
    LogFormat,
    raw_server::RawServer,
    value::{Flag, Period, Real, Size, Whole},
};
use crate::{secret::Secret, tls::TlsFiles};

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
    /// What every sink of a type starts from.
    #[schemars(with = "BTreeMap<String, Json>")]
    pub sink_defaults: Dict,
    /// Where messages go, by name.
    #[schemars(with = "BTreeMap<String, Json>")]
    pub sinks: Dict,
    /// What every route starts from.
    #[schemars(with = "RawRoute")]
    pub route_defaults: Dict,
    /// Named queues.
    #[schemars(with = "BTreeMap<String, RawRoute>")]
    pub routes: Dict,
    /// What every source of a type starts from.
    #[schemars(with = "BTreeMap<String, Json>")]
    pub source_defaults: Dict,
    /// Where messages come from beside the API, by name.
    #[schemars(with = "BTreeMap<String, Json>")]
    pub sources: Dict,
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
    /// For `rediss://`.
    pub tls: TlsFiles,
    /// Begins every key: 1 to 64 of A-Za-z0-9._-
    pub key_prefix: Option<String>,
    /// For `embedded`: its data, socket and log.
    pub data_dir: Option<PathBuf>,
    /// Longest time that one command may take: 100ms to 60s.
    pub timeout: Option<Period>,
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
