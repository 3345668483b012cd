//! The configuration as plain structs. `load` reads and validates it, `app` turns it into live objects.
//!
//! `source` reads files, environment and command line: trees of values, each with its origin. `load` merges them over
//! `config/defaults.yaml`. `expand` replaces `${VAR}`. `read` fills one struct for each section; the types of the
//! structs hold the bounds and also make the JSON Schema. `check` checks across sections and returns the `Config`.
//! Every step reports to `Problems` and continues, so that all mistakes are reported at once. No report contains a
//! secret.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;

pub use self::{
    address::{ServerAddress, server_address},
    auth::Right,
    connectors::{
        Context, GrowingDelay, Settings, Timeout, check_allow, check_redis_url, check_tls, non_empty, parsed,
        redis_url, template,
    },
    fingerprint::{ConfigDigest, Fingerprint, Fingerprints},
    listen::Listen,
    load::{RedisUrlOption, Sources, load},
    problem::{ConfigErrors, Path, Problem, Problems, SettingOrigin, all_or_errors},
    redis::{ClusterConfig, DurabilityConfig, RedisConfig, RedisTopology, RedisUrl, SentinelConfig},
    registry::Registry,
    routes::RouteConfig,
    schema::schema,
    server::{ServerConfig, ServerTls},
    tokens::{AuthConfig, TokenConfig, TokenDigest},
    value::{Flag, List, Period, Property, Real, Size, Whole},
};

use crate::{queue::NewSchedule, sink::SinkSettings, source::SourceSettings, spans::ExportSettings};

mod address;
mod auth;
mod check;
mod connectors;
mod deserialize;
mod entries;
mod expand;
mod fingerprint;
mod flow;
mod listen;
mod load;
mod problem;
mod redis;
mod registry;
mod routes;
mod schedules;
mod schema;
mod server;
mod source;
#[cfg(test)]
mod tests;
mod tokens;
mod tracing;
mod value;
mod windows;
mod yaml_hint;

/// A validated configuration.
#[derive(Clone, Debug)]
pub struct Config {
    pub redis: RedisConfig,
    pub server: ServerConfig,
    pub log: LogConfig,
    /// `None`: no spans.
    pub tracing: Option<ExportSettings>,
    pub shutdown_timeout: Duration,
    /// Maximum sleep of a route that waits for its next due time.
    pub max_sleep: Duration,
    /// Maximum bytes of messages in flight of all routes, beyond one largest message of each.
    pub max_in_flight_bytes: u64,
    pub sinks: BTreeMap<String, Arc<dyn SinkSettings>>,
    pub routes: BTreeMap<String, RouteConfig>,
    pub sources: BTreeMap<String, Arc<dyn SourceSettings>>,
    pub schedules: Vec<NewSchedule>,
    pub schedules_revision: u64,
    pub fingerprints: Fingerprints,
    /// Valid settings that are perhaps not intended.
    pub warnings: Vec<Problem>,
}

/// Logs, on standard error.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// One line of text, or one JSON object, for each event.
    pub format: LogFormat,
    /// Minimum severity that is logged.
    pub level: LogLevel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl From<LogLevel> for ::tracing::Level {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
            LogLevel::Trace => Self::TRACE,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}
