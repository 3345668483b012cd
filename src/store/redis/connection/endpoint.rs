//! A Redis server with its credentials, and the client for it.

use std::{fmt, path::Path, time::Duration};

use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, TlsCertificates,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};
use rustls::pki_types::{CertificateDer, pem::PemObject};

use crate::{
    secret::{Secret, SecretUrl},
    tls::{self, TlsFiles},
};

/// Idle time after which the kernel probes the peer, which costs neither side a command.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(2);
/// Time between two probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Unanswered probes after which the kernel ends the connection.
const KEEPALIVE_PROBES: u32 = 2;

/// A Redis server and the credentials for it.
#[derive(Clone, Debug)]
pub struct RedisEndpoint {
    pub url: SecretUrl,
    pub username: Option<String>,
    pub password: Option<Secret>,
    pub tls: TlsFiles,
}

/// Host and port, as other servers name them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerAddress {
    pub host: String,
    pub port: u16,
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl ServerAddress {
    /// The address in `info`; `None` for a Unix socket.
    pub(super) fn of(info: &ConnectionInfo) -> Option<Self> {
        let (ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }) = info.addr() else {
            return None;
        };
        Some(Self { host: host.clone(), port: *port })
    }

    /// A client for the server at this address, with the credentials and the TLS of `like`; it connects later.
    pub(super) fn client(&self, like: &ConnectionInfo) -> Result<Client, RedisError> {
        let Self { host, port } = self.clone();
        let place = match like.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        Client::open(like.clone().set_addr(place))
    }
}

/// A client for `server`; it connects later.
///
/// # Errors
/// If the URL or a TLS file cannot be used; the text names neither user nor password.
pub fn client(server: &RedisEndpoint) -> Result<Client, String> {
    let info = server.url.expose().into_connection_info().map_err(|error| format!("url: {error}"))?;
    // The user may have no right to CLIENT SETINFO.
    let mut settings = info.redis_settings().clone().set_skip_set_lib_name();
    if let Some(username) = &server.username {
        settings = settings.set_username(username);
    }
    if let Some(password) = &server.password {
        settings = settings.set_password(password.expose());
    }
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_PROBES);
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    let info = info.set_redis_settings(settings).set_tcp_settings(tcp);
    let read = |path: &Path| std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let client_tls = match (&server.tls.cert_file, &server.tls.key_file) {
        (Some(cert), Some(key)) => {
            // The client would detect a mismatch on its first connection only.
            tls::check_pair(cert, key)?;
            Some(ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? })
        }
        _ => None,
    };
    let root_cert = server.tls.ca_file.as_deref().map(read).transpose()?;
    // The client would accept a file without certificates, and then trust no server.
    if let (Some(file), Some(pem)) = (&server.tls.ca_file, &root_cert)
        && !matches!(CertificateDer::pem_slice_iter(pem).next(), Some(Ok(_)))
    {
        return Err(format!("{}: no certificate in it", file.display()));
    }
    if client_tls.is_some() || root_cert.is_some() {
        let certificates = TlsCertificates { client_tls, root_cert };
        Client::build_with_tls(info, certificates).map_err(|error| format!("TLS files: {error}"))
    } else {
        Client::open(info).map_err(|error| format!("url: {error}"))
    }
}
