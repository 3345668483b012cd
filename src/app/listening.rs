//! The listeners of the API, as configured.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpSocket},
    signal::unix::{SignalKind, signal},
    sync::{oneshot, watch},
    time::timeout,
};

use crate::{
    api::Listener,
    config::{Listen, ServerConfig, ServerTls},
    tls,
};

/// Maximum time to read the files of `server.tls` again.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections that the kernel queues until they are accepted, as far as `net.core.somaxconn` allows. When the queue is
/// full, a new connection waits a second until its first packet is sent again.
const BACKLOG: u32 = 4096;

/// Binds `server.listen`. With TLS, SIGHUP reads its files again, for later connections; without TLS, SIGHUP has no
/// effect.
///
/// # Errors
/// The setting and its error.
pub async fn listen(config: &ServerConfig) -> Result<Listener, String> {
    let wrong = |error: io::Error| format!("server.listen {}: {error}", config.listen);
    // The default action of SIGHUP would end the process.
    let mut hangups = signal(SignalKind::hangup()).map_err(|error| format!("cannot listen for signals: {error}"))?;
    match (&config.listen, &config.tls) {
        (Listen::Unix(path), _) => Listener::unix(path).map_err(wrong),
        (Listen::Tcp(address), None) => Ok(bind(*address).map_err(wrong)?.into()),
        (Listen::Tcp(address), Some(files)) => {
            let settings = watch::Sender::new(read(files)?);
            let listener = Listener::tls(bind(*address).map_err(wrong)?, settings.subscribe());
            let files = files.clone();
            tokio::spawn(async move {
                while hangups.recv().await.is_some() {
                    let (again, (done, loading)) = (files.clone(), oneshot::channel());
                    // A file system can block for ever, and the end of the runtime waits for its own blocking threads.
                    std::thread::spawn(move || done.send(read(&again)));
                    let loaded = match timeout(RELOAD_TIMEOUT, loading).await {
                        Ok(Ok(loaded)) => loaded,
                        _ => Err(format!("server.tls: not read within {RELOAD_TIMEOUT:?}")),
                    };
                    match loaded {
                        Ok(loaded) => {
                            settings.send_replace(loaded);
                            tracing::info!(file = %files.cert_file.display(), "loaded the certificate again");
                        }
                        Err(error) => tracing::error!(error, "cannot use the new certificate; the old one stays"),
                    }
                }
            });
            Ok(listener)
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
pub async fn listen_for_probes(config: &ServerConfig) -> Result<Option<TcpListener>, String> {
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

fn read(files: &ServerTls) -> Result<Arc<rustls::ServerConfig>, String> {
    tls::server_config(&files.cert_file, &files.key_file).map(Arc::new).map_err(|error| format!("server.tls: {error}"))
}
