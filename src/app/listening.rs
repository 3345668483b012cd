//! The listeners of the API, as configured.

use std::{io, net::SocketAddr, sync::Arc};

use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
};

use crate::{
    api::Listener,
    config::{Listen, ServerConfig, ServerTls},
    tls,
};

/// Connections that the kernel queues until they are accepted, as far as `net.core.somaxconn` allows. When the queue is
/// full, a new connection waits a second until its first packet is sent again.
const BACKLOG: u32 = 4096;

/// The certificate of `server.listen`. Connections that are accepted later use the latest one.
pub struct Certificate(watch::Sender<Arc<rustls::ServerConfig>>);

impl Certificate {
    pub fn replace(&self, settings: Arc<rustls::ServerConfig>) {
        self.0.send_replace(settings);
    }
}

/// Binds `server.listen`. The certificate is `None` without TLS.
///
/// # Errors
/// The setting and its error.
pub fn listen(config: &ServerConfig) -> Result<(Listener, Option<Certificate>), String> {
    let wrong = |error: io::Error| format!("server.listen {}: {error}", config.listen);
    match (&config.listen, &config.tls) {
        (Listen::Unix(path), _) => Ok((Listener::unix(path).map_err(wrong)?, None)),
        (Listen::Tcp(address), None) => Ok((bind(*address).map_err(wrong)?.into(), None)),
        (Listen::Tcp(address), Some(files)) => {
            let settings = watch::Sender::new(read(files)?);
            let listener = Listener::tls(bind(*address).map_err(wrong)?, settings.subscribe());
            Ok((listener, Some(Certificate(settings))))
        }
    }
}

/// Checks that the files of `server.tls` are usable.
///
/// # Errors
/// The unusable file and the reason.
pub fn check_settings(config: &ServerConfig) -> Result<(), String> {
    config.tls.as_ref().map_or(Ok(()), |files| read(files).map(drop))
}

/// Binds `server.health_listen`, if it is set.
///
/// # Errors
/// The setting and its error.
pub fn listen_for_probes(config: &ServerConfig) -> Result<Option<TcpListener>, String> {
    let Some(address) = config.health_listen else { return Ok(None) };
    bind(address).map(Some).map_err(|error| format!("server.health_listen {address}: {error}"))
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restart does not wait for connections of the previous process.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Reads the files of `server.tls`.
///
/// # Errors
/// The unusable file and the reason.
pub fn read(files: &ServerTls) -> Result<Arc<rustls::ServerConfig>, String> {
    tls::server_config(&files.cert_file, &files.key_file).map(Arc::new).map_err(|error| format!("server.tls: {error}"))
}
