//! The listeners of the API, as configured.

use std::sync::Arc;

use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use crate::{
    api::Listener,
    config::{Listen, ServerConfig, ServerTls},
    tls,
};

/// Binds `server.listen`. Where it has TLS, SIGHUP has the files read again, for the connections that come then.
///
/// # Errors
/// The setting and what is wrong with it.
pub async fn listen(config: &ServerConfig) -> Result<Listener, String> {
    let wrong = |error: std::io::Error| format!("server.listen {}: {error}", config.listen);
    match (&config.listen, &config.tls) {
        (Listen::Unix(path), _) => Listener::unix(path).map_err(wrong),
        (Listen::Tcp(address), None) => Ok(TcpListener::bind(address).await.map_err(wrong)?.into()),
        (Listen::Tcp(address), Some(files)) => {
            let settings = watch::Sender::new(read(files)?);
            let listener = Listener::tls(TcpListener::bind(address).await.map_err(wrong)?, settings.subscribe());
            let mut asked =
                signal(SignalKind::hangup()).map_err(|error| format!("cannot listen for signals: {error}"))?;
            let files = files.clone();
            tokio::spawn(async move {
                while asked.recv().await.is_some() {
                    match read(&files) {
                        Ok(read) => {
                            settings.send_replace(read);
                            tracing::info!(file = %files.cert_file.display(), "read the certificate again");
                        }
                        Err(error) => tracing::error!(error, "cannot use the new certificate; the old one stays"),
                    }
                }
            });
            Ok(listener)
        }
    }
}

/// Whether a server could use the files of `server.tls`.
///
/// # Errors
/// The file that cannot be used, and why.
pub fn check_settings(config: &ServerConfig) -> Result<(), String> {
    config.tls.as_ref().map_or(Ok(()), |files| read(files).map(drop))
}

/// Binds `server.health_listen`, if it is set.
///
/// # Errors
/// The setting and what is wrong with it.
pub async fn listen_for_probes(config: &ServerConfig) -> Result<Option<TcpListener>, String> {
    let Some(address) = config.health_listen else { return Ok(None) };
    let bound = TcpListener::bind(address).await;
    bound.map(Some).map_err(|error| format!("server.health_listen {address}: {error}"))
}

fn read(files: &ServerTls) -> Result<Arc<rustls::ServerConfig>, String> {
    tls::server_config(&files.cert_file, &files.key_file).map(Arc::new).map_err(|error| format!("server.tls: {error}"))
}
