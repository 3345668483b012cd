//! An HTTP endpoint: one POST for each message, concurrent over pooled connections.
//!
//! `request` builds the request, `webhook` signs it, `outcome` classifies the result, `reply` bounds what is read. The
//! client follows no redirect, uses no proxy of the environment, and keeps no cookies.

#[cfg(test)]
mod fuzz;
mod outcome;
mod reply;
mod request;
mod settings;
mod webhook;

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures::{StreamExt, stream::FuturesUnordered};
use reqwest::{Client, Response, redirect};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};
use tokio_rustls::TlsConnector;

use self::request::RequestFactory;
pub use self::settings::{HttpSettings, SigningSecret};
use crate::sink::{Delivery, Domain, Reply, Report, Sink};
use crate::{sink::Outcome, tls};

/// Most idle connections: enough for a burst, few enough for any server.
const MAX_IDLE_CONNECTIONS: usize = 256;
/// Below the 5 s after which common servers (Node.js) close an idle connection. A request at the moment of the close
/// would be lost.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// Detects a lost peer during a long call.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);
/// Detects a lost peer over HTTP/2, where all requests share a connection.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a reply that HTTP/2 buffers for each request: as much as `reply` reads.
const STREAM_WINDOW: u32 = 64 * 1024;
/// Most bytes in the head of a reply over HTTP/2. Over HTTP/1 hyper allows 100 headers and about 400 KiB.
const MAX_HEAD: u32 = 64 * 1024;

/// The wall clock: signatures carry its time, and a `Retry-After` date may be compared with it.
pub type WallClock = fn() -> SystemTime;

pub struct HttpSink {
    client: Client,
    requests: RequestFactory,
    /// For `check`.
    tls: Option<TlsConnector>,
    host: String,
    port: u16,
    timeout: Duration,
    clock: WallClock,
}

impl HttpSink {
    /// # Errors
    /// Which setting cannot be used; nothing is connected yet.
    pub fn new(config: &HttpSettings) -> Result<Self, String> {
        Self::with_clock(config, system_clock)
    }

    /// # Errors
    /// Which setting cannot be used; nothing is connected yet.
    pub fn with_clock(config: &HttpSettings, clock: WallClock) -> Result<Self, String> {
        let requests = RequestFactory::new(config)?;
        let url = requests.base();
        let encrypted = (url.scheme() == "https").then(|| tls_config(config)).transpose()?;
        Ok(Self {
            client: client(config.timeout.0, encrypted.clone())?,
            tls: encrypted.map(|config| TlsConnector::from(std::sync::Arc::new(config))),
            // An IPv6 address stands in brackets in a URL only.
            host: url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned(),
            port: url.port_or_known_default().unwrap_or_default(),
            timeout: config.timeout.0,
            requests,
            clock,
        })
    }

    /// Sends a message and reports its outcome. Returns the reply, whose body may be unread.
    async fn attempt(&self, index: usize, delivery: &Delivery, until: (Instant, &Report)) -> Option<Response> {
        let (deadline, report) = until;
        let request = match self.requests.request(delivery, (self.clock)()) {
            Ok(request) => request,
            Err(error) => {
                report.outcome(index, Outcome::Unsendable { error });
                return None;
            }
        };
        let domain = self.requests.domain(request.url());
        match timeout_at(deadline, self.client.execute(request)).await {
            Ok(Ok(mut response)) => {
                let (status, outcome) = (response.status().as_u16(), self.outcome(&response));
                let text = if outcome == Outcome::Confirmed {
                    String::new()
                } else {
                    reply::text(&mut response, deadline, self.requests.secrets()).await
                };
                report.replied(index, domain, outcome, Reply { status, text });
                Some(response)
            }
            Ok(Err(error)) => {
                let outcome = outcome::of_error(&error, &self.address());
                // A failed connect concerns every path.
                report.outcome_in(index, domain.filter(|_| !error.is_connect()), outcome);
                None
            }
            // The connect timeout is shorter, so the request was sent.
            Err(_) => {
                let error = format!("{}: no reply within {:?}", self.address(), self.timeout);
                report.outcome_in(index, domain, Outcome::Throttled { error, retry_after: None });
                None
            }
        }
    }

    fn outcome(&self, response: &Response) -> Outcome {
        let status = response.status();
        let retry_after = reply::retry_after(response.headers(), (self.clock)());
        outcome::of_status(status, format!("HTTP {}", status.as_u16()), retry_after)
    }

    fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    async fn connect(&self) -> std::io::Result<()> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        if let Some(tls) = &self.tls {
            let name = ServerName::try_from(self.host.clone()).map_err(std::io::Error::other)?;
            tls.connect(name, stream).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Sink for HttpSink {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn domain(&self, delivery: &Delivery) -> Option<Domain> {
        self.requests.domain_of(delivery)
    }

    async fn send(&self, batch: Vec<Delivery>, report: Report) {
        let deadline = Instant::now() + self.timeout;
        let report = &report;
        let mut attempts: FuturesUnordered<_> = batch
            .into_iter()
            .enumerate()
            .map(|(index, delivery)| async move {
                if let Some(response) = self.attempt(index, &delivery, (deadline, report)).await {
                    reply::drain(response, deadline).await;
                }
            })
            .collect();
        while attempts.next().await.is_some() {}
    }

    /// Connects, with TLS if the URL is https. Sends no request: any method may have an effect.
    async fn check(&self) -> Result<(), String> {
        match timeout(self.timeout, self.connect()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(format!("{}: {error}", self.address())),
            Err(_) => Err(format!("{}: not connected within {:?}", self.address(), self.timeout)),
        }
    }
}

fn tls_config(config: &HttpSettings) -> Result<ClientConfig, String> {
    let mut tls = tls::client_config(&config.tls)?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(tls)
}

fn client(timeout: Duration, tls: Option<ClientConfig>) -> Result<Client, String> {
    let builder = Client::builder()
        .redirect(redirect::Policy::none())
        .no_proxy()
        .referer(false)
        // Shorter than `timeout`, so that the error shows whether the connect or the reply timed out.
        .connect_timeout(timeout.mul_f64(0.9))
        .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .tcp_nodelay(true)
        .tcp_keepalive(TCP_KEEPALIVE)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_max_header_list_size(MAX_HEAD)
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT);
    // Without it reqwest requires a process-wide default of rustls, also for plain http.
    let tls = tls.unwrap_or_else(tls::unused);
    builder.tls_backend_preconfigured(tls).build().map_err(|error| format!("http client: {error}"))
}

#[expect(clippy::disallowed_methods, reason = "receivers compare a signature's time with the wall clock, not Redis'")]
fn system_clock() -> SystemTime {
    SystemTime::now()
}
