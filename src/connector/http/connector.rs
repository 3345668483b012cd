//! Opens connections to the endpoint. The name is resolved for each one.

use std::{sync::Arc, time::Duration};

use http::Uri;
use hyper::{client::conn::http2, service::Service};
use hyper_util::{
    client::legacy::connect::HttpConnector,
    rt::{TokioExecutor, TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use parking_lot::{Mutex, MutexGuard};
use rustls::pki_types::ServerName;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_rustls::TlsConnector;
use url::Url;

use super::{
    connection::{Connection, Own, Shared},
    outcome::causes,
    reuse::Reuse,
    wire::Stream,
};
use crate::tls::{self, TlsFiles};

/// Detects a lost peer during a long call.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);
/// Detects a lost peer over HTTP/2, where all requests share a connection.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a reply that HTTP/2 buffers for each request: as much as `reply` reads.
const STREAM_WINDOW: u32 = 64 * 1024;
/// Most bytes in the head of a reply over HTTP/2, with 32 more for each header. Over HTTP/1 hyper allows about 400 KiB.
const MAX_HEAD: u32 = 128 * 1024;

const HTTP_2: &[u8] = b"h2";
const HTTP_1: &[u8] = b"http/1.1";

pub struct Connector {
    /// Resolves, tries IPv6 and IPv4, and sets the options of the socket.
    tcp: TowerToHyperService<HttpConnector>,
    tls: Option<TlsConnector>,
    url: Uri,
    host: String,
    port: u16,
    protocol: Mutex<Protocol>,
    /// Held while a connection is opened that may become the shared one: the others wait for it.
    sharing: Semaphore,
    /// A permit for each connection.
    connections: Arc<Semaphore>,
    pub reuse: Reuse,
}

/// What the endpoint spoke last.
enum Protocol {
    Unknown,
    Http1,
    /// The connection that all requests share.
    Http2(Shared),
}

impl Connector {
    /// # Errors
    /// Which setting cannot be used.
    pub fn new(url: &Url, files: &TlsFiles, max_connections: usize, timeout: Duration) -> Result<Self, String> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(TCP_KEEPALIVE));
        // The addresses of the name share it: one that does not answer leaves time for the next.
        tcp.set_connect_timeout(Some(timeout));
        let encrypted = url.scheme() == "https";
        let config = encrypted.then(|| tls::client_config(files)).transpose()?.map(|mut config| {
            config.alpn_protocols = vec![HTTP_2.to_vec(), HTTP_1.to_vec()];
            Arc::new(config)
        });
        Ok(Self {
            tcp: TowerToHyperService::new(tcp),
            tls: config.map(TlsConnector::from),
            url: url.as_str().parse().map_err(|error| format!("url: {error}"))?,
            // An IPv6 address stands in brackets in a URL only.
            host: url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned(),
            port: url.port_or_known_default().unwrap_or_default(),
            // Without TLS there is no way to offer HTTP/2.
            protocol: Mutex::new(if encrypted { Protocol::Unknown } else { Protocol::Http1 }),
            sharing: Semaphore::new(1),
            connections: Arc::new(Semaphore::new(max_connections)),
            reuse: Reuse::new(),
        })
    }

    /// Host and port, for texts.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Whether the latest connection was one that all requests share.
    pub fn is_shared(&self) -> bool {
        matches!(*self.protocol(), Protocol::Http2(_))
    }

    /// Closes the shared connection, or only that one, once its requests have ended: the next one is another.
    pub fn retire(&self, only: Option<&Shared>) {
        let mut protocol = self.protocol();
        if let Protocol::Http2(shared) = &*protocol
            && only.is_none_or(|only| Arc::ptr_eq(&only.answered, &shared.answered))
        {
            *protocol = Protocol::Unknown;
        }
    }

    /// # Errors
    /// Why there is none, without the URL: its path and query may hold secrets.
    pub async fn connect(&self) -> Result<Connection, String> {
        // Each would open a connection of its own, although one is enough over HTTP/2.
        let sharing = if self.is_http1() { None } else { self.sharing.acquire().await.ok() };
        match self.shared() {
            Some(shared) => Ok(shared),
            None => self.open(sharing).await,
        }
    }

    fn is_http1(&self) -> bool {
        matches!(*self.protocol(), Protocol::Http1)
    }

    fn shared(&self) -> Option<Connection> {
        match &*self.protocol() {
            Protocol::Http2(shared) if !shared.sender.is_closed() => Some(Connection::Http2(shared.clone())),
            _ => None,
        }
    }

    async fn open(&self, sharing: Option<SemaphorePermit<'_>>) -> Result<Connection, String> {
        let sharing = sharing.filter(|_| !self.is_http1());
        let permit = Arc::clone(&self.connections).acquire_owned().await.map_err(|error| causes(&error))?;
        let (stream, protocol) = self.stream().await?;
        if protocol == HTTP_2 {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder
                .timer(TokioTimer::new())
                .initial_stream_window_size(STREAM_WINDOW)
                .max_header_list_size(MAX_HEAD)
                .keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_TIMEOUT);
            let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(|error| causes(&error))?;
            // Ends when the connection is closed, or the last sender is dropped.
            tokio::spawn(async move {
                let _ = connection.await;
                drop(permit);
            });
            let shared = Shared { sender, answered: Arc::default() };
            *self.protocol() = Protocol::Http2(shared.clone());
            return Ok(Connection::Http2(shared));
        }
        *self.protocol() = Protocol::Http1;
        drop(sharing);
        let own = Own::open(stream, permit, self.reuse.is_paused()).await;
        own.map(Connection::Http1).map_err(|error| causes(&error))
    }

    /// A connection without a request, and the protocol that TLS negotiated.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn stream(&self) -> Result<(Box<dyn Stream>, Vec<u8>), String> {
        let stream = self.tcp.call(self.url.clone()).await.map_err(|error| causes(&error))?.into_inner();
        let Some(tls) = &self.tls else { return Ok((Box::new(stream), HTTP_1.to_vec())) };
        let name = ServerName::try_from(self.host.clone()).map_err(|error| causes(&error))?;
        let stream = tls.connect(name, stream).await.map_err(|error| causes(&error))?;
        let protocol = stream.get_ref().1.alpn_protocol().unwrap_or(HTTP_1).to_vec();
        Ok((Box::new(stream), protocol))
    }

    fn protocol(&self) -> MutexGuard<'_, Protocol> {
        self.protocol.lock()
    }
}
