//! `server`: the HTTP server.

use std::{collections::BTreeSet, net::SocketAddr, path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use super::{
    auth::{self, Tokens},
    connectors::{check_tls, parsed},
    listen::Listen,
    problem::{Path, Problems},
    tokens::{self, AuthConfig},
    value::{Period, Size, Whole},
};
use crate::tls::TlsFiles;

/// Maximum `max_payload`, in bytes: a schedule script carries at most 4 MiB, including metadata and the encoding of the
/// arguments.
const MAX_PAYLOAD: u64 = 3 << 20;

/// Maximum `max_connections_per_address`: the limit of all connections.
const MAX_PER_ADDRESS: u64 = 4096;

/// The validated settings of the API's server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub listen: Listen,
    /// `None`: plain HTTP.
    pub tls: Option<ServerTls>,
    /// Address of a listener for /livez and /readyz alone.
    pub health_listen: Option<SocketAddr>,
    /// `None`: half of all connections.
    pub max_connections_per_address: Option<usize>,
    /// `None`: the API needs no token.
    pub auth: Option<AuthConfig>,
    /// Bytes.
    pub max_payload: usize,
    pub request_timeout: Duration,
    /// Whether `/console/` is served.
    pub console: bool,
}

/// The API's own certificate chain and key, PEM.
#[derive(Clone, Debug)]
pub struct ServerTls {
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
}

/// The HTTP server.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Address and port of the API, /metrics, /livez and /readyz, or `unix:` and the absolute path of a socket. Addresses
    /// other than loopback need tokens.
    #[serde(deserialize_with = "listen")]
    #[schemars(with = "String")]
    listen: Listen,
    tls: ServerTlsFiles,
    /// Address and port of a further listener for /livez and /readyz alone, without tokens.
    #[serde(default, deserialize_with = "health_listen")]
    #[schemars(with = "Option<String>")]
    health_listen: Option<SocketAddr>,
    /// Maximum connections of one IPv4 address or IPv6 /64 network: 1 to 4096. Unless set: half of all connections.
    max_connections_per_address: Option<Whole<1, MAX_PER_ADDRESS>>,
    #[serde(deserialize_with = "auth::auth")]
    #[schemars(schema_with = "auth::auth_schema")]
    auth: Option<Tokens>,
    /// Maximum payload of a message: 1 to 3MiB.
    pub max_payload: Size<1, MAX_PAYLOAD>,
    /// Maximum time of one API call: 100ms to 60s.
    request_timeout: Period<100, 60_000>,
    /// Whether the operator's console is served at /console/.
    console: bool,
}

/// TLS of `server.listen`. SIGHUP and `punctual reload` read the files again.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "ServerTls")]
struct ServerTlsFiles {
    /// PEM: the certificate and the intermediate certificates. Needs `key_file`.
    cert_file: Option<PathBuf>,
    /// PEM: the private key. Needs `cert_file`.
    key_file: Option<PathBuf>,
}

fn listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Listen, D::Error> {
    parsed(deserializer, str::parse)
}

fn health_listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    parsed(deserializer, |text| {
        let wrong = |_| format!("`{text}` is not an address and port such as 127.0.0.1:8081");
        Some(text).filter(|text| !text.is_empty()).map(|text| text.parse().map_err(wrong)).transpose()
    })
}

impl Server {
    /// `routes`: the names of all routes.
    pub fn check(self, routes: &BTreeSet<String>, problems: &mut Problems) -> ServerConfig {
        let at = Path::of("server");
        let known = Some(&self.listen).filter(|_| !problems.is_refused(&at.key("listen")));
        let open = known.filter(|listen| !listen.is_local());
        let auth = self.auth.map(|auth| tokens::check(auth, open.is_some(), routes, problems));
        if let Some(listen) = open.filter(|_| auth.is_none() && !problems.is_refused(&at.key("auth"))) {
            let text = format!("`{listen}` is open to others: set `server.auth.tokens`, or listen on 127.0.0.1");
            problems.add(&at.key("listen"), text);
        }
        if self.health_listen.is_some_and(|health| known == Some(&Listen::Tcp(health))) {
            problems.add(&at.key("health_listen"), "is that of `listen`, which answers probes anyway");
        }
        let ServerTlsFiles { cert_file, key_file } = self.tls;
        check_tls(
            &at,
            &TlsFiles { ca_file: None, cert_file: cert_file.clone(), key_file: key_file.clone() },
            true,
            problems,
        );
        let tls = cert_file.zip(key_file).map(|(cert_file, key_file)| ServerTls { cert_file, key_file });
        if tls.is_some() && matches!(self.listen, Listen::Unix(_)) {
            problems.add(&at.key("tls"), "is for an address; a Unix socket has none");
        }
        let per_address = self.max_connections_per_address;
        ServerConfig {
            tls,
            listen: self.listen,
            health_listen: self.health_listen,
            max_connections_per_address: per_address.map(|number| usize::try_from(number.0).expect("at most 4096")),
            auth,
            max_payload: usize::try_from(self.max_payload.0).expect("at most 3 MiB"),
            request_timeout: self.request_timeout.0,
            console: self.console,
        }
    }
}
