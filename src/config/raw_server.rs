//! `server` as it is written.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    raw_auth::RawAuth,
    value::{Period, Size, Whole},
};

/// The HTTP server.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawServer {
    /// Address and port of the API, /metrics, /livez and /readyz, or `unix:` and the path of a socket. Any but a
    /// loopback address and a socket needs tokens.
    pub listen: Option<String>,
    pub tls: RawServerTls,
    /// Address and port of a listener for /livez and /readyz alone, without tokens.
    pub health_listen: Option<String>,
    /// Most connections of one IPv4 address or IPv6 /64 network: 1 to 4096; half of all unless it is set.
    pub max_connections_per_address: Option<Whole>,
    pub auth: RawAuth,
    /// Largest payload of a message: 1 to 3MiB.
    pub max_payload: Option<Size>,
    /// Longest time that one API call may take: 100ms to 60s.
    pub request_timeout: Option<Period>,
}

/// TLS of `server.listen`; read again on SIGHUP.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawServerTls {
    /// PEM: the certificate and those between it and the root. With `key_file`.
    pub cert_file: Option<PathBuf>,
    /// PEM.
    pub key_file: Option<PathBuf>,
}
