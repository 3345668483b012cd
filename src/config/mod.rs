//! The configuration as plain structs. `load` reads and validates it, `app` turns it into live objects.
//!
//! Its way: `source` (files, environment, command line: trees of values and where each was written) ->
//! figment merges them over `config/defaults.yaml` -> `expand` (`${VAR}`) -> `read` (the `raw` structs, which
//! also make the JSON Schema) -> `check` (ranges, and what must fit together) -> `Config`. Every step reports to
//! `Problems` and goes on, so that all mistakes show at once. No report holds a secret.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;

pub use self::{
    listen::Listen,
    load::{RedisUrlOption, Sources, load},
    problem::{ConfigErrors, Origin, Path, Problem, Problems},
    registry::Registry,
    schema::schema,
    shared::{
        Context, GrowingDelay, Settings, Timeout, check_allow, check_redis_url, check_tls, non_empty, parsed,
        redis_url, template,
    },
    tokens::TokenDigest,
    value::{Flag, List, Period, Property, Real, Size, Whole},
};

use crate::{
    message::Remember,
    retry::RetryPolicy,
    secret::{Secret, SecretUrl},
    sink::SinkSettings,
    source::SourceSettings,
    tls::TlsFiles,
};

mod check;
mod entries;
mod expand;
mod listen;
mod load;
mod problem;
mod raw;
mod raw_auth;
mod raw_server;
mod read;
mod registry;
mod routes;
mod schema;
mod shared;
mod source;
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
    pub sinks: BTreeMap<String, Arc<dyn SinkSettings>>,
    pub routes: BTreeMap<String, RouteConfig>,
    pub sources: BTreeMap<String, Arc<dyn SourceSettings>>,
}

#[derive(Clone, Debug)]
pub struct RedisConfig {
    pub url: RedisUrl,
    /// ACL user; `None` leaves it to the URL.
    pub username: Option<String>,
    pub password: Option<Secret>,
    pub tls: TlsFiles,
    pub key_prefix: String,
    pub data_dir: PathBuf,
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
}
