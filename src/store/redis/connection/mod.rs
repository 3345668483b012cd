//! A self-healing connection to Redis. Every command has a timeout. The next command replaces a link that broke, gave
//! no answer, or leads to a server that is not the master any more.
//!
//! A command without a reply **may have been carried out**: callers make their commands safe to repeat. Servers and
//! load balancers close idle links. A command that finds its link closed was not sent: it is sent over a new link,
//! without an error.

mod classify;
mod cluster;
mod endpoint;
mod link;
mod mastership;
#[cfg(test)]
pub mod peers;
mod sentinel;
mod servers;
mod slots;
#[cfg(test)]
mod tests;
mod topology;
mod upstream;

pub use classify::{NO_REPLICAS, classify, classify_line, is_denied, is_denied_key, is_loading, is_of_cluster};
pub use cluster::Cluster;
pub use endpoint::{RedisEndpoint, ServerAddress, client};
pub use sentinel::Sentinels;
pub use servers::{OnLink, Servers};
pub use slots::{SlotMap, slot_of};
pub use topology::Topology;
pub use upstream::Upstream;

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, future::join_all};
use redis::{Client, Cmd, FromRedisValue, RedisError, RedisResult, Value, aio::MultiplexedConnection};
use tokio::{
    sync::{Mutex, watch},
    task::unconstrained,
    time::{Instant, sleep_until, timeout, timeout_at},
};

use crate::{metrics, store::StoreError};

/// Minimum time between two attempts to connect: at most ten a second, so that a server that comes back is not flooded.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum number of links of one command that closed before it was sent: the idle one, and a new one.
const MAX_ENDED_LINKS: u32 = 2;

/// Maximum wait for one of several servers, to connect or to report its role: a frozen server accepts connections and
/// answers nothing, and another one may have taken its place.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The kind of `StoreError::Unavailable` when a command was sent and no answer came: it may have been carried out.
pub const NO_ANSWER: &str = "timeout";
/// The kind when no link was made in time: nothing was sent.
pub const NO_LINK: &str = "connect";

/// Shared by all callers: commands are pipelined over one link.
pub struct Connection {
    upstream: Arc<Upstream>,
    /// Timeout of one command, connecting included.
    timeout: Duration,
    link: Mutex<RedisLink>,
    /// The last discarded link. Outside the mutex, so that a discard does not wait for a connect.
    discarded: AtomicU64,
    /// Counts the links made so far.
    generation: watch::Sender<u64>,
}

/// A link for one command.
struct Link {
    generation: u64,
    made: Instant,
    connection: MultiplexedConnection,
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
    /// A connection to one address. Connects with the first command. `timeout` bounds each command.
    pub fn new(client: Client, timeout: Duration) -> Self {
        Self::to(Arc::new(client.into()), timeout)
    }

    /// A connection to the server that `upstream` leads to. All connections of one upstream share what they detect
    /// about its server.
    pub fn to(upstream: Arc<Upstream>, timeout: Duration) -> Self {
        Self::counted_by(upstream, timeout, watch::Sender::new(0))
    }

    /// Like `to`, but `generation` also counts the links of other connections.
    fn counted_by(upstream: Arc<Upstream>, timeout: Duration, generation: watch::Sender<u64>) -> Self {
        metrics::begin_redis_errors(classify::kinds());
        let link = RedisLink { current: None, made: Instant::now(), generation: 0, last_attempt: None, refused: None };
        Self { upstream, timeout, link: Mutex::new(link), discarded: AtomicU64::new(0), generation }
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Changes each time a new link is made: state that the server kept for the old link may be lost.
    pub fn generations(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// # Errors
    /// `Unavailable` if the server cannot be reached, cannot run the command now, or does not answer in time (the
    /// command may have been carried out); `WrongType`; `Refused` by a script. NOSCRIPT is `Refused` with slug
    /// `noscript`.
    pub async fn run<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, StoreError> {
        self.run_by(command, Instant::now() + self.timeout).await
    }

    /// Like `run`, but until `deadline` if that is earlier.
    ///
    /// # Errors
    /// Those of `run`.
    pub async fn run_by<T: FromRedisValue>(&self, command: &Cmd, deadline: Instant) -> Result<T, StoreError> {
        self.attempt(command, deadline, Sending::Any).await.map(|(value, _)| value).map_err(counted)
    }

    /// Runs a command on a server of a cluster, until `deadline`; counts no error. `is_asking`: the slot is being moved
    /// to this server.
    async fn run_directed<T: FromRedisValue>(
        &self,
        command: &Cmd,
        deadline: Instant,
        is_asking: bool,
    ) -> Result<(T, u64), CommandFailure> {
        self.attempt(command, deadline, if is_asking { Sending::Asking } else { Sending::Any }).await
    }

    /// Like `run`, but also returns the generation of the link on which the command was answered.
    ///
    /// # Errors
    /// Those of `run`.
    pub async fn run_on_link<T: FromRedisValue>(&self, command: &Cmd) -> Result<(T, u64), StoreError> {
        self.attempt(command, Instant::now() + self.timeout, Sending::Any).await.map_err(counted)
    }

    /// Runs a command on the link of this generation only; `None` if another link replaced it.
    ///
    /// # Errors
    /// Those of `run`.
    pub async fn run_over<T: FromRedisValue>(&self, generation: u64, command: &Cmd) -> Result<Option<T>, StoreError> {
        match self.attempt(command, Instant::now() + self.timeout, Sending::Generation(generation)).await {
            Err(failure) if failure.error == other_link() => Ok(None),
            result => result.map(|(value, _)| Some(value)).map_err(counted),
        }
    }

    /// Like `run`, but `None` if this user has no right to the command, or the server does not know it; that error is
    /// not counted.
    ///
    /// # Errors
    /// The other errors of `run`.
    pub async fn run_if_permitted<T: FromRedisValue>(&self, command: &Cmd) -> Result<Option<T>, StoreError> {
        match self.attempt(command, Instant::now() + self.timeout, Sending::Any).await {
            Err(failure) if is_denied(&failure.error) => Ok(None),
            result => result.map(|(value, _)| Some(value)).map_err(counted),
        }
    }

    /// Queues commands in a transaction that is never executed: Redis checks the rights to a command when it queues it.
    /// Returns the error of each refused command, in order.
    ///
    /// # Errors
    /// Those of `run`, and the refusal of MULTI.
    pub async fn rehearse(&self, commands: &[Cmd]) -> Result<Vec<Option<StoreError>>, StoreError> {
        let rehearsal = async {
            // A link of its own: its end discards the transaction.
            let mut link = self.upstream.connect(self.timeout).boxed().await?;
            redis::cmd("MULTI").exec_async(&mut link).await.map_err(|error| classify(&error))?;
            let queue = async |command: &Cmd| command.query_async::<Value>(&mut link.clone()).await;
            let refusal = |answer: RedisResult<Value>| match answer {
                Ok(_) => Ok(None),
                Err(error) if error.is_io_error() => Err(classify(&error)),
                Err(error) => Ok(Some(classify(&error))),
            };
            join_all(commands.iter().map(queue)).await.into_iter().map(refusal).collect()
        };
        let late = |_| StoreError::Unavailable { kind: NO_ANSWER, text: format!("no answer in {:?}", self.timeout) };
        timeout(self.timeout, rehearsal).await.map_err(late)?
    }

    /// The server reported, at `asked` or later, that it is not the master: links to its address are replaced.
    pub fn lost_master(&self, asked: Instant) {
        self.upstream.mastership.lost(asked);
    }

    /// The link of this generation leads to a master: earlier links are replaced, if the master had been lost.
    pub async fn found_master(&self, generation: u64) {
        let link = self.link.lock().await;
        if link.generation == generation {
            self.upstream.mastership.found(link.made);
        }
    }

    async fn attempt<T: FromRedisValue>(
        &self,
        command: &Cmd,
        deadline: Instant,
        how: Sending,
    ) -> Result<(T, u64), CommandFailure> {
        let mut used = None;
        let attempt = async {
            for _ in 0..MAX_ENDED_LINKS {
                let Link { generation, made, mut connection } = self.link().await.map_err(while_connecting)?;
                if matches!(how, Sending::Generation(only) if only != generation) {
                    return Err(CommandFailure { link_lost: false, is_sent: false, error: other_link() });
                }
                used = Some((generation, Instant::now()));
                let mut is_queued = false;
                let answer = tokio::select! {
                    // An answer of a deposed master is not valid.
                    biased;
                    () = self.upstream.deposed(made) => return Err(CommandFailure::of_deposed()),
                    answer = noting(&mut is_queued, query(&mut connection, command, how)) => answer,
                };
                match answer {
                    Ok(value) => return Ok((value, generation)),
                    Err(error) if is_queued || !error.is_io_error() => return Err(CommandFailure::of(&error)),
                    Err(_) => {
                        self.discard(generation);
                        used = None;
                    }
                }
            }
            Err(CommandFailure { link_lost: false, is_sent: false, error: ended_link() })
        };
        let failure = match timeout_at(deadline.min(Instant::now() + self.timeout), attempt).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(failure)) => failure,
            Err(_) => {
                let (kind, hint) = if used.is_some() { (NO_ANSWER, "") } else { (NO_LINK, self.upstream.hint()) };
                let text = format!("no answer in {:?}{hint}", self.timeout);
                CommandFailure {
                    link_lost: true,
                    is_sent: used.is_some(),
                    error: StoreError::Unavailable { kind, text },
                }
            }
        };
        if let Some((generation, sent)) = used {
            if failure.link_lost {
                self.discard(generation);
            }
            self.found_out(&failure.error, sent);
        }
        Err(failure)
    }

    /// Records that one call of a bundle, sent at `sent`, failed.
    pub fn failed(&self, error: &StoreError, sent: Instant) {
        count(error);
        self.found_out(error, sent);
    }

    fn found_out(&self, error: &StoreError, sent: Instant) {
        if classify::is_no_master(error) {
            self.upstream.mastership.lost(sent);
        }
    }

    fn discard(&self, generation: u64) {
        self.discarded.fetch_max(generation, Ordering::AcqRel);
    }

    async fn link(&self) -> Result<Link, StoreError> {
        let mut link = self.link.lock().await;
        if let Some(current) = &link.current
            && link.generation > self.discarded.load(Ordering::Acquire)
            && !self.upstream.mastership.is_outdated(link.made)
        {
            return Ok(Link { generation: link.generation, made: link.made, connection: current.clone() });
        }
        if let Some(earliest) = link.last_attempt.map(|last| last + RECONNECT_INTERVAL)
            && Instant::now() < earliest
        {
            if let Some(refused) = &link.refused {
                return Err(refused.clone());
            }
            sleep_until(earliest).await;
        }
        link.current = None;
        link.last_attempt = Some(Instant::now());
        // `run` bounds the time; after a caller gives up here, the next one tries again. Boxed, so that futures that
        // hold this one stay small, and their types shallow enough for rustc.
        match self.upstream.connect(self.timeout).boxed().await {
            Ok(connection) => {
                link.current = Some(connection.clone());
                link.made = Instant::now();
                self.generation.send_modify(|count| {
                    *count += 1;
                    link.generation = *count;
                });
                link.refused = None;
                Ok(Link { generation: link.generation, made: link.made, connection })
            }
            Err(error) => {
                link.refused = Some(error.clone());
                Err(error)
            }
        }
    }
}

/// How a command is to be sent.
#[derive(Clone, Copy)]
enum Sending {
    Any,
    /// Only on the link of this generation.
    Generation(u64),
    /// After ASKING.
    Asking,
}

async fn query<T: FromRedisValue>(link: &mut MultiplexedConnection, command: &Cmd, how: Sending) -> RedisResult<T> {
    if !matches!(how, Sending::Asking) {
        return command.query_async(link).await;
    }
    // ASKING holds for the next command of the link.
    let mut both = redis::pipe();
    both.cmd("ASKING").ignore().add_command(command.clone());
    both.query_async(link).await.map(|(value,)| value)
}

/// Runs a query, and notes whether its command was handed to the link.
///
/// Once a link has ended, its task takes no more commands: a query fails on its first poll. A query that is pending
/// after its first poll was handed to the link.
async fn noting<T>(is_queued: &mut bool, query: impl Future<Output = T>) -> T {
    // With an exhausted tokio budget, the first poll would always be pending.
    let mut query = pin!(unconstrained(query));
    poll_fn(|context| {
        let polled = query.as_mut().poll(context);
        *is_queued |= polled.is_pending();
        polled
    })
    .await
}

fn count(error: &StoreError) {
    if let StoreError::Unavailable { kind, .. } = error {
        metrics::redis_error(kind);
    }
}

fn counted(failure: CommandFailure) -> StoreError {
    count(&failure.error);
    failure.error
}

struct CommandFailure {
    /// Whether the link must be replaced.
    link_lost: bool,
    /// Whether the command may have been carried out, unless the server refused it.
    is_sent: bool,
    error: StoreError,
}

impl CommandFailure {
    fn of(error: &RedisError) -> Self {
        let link_lost = error.is_io_error() || error.is_unrecoverable_error();
        Self { link_lost, is_sent: true, error: classify(error) }
    }

    /// The server is not the master any more, and may never answer.
    fn of_deposed() -> Self {
        let text = "another server became the primary before the answer came".to_owned();
        Self { link_lost: true, is_sent: true, error: StoreError::Unavailable { kind: NO_ANSWER, text } }
    }
}

fn other_link() -> StoreError {
    StoreError::Unavailable { kind: NO_LINK, text: "another link was made".into() }
}

fn ended_link() -> StoreError {
    StoreError::Unavailable { kind: NO_LINK, text: "the server closes each connection at once".into() }
}

fn while_connecting(mut error: StoreError) -> CommandFailure {
    if let StoreError::Unavailable { kind, .. } = &mut error
        && *kind == NO_ANSWER
    {
        *kind = NO_LINK;
    }
    CommandFailure { link_lost: false, is_sent: false, error }
}
