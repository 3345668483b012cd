//! Opens connections to the endpoint. The name is resolved for each connection.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::Uri;
use hyper::service::Service;
use hyper_util::{client::legacy::connect::HttpConnector, service::TowerToHyperService};
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use rustls::pki_types::ServerName;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout_at},
};
use tokio_rustls::TlsConnector;
use url::Url;

use super::{
    connection::{Connection, Own},
    http2::Shared,
    outcome::causes,
    permits::ConnectionPermit,
    reuse::Reuse,
    wire::Stream,
};
use crate::tls::{self, TlsFiles};

/// Detects a lost peer during a long call.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);
/// Time for which new connections use HTTP/1.1, after a server has broken HTTP/2 or asked for HTTP/1.1.
const WITHOUT_HTTP_2: Duration = Duration::from_mins(10);
/// Workers that start before the protocol of an https endpoint is known: over HTTP/2 it can allow only one request at a
/// time.
const FIRST_WORKERS: usize = 8;
const HTTP_2: &[u8] = b"h2";
const HTTP_1: &[u8] = b"http/1.1";

pub struct Connector {
    /// Resolves, tries IPv6 and IPv4, and sets the options of the socket.
    tcp: TowerToHyperService<HttpConnector>,
    tls: Option<Tls>,
    url: Uri,
    host: String,
    port: u16,
    protocol: Mutex<Protocol>,
    /// Before this time HTTP/2 is not offered.
    without_http2: Mutex<Option<Instant>>,
    created: Instant,
    /// Milliseconds from `created` to the last reply; 0 before the first.
    answered: AtomicU64,
    /// Requests at once that the last shared connection allowed.
    streams: AtomicUsize,
    /// Held while a connection is opened that can become the shared one. Other workers wait for that connection.
    sharing: Semaphore,
    max_connections: usize,
    /// One permit for each connection.
    connections: Arc<Semaphore>,
    pub reuse: Reuse,
}

/// TLS with both protocols, and with HTTP/1.1 alone.
struct Tls {
    both: TlsConnector,
    http1: TlsConnector,
}

/// Why no connection was opened.
pub enum ConnectError {
    /// No permit became free in time.
    Busy,
    /// This process or machine has no more files, ports or memory.
    Local(String),
    Remote(String),
}

impl ConnectError {
    pub fn text(&self) -> &str {
        match self {
            Self::Busy => "no connection was free in time",
            Self::Local(text) | Self::Remote(text) => text,
        }
    }

    fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        let chain = std::iter::successors(Some(error), |cause| (*cause).source());
        let is_local = |error: &io::Error| {
            let code = error.raw_os_error().map(Errno::from_raw_os_error);
            code.is_some_and(|code| {
                [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL].contains(&code)
            })
        };
        let is_local = chain.filter_map(|cause| cause.downcast_ref::<io::Error>()).any(is_local);
        if is_local { Self::Local(causes(error)) } else { Self::Remote(causes(error)) }
    }
}

/// The protocol that the endpoint spoke last.
enum Protocol {
    Unknown,
    Http1,
    /// The connection that all requests share.
    Http2(Shared),
}

impl Connector {
    /// # Errors
    /// The setting that cannot be used.
    pub fn new(url: &Url, files: &TlsFiles, max_connections: usize, timeout: Duration) -> Result<Self, String> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(TCP_KEEPALIVE));
        // All addresses of the name share this time, so one that does not answer leaves time for the next.
        tcp.set_connect_timeout(Some(timeout));
        let encrypted = url.scheme() == "https";
        let tls = encrypted.then(|| tls::client_config(files)).transpose()?.map(|config| {
            let offering = |protocols: &[&[u8]]| {
                let mut config = config.clone();
                config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
                TlsConnector::from(Arc::new(config))
            };
            Tls { both: offering(&[HTTP_2, HTTP_1]), http1: offering(&[HTTP_1]) }
        });
        Ok(Self {
            tcp: TowerToHyperService::new(tcp),
            tls,
            url: url.as_str().parse().map_err(|error| format!("url: {error}"))?,
            // An IPv6 address has brackets only in a URL.
            host: url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned(),
            port: url.port_or_known_default().unwrap_or_default(),
            // Without TLS, HTTP/2 cannot be offered.
            protocol: Mutex::new(if encrypted { Protocol::Unknown } else { Protocol::Http1 }),
            without_http2: Mutex::new(None),
            created: Instant::now(),
            answered: AtomicU64::new(0),
            streams: AtomicUsize::new(FIRST_WORKERS.min(max_connections)),
            sharing: Semaphore::new(1),
            max_connections,
            connections: Arc::new(Semaphore::new(max_connections)),
            reuse: Reuse::new(),
        })
    }

    /// Host and port, for texts.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Requests that can be sent at once.
    pub fn limit(&self) -> usize {
        match &*self.protocol() {
            Protocol::Http1 => self.max_connections,
            Protocol::Http2(shared) => shared.workers(),
            Protocol::Unknown => self.streams.load(Ordering::Relaxed),
        }
    }

    /// Closes the shared connection once its requests have ended; with `only`, if it is that one. The next connection
    /// is a new one.
    pub fn retire(&self, only: Option<&Shared>) {
        let mut protocol = self.protocol();
        if let Protocol::Http2(shared) = &*protocol
            && only.is_none_or(|only| only.is_same(shared))
        {
            *protocol = Protocol::Unknown;
        }
    }

    /// Notes that a reply arrived.
    pub fn answered(&self) {
        let millis = u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.answered.store(millis.max(1), Ordering::Relaxed);
    }

    /// Whether a reply came within the last `time`.
    pub fn has_answered_within(&self, time: Duration) -> bool {
        let answered = self.answered.load(Ordering::Relaxed);
        answered > 0 && self.created.elapsed() < Duration::from_millis(answered) + time
    }

    /// Makes connections use HTTP/1.1 for a while, if the endpoint can. Returns the length of that time, if it begins
    /// now.
    pub fn avoid_http2(&self) -> Option<Duration> {
        let (now, mut until) = (Instant::now(), self.without_http2.lock());
        let begins = until.is_none_or(|until| until <= now);
        *until = Some(now + WITHOUT_HTTP_2);
        begins.then_some(WITHOUT_HTTP_2)
    }

    fn avoids_http2(&self) -> bool {
        self.without_http2.lock().is_some_and(|until| Instant::now() < until)
    }

    /// `begin_by`: latest time to begin with a new connection.
    ///
    /// # Errors
    /// Why no connection was opened. The text does not show the URL: its path and query can hold secrets.
    pub async fn connect(&self, begin_by: Instant) -> Result<Connection, ConnectError> {
        // Otherwise each worker would open a connection of its own, although one is enough over HTTP/2.
        let sharing = if self.is_http1() { None } else { self.sharing.acquire().await.ok() };
        match self.shared() {
            Some(shared) => Ok(shared),
            None => self.open(sharing, begin_by).await,
        }
    }

    fn is_http1(&self) -> bool {
        matches!(*self.protocol(), Protocol::Http1)
    }

    /// The shared connection, if there is one.
    pub fn shared(&self) -> Option<Connection> {
        match &*self.protocol() {
            Protocol::Http2(shared) if !shared.is_ending() => Some(Connection::Http2(shared.clone())),
            _ => None,
        }
    }

    async fn open(&self, sharing: Option<SemaphorePermit<'_>>, begin_by: Instant) -> Result<Connection, ConnectError> {
        let sharing = sharing.filter(|_| !self.is_http1());
        // Acquired after `sharing`: a worker that waits for the shared connection needs no permit.
        let permit = timeout_at(begin_by, ConnectionPermit::acquire(&self.connections)).await;
        let permit = permit.map_err(|_| ConnectError::Busy)?;
        let (stream, protocol) = self.stream().await?;
        if protocol == HTTP_2 {
            let shared = Shared::open(stream, permit).await.map_err(|error| ConnectError::of(&error))?;
            self.streams.store(shared.workers(), Ordering::Relaxed);
            *self.protocol() = Protocol::Http2(shared.clone());
            return Ok(Connection::Http2(shared));
        }
        *self.protocol() = Protocol::Http1;
        drop(sharing);
        let own = Own::open(stream, permit, self.reuse.is_paused()).await;
        own.map(Connection::Http1).map_err(|error| ConnectError::of(&error))
    }

    /// Opens a connection without sending a request. Also returns the protocol that TLS negotiated.
    ///
    /// # Errors
    /// Why no connection was opened.
    pub async fn stream(&self) -> Result<(Box<dyn Stream>, Vec<u8>), ConnectError> {
        let stream = self.tcp.call(self.url.clone()).await.map_err(|error| ConnectError::of(&error))?.into_inner();
        let Some(Tls { both, http1 }) = &self.tls else { return Ok((Box::new(stream), HTTP_1.to_vec())) };
        let name = ServerName::try_from(self.host.clone()).map_err(|error| ConnectError::of(&error))?;
        let avoids_http2 = self.avoids_http2();
        let tls = if avoids_http2 { http1 } else { both };
        let stream = tls.connect(name, stream).await.map_err(|error| {
            if avoids_http2 {
                // The endpoint might support only HTTP/2.
                *self.without_http2.lock() = None;
            }
            ConnectError::of(&error)
        })?;
        let protocol = stream.get_ref().1.alpn_protocol().unwrap_or(HTTP_1).to_vec();
        Ok((Box::new(stream), protocol))
    }

    fn protocol(&self) -> MutexGuard<'_, Protocol> {
        self.protocol.lock()
    }
}
