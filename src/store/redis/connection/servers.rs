//! Connections for one purpose: one to the only server, or one to each primary of a cluster.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redis::{Cmd, FromRedisValue};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::{
    Cluster, CommandFailure, Connection, NO_LINK, ServerAddress,
    classify::{is_cluster_down, is_lost, redirection},
    count, is_denied,
    slots::slot_of,
};
use crate::store::StoreError;

/// Maximum time that a call waits for a cluster that cannot serve it: while a slot moves, or has no primary.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Pause before the next try.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Redirections that are followed without a pause.
const MAX_REDIRECTIONS: u32 = 3;
/// Interval at which a call without an answer checks whether another server is the primary: a frozen server may never
/// answer.
const DOUBT_INTERVAL: Duration = Duration::from_secs(1);

/// Cheap to clone.
#[derive(Clone)]
pub struct Servers(Arc<ServersPlace>);

enum ServersPlace {
    One(Arc<Connection>),
    Cluster(ClusterConnections),
}

/// The link on which a call was answered.
#[derive(Clone)]
pub struct OnLink {
    pub connection: Arc<Connection>,
    /// Unique among the links of the same `Servers`.
    pub generation: u64,
}

struct ClusterConnections {
    cluster: Arc<Cluster>,
    timeout: Duration,
    /// Created on first use.
    connections: Mutex<BTreeMap<ServerAddress, Arc<Connection>>>,
    /// Counts the links of all connections.
    generation: watch::Sender<u64>,
}

impl From<Arc<Connection>> for Servers {
    fn from(connection: Arc<Connection>) -> Self {
        Self(Arc::new(ServersPlace::One(connection)))
    }
}

impl Servers {
    /// `timeout` of one command, connecting included.
    pub fn of_cluster(cluster: Arc<Cluster>, timeout: Duration) -> Self {
        let generation = watch::Sender::new(0);
        let connections = ClusterConnections { cluster, timeout, connections: Mutex::default(), generation };
        Self(Arc::new(ServersPlace::Cluster(connections)))
    }

    /// The only connection; `None` for a cluster.
    pub fn single(&self) -> Option<&Arc<Connection>> {
        match &*self.0 {
            ServersPlace::One(connection) => Some(connection),
            ServersPlace::Cluster(_) => None,
        }
    }

    /// `None` for a single server.
    pub fn cluster(&self) -> Option<&Arc<Cluster>> {
        match &*self.0 {
            ServersPlace::One(_) => None,
            ServersPlace::Cluster(of) => Some(&of.cluster),
        }
    }

    pub fn timeout(&self) -> Duration {
        match &*self.0 {
            ServersPlace::One(connection) => connection.timeout(),
            ServersPlace::Cluster(of) => of.timeout,
        }
    }

    /// Changes each time a new link is made: state that a server kept for the old link may be lost.
    pub fn generations(&self) -> watch::Receiver<u64> {
        match &*self.0 {
            ServersPlace::One(connection) => connection.generations(),
            ServersPlace::Cluster(of) => of.generation.subscribe(),
        }
    }

    /// Like `Connection::found_master`. Does nothing on a cluster, where each server has its own address.
    pub async fn found_master(&self, generation: u64) {
        if let ServersPlace::One(connection) = &*self.0 {
            connection.found_master(generation).await;
        }
    }

    /// The connections to all servers that have keys: one, or one for each primary.
    ///
    /// # Errors
    /// `Unavailable`: the primaries are not known.
    pub async fn all(&self) -> Result<Vec<Arc<Connection>>, StoreError> {
        match &*self.0 {
            ServersPlace::One(connection) => Ok(vec![connection.clone()]),
            ServersPlace::Cluster(of) => {
                of.cluster.refresh(Instant::now()).await?;
                of.cluster.map().primaries().iter().map(|one| of.connection(one)).collect()
            }
        }
    }

    /// Runs a command on `key`, and on others of the same slot.
    ///
    /// # Errors
    /// Those of `Connection::run`.
    pub async fn run<T: FromRedisValue>(&self, key: &str, command: &Cmd) -> Result<T, StoreError> {
        self.run_on_link(key, command).await.map(|(value, _)| value)
    }

    /// Like `run`, but also returns the link on which the command was answered.
    ///
    /// # Errors
    /// Those of `run`.
    pub async fn run_on_link<T: FromRedisValue>(&self, key: &str, command: &Cmd) -> Result<(T, OnLink), StoreError> {
        match &*self.0 {
            ServersPlace::One(connection) => {
                let (value, generation) = connection.run_on_link(command).await?;
                Ok((value, OnLink { connection: connection.clone(), generation }))
            }
            ServersPlace::Cluster(of) => of.run(slot_of(key.as_bytes()), command).await.inspect_err(count),
        }
    }

    /// Like `run`, but `None` if this user has no right to the command, or the server does not know it; that error is
    /// not counted.
    ///
    /// # Errors
    /// The other errors of `run`.
    pub async fn run_if_permitted<T: FromRedisValue>(&self, key: &str, command: &Cmd) -> Result<Option<T>, StoreError> {
        match &*self.0 {
            ServersPlace::One(connection) => connection.run_if_permitted(command).await,
            ServersPlace::Cluster(of) => match of.run(slot_of(key.as_bytes()), command).await {
                Err(error) if is_denied(&error) => Ok(None),
                result => result.map(|(value, _)| Some(value)).inspect_err(count),
            },
        }
    }
}

/// Adds the server's address to its error.
fn at(address: &ServerAddress, error: StoreError) -> StoreError {
    match error {
        StoreError::Unavailable { kind, text } => StoreError::Unavailable { kind, text: format!("{address}: {text}") },
        error => error,
    }
}

impl ClusterConnections {
    fn connection(&self, address: &ServerAddress) -> Result<Arc<Connection>, StoreError> {
        let mut connections = self.connections.lock();
        if let Some(connection) = connections.get(address) {
            return Ok(connection.clone());
        }
        // Closes connections to former primaries.
        let primaries = self.cluster.map().primaries();
        connections.retain(|address, _| primaries.contains(address));
        let upstream = self.cluster.upstream(address)?;
        let connection = Arc::new(Connection::counted_by(upstream, self.timeout, self.generation.clone()));
        connections.insert(address.clone(), connection.clone());
        Ok(connection)
    }

    /// Follows redirections: a redirected command was not carried out.
    async fn run<T: FromRedisValue>(&self, slot: u16, command: &Cmd) -> Result<(T, OnLink), StoreError> {
        let begun = Instant::now();
        let deadline = begun + self.timeout;
        let (mut asking, mut redirections) = (None, 0);
        loop {
            let sent = Instant::now();
            let is_asking = asking.is_some();
            let address = match asking.take() {
                Some(address) => Arc::new(address),
                None => self.known_by(deadline, self.cluster.owner(slot)).await?,
            };
            let connection = self.connection(&address)?;
            let CommandFailure { error, is_sent, .. } = match self.call(&connection, command, deadline, is_asking).await
            {
                Ok((value, generation)) => return Ok((value, OnLink { connection, generation })),
                Err(failure) => failure,
            };
            if sent >= deadline {
                return Err(at(&address, error));
            }
            if let Some((redirected, is_moved)) = redirection(&error, &address.host) {
                // Servers that disagree redirect a call back and forth.
                redirections += 1;
                if redirections > MAX_REDIRECTIONS {
                    sleep(RETRY_INTERVAL).await;
                }
                match is_moved {
                    Some(slot) => self.cluster.moved(slot, redirected),
                    None => asking = Some(redirected),
                }
            } else if is_cluster_down(&error) {
                if begun.elapsed() >= LONGEST_WAIT {
                    return Err(at(&address, error));
                }
                sleep(RETRY_INTERVAL).await;
                self.known_by(deadline, self.cluster.refresh(sent)).await?;
            } else if !is_sent {
                // Another server may have the slot.
                self.known_by(deadline, self.cluster.refresh(sent)).await?;
                if self.cluster.map().owner(slot) == Some(&address) {
                    return Err(at(&address, error));
                }
            } else {
                if is_lost(&error) {
                    self.cluster.suspect();
                }
                return Err(at(&address, error));
            }
        }
    }

    /// Waits for an answer about the cluster until `deadline`. No command is in progress at that time, so the error is
    /// `NO_LINK`.
    async fn known_by<T>(
        &self,
        deadline: Instant,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let none = |_| {
            let text = format!("no server of the cluster answered in {:?}", self.timeout);
            Err(StoreError::Unavailable { kind: NO_LINK, text })
        };
        timeout_at(deadline, answer).await.unwrap_or_else(none)
    }

    async fn call<T: FromRedisValue>(
        &self,
        connection: &Connection,
        command: &Cmd,
        deadline: Instant,
        is_asking: bool,
    ) -> Result<(T, u64), CommandFailure> {
        let doubt = async {
            let mut next = Instant::now() + DOUBT_INTERVAL;
            loop {
                sleep_until(next).await;
                next += DOUBT_INTERVAL;
                // The call ends if another primary is found.
                let _ = self.cluster.refresh(Instant::now()).await;
            }
        };
        tokio::select! {
            biased;
            result = connection.run_directed(command, deadline, is_asking) => result,
            () = doubt => unreachable!("it never ends"),
        }
    }
}
