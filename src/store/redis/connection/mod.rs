//! One connection to a Redis that heals: every command is bounded in time, and a link that broke or fell
//! silent is replaced by the next command, and so is one to a server that is no master any more.
//!
//! A command whose reply did not come **may have been carried out**: callers make their commands safe to repeat.

mod classify;
mod mastership;

pub use classify::{classify, classify_line, is_of_cluster};
pub use mastership::Mastership;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, FromRedisValue, IntoConnectionInfo, RedisError,
    TlsCertificates,
    aio::MultiplexedConnection,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use tokio::{
    sync::{Mutex, watch},
    time::{Instant, sleep_until, timeout_at},
};

use crate::{
    metrics,
    secret::{Secret, SecretUrl},
    store::StoreError,
    tls::{self, TlsFiles},
};

/// Shortest time between two attempts to connect: at most ten a second, so that a server which comes back is
/// not stormed.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(100);

/// The kernel probes a silent peer after so long, costing neither side a command...
const KEEPALIVE_IDLE: Duration = Duration::from_secs(2);
/// ...then so often...
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// ...and ends the connection after so many probes without an answer.
const KEEPALIVE_PROBES: u32 = 2;

/// The kind of `StoreError::Unavailable` when a command was sent and no answer came: it may have been carried out.
pub const NO_ANSWER: &str = "timeout";
/// The kind when not even a link was made in time: nothing was sent.
pub const NO_LINK: &str = "connect";

/// A Redis server and the credentials for it.
#[derive(Clone, Debug)]
pub struct RedisEndpoint {
    pub url: SecretUrl,
    pub username: Option<String>,
    pub password: Option<Secret>,
    pub tls: TlsFiles,
}

/// A client for `server`; it connects later.
///
/// # Errors
/// When the URL or a TLS file cannot be used; the text names neither user nor password.
pub fn client(server: &RedisEndpoint) -> Result<Client, String> {
    let info = server.url.expose().into_connection_info().map_err(|error| format!("url: {error}"))?;
    let mut settings = info.redis_settings().clone();
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
            // The client would find out with its first connection only.
            tls::check_pair(cert, key)?;
            Some(ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? })
        }
        _ => None,
    };
    let root_cert = server.tls.ca_file.as_deref().map(read).transpose()?;
    // The client would take such a file in silence, and then trust no server.
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

/// Shared by all callers: commands are pipelined over one link.
pub struct Connection {
    client: Client,
    /// Bound of one command, connecting included.
    timeout: Duration,
    link: Mutex<RedisLink>,
    /// The last discarded link. Outside the mutex: a discard does not wait for a connect.
    discarded: AtomicU64,
    /// Of the server's address.
    mastership: Arc<Mastership>,
    /// Counts the links made so far.
    generation: watch::Sender<u64>,
}

struct RedisLink {
    current: Option<MultiplexedConnection>,
    made: Instant,
    generation: u64,
    last_attempt: Option<Instant>,
    /// Why the last attempt failed, if it did.
    refused: Option<StoreError>,
}

impl Connection {
    /// Connects with the first command. `timeout` bounds each command.
    pub fn new(client: Client, timeout: Duration) -> Self {
        metrics::begin_redis_errors(classify::kinds());
        let link = RedisLink { current: None, made: Instant::now(), generation: 0, last_attempt: None, refused: None };
        Self {
            client,
            timeout,
            link: Mutex::new(link),
            discarded: AtomicU64::new(0),
            mastership: Arc::default(),
            generation: watch::Sender::new(0),
        }
    }

    /// The same beside others to this address: what one finds out about its server, all do.
    #[must_use]
    pub fn beside(self, mastership: Arc<Mastership>) -> Self {
        Self { mastership, ..self }
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Changes each time a new link was made: state that the server kept for the old one may be lost.
    pub fn generations(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// # Errors
    /// `Unavailable` when the server cannot be reached, cannot do it now, or does not answer in time (then it is
    /// unknown whether it did); `WrongType`; `Refused` by a script. NOSCRIPT is `Refused` with slug `noscript`.
    pub async fn run<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, StoreError> {
        self.run_by(command, Instant::now() + self.timeout).await
    }

    /// The same, until `deadline` where that is earlier.
    ///
    /// # Errors
    /// Those of `run`.
    pub async fn run_by<T: FromRedisValue>(&self, command: &Cmd, deadline: Instant) -> Result<T, StoreError> {
        self.attempt(command, deadline).await.inspect_err(count)
    }

    /// `None` where this user may not call it, or the server does not know it; no error is counted then.
    ///
    /// # Errors
    /// The other ones of `run`.
    pub async fn run_if_permitted<T: FromRedisValue>(&self, command: &Cmd) -> Result<Option<T>, StoreError> {
        match self.attempt(command, Instant::now() + self.timeout).await {
            Err(error) if classify::is_denied(&error) => Ok(None),
            result => result.map(Some).inspect_err(count),
        }
    }

    /// The server reported at `asked`, or later, that it is no master: links to its address are made anew.
    pub fn lost_master(&self, asked: Instant) {
        self.mastership.lost(asked);
    }

    /// The link of this generation leads to a master: what was made before it is made anew, if one had been lost.
    pub async fn found_master(&self, generation: u64) {
        let link = self.link.lock().await;
        if link.generation == generation {
            self.mastership.found(link.made);
        }
    }

    async fn attempt<T: FromRedisValue>(&self, command: &Cmd, deadline: Instant) -> Result<T, StoreError> {
        let mut used = None;
        let attempt = async {
            let (generation, mut link) = self.link().await.map_err(CommandFailure::while_connecting)?;
            used = Some((generation, Instant::now()));
            command.query_async(&mut link).await.map_err(|error| CommandFailure::of(&error))
        };
        let failure = match timeout_at(deadline.min(Instant::now() + self.timeout), attempt).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(failure)) => failure,
            Err(_) => {
                let kind = if used.is_some() { NO_ANSWER } else { NO_LINK };
                let text = format!("no answer in {:?}", self.timeout);
                CommandFailure { link_lost: true, error: StoreError::Unavailable { kind, text } }
            }
        };
        if let Some((generation, sent)) = used {
            if failure.link_lost {
                self.discarded.fetch_max(generation, Ordering::AcqRel);
            }
            self.found_out(&failure.error, sent);
        }
        Err(failure.error)
    }

    /// A part of a command that was sent at `sent` failed.
    pub fn failed(&self, error: &StoreError, sent: Instant) {
        count(error);
        self.found_out(error, sent);
    }

    fn found_out(&self, error: &StoreError, sent: Instant) {
        if classify::is_no_master(error) {
            self.mastership.lost(sent);
        }
    }

    async fn link(&self) -> Result<(u64, MultiplexedConnection), CommandFailure> {
        let mut link = self.link.lock().await;
        if let Some(current) = &link.current
            && link.generation > self.discarded.load(Ordering::Acquire)
            && !self.mastership.is_outdated(link.made)
        {
            return Ok((link.generation, current.clone()));
        }
        if let Some(earliest) = link.last_attempt.map(|last| last + RECONNECT_INTERVAL)
            && Instant::now() < earliest
        {
            if let Some(refused) = &link.refused {
                return Err(CommandFailure { link_lost: false, error: refused.clone() });
            }
            sleep_until(earliest).await;
        }
        link.current = None;
        link.last_attempt = Some(Instant::now());
        // `run` bounds the whole; a caller that gives up here leaves the next one to try again.
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(Some(self.timeout));
        match self.client.get_multiplexed_async_connection_with_config(&config).await {
            Ok(connection) => {
                link.current = Some(connection.clone());
                link.made = Instant::now();
                link.generation += 1;
                link.refused = None;
                self.generation.send_replace(link.generation);
                Ok((link.generation, connection))
            }
            Err(error) => {
                let failure = CommandFailure::of(&error);
                link.refused = Some(failure.error.clone());
                Err(failure)
            }
        }
    }
}

fn count(error: &StoreError) {
    if let StoreError::Unavailable { kind, .. } = error {
        metrics::redis_error(kind);
    }
}

struct CommandFailure {
    /// Whether the link must be replaced.
    link_lost: bool,
    error: StoreError,
}

impl CommandFailure {
    fn of(error: &RedisError) -> Self {
        let link_lost = error.is_io_error() || error.is_unrecoverable_error();
        Self { link_lost, error: classify(error) }
    }

    fn while_connecting(mut self) -> Self {
        if let StoreError::Unavailable { kind, .. } = &mut self.error
            && *kind == NO_ANSWER
        {
            *kind = NO_LINK;
        }
        self
    }
}
