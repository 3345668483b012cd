//! Writes whose success is reported: with `redis.durability` only once replicas have confirmed them.
//!
//! WAIT confirms what its own connection wrote, and holds up everything behind it there. So these writes have a connection of
//! their own, and one WAIT is for all that were answered before it: those that arrive meanwhile share the next one.

use std::{collections::BTreeMap, mem, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use redis::FromRedisValue;
use tokio::{sync::oneshot, time::Instant};

use super::{
    UNREGISTERED,
    connection::{NO_ANSWER, NO_REPLICAS, OnLink, Servers},
    script::Call,
};
use crate::{metrics, store::StoreError};

/// Time without a failure after which replicas are said to confirm again.
const CALM: Duration = Duration::from_secs(5);

/// When a write counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durability {
    /// Replicas that must have it: at least 1.
    pub replicas: u64,
    /// Longest wait for them.
    pub timeout: Duration,
}

/// The way of writes to Redis.
pub struct Writes {
    servers: Servers,
    /// `None`: the master's answer is enough.
    durability: Option<Durability>,
    /// What waits to be confirmed, by the link on which it was answered. A task confirms what is here.
    waiting: Mutex<BTreeMap<u64, Vec<Unconfirmed>>>,
    /// Whether the replicas did not confirm the last ones.
    /// The last time that replicas did not confirm, until it is logged that they do again.
    missed: Mutex<Option<Instant>>,
}

struct Unconfirmed {
    /// Called before WAIT when the call itself wrote nothing.
    fence: Option<Call>,
    answer: oneshot::Sender<Result<(), StoreError>>,
}

impl Writes {
    /// With `durability`, `servers` must be for these writes only.
    pub fn new(servers: Servers, durability: Option<Durability>) -> Arc<Self> {
        Arc::new(Self { servers, durability, waiting: Mutex::default(), missed: Mutex::default() })
    }

    pub fn durability(&self) -> Option<Durability> {
        self.durability
    }

    /// The reply, and the link to be confirmed.
    pub async fn run<T: FromRedisValue>(&self, call: Call) -> Result<(T, OnLink), StoreError> {
        call.run_on_link(&self.servers).await
    }

    /// Returns when enough replicas have what was answered on `link`. `fence`: for a call that wrote nothing. WAIT would not
    /// wait for the write of another connection that its answer depends on.
    ///
    /// # Errors
    /// `Unavailable`: it is written, and may be lost when another server becomes the master. To be repeated.
    pub async fn confirm(self: &Arc<Self>, link: OnLink, fence: Option<Call>) -> Result<(), StoreError> {
        let Some(durability) = self.durability else { return Ok(()) };
        let (answer, answered) = oneshot::channel();
        let must_drive = {
            let mut waiting = self.lock();
            let is_driven = waiting.contains_key(&link.generation);
            waiting.entry(link.generation).or_default().push(Unconfirmed { fence, answer });
            !is_driven
        };
        if must_drive {
            tokio::spawn(Arc::clone(self).drive(durability, link));
        }
        answered.await.unwrap_or_else(|_| Err(unknown(NO_ANSWER, "punctual is stopping")))
    }

    /// Whether enough replicas have all that was written so far, of each master.
    ///
    /// # Errors
    /// Those of `confirm`.
    pub async fn check(self: &Arc<Self>) -> Result<(), StoreError> {
        if self.durability.is_none() {
            return Ok(());
        }
        for connection in self.servers.all().await? {
            let (_, generation): (String, u64) = connection.run_on_link(&redis::cmd("PING")).await?;
            self.confirm(OnLink { connection, generation }, None).await?;
        }
        Ok(())
    }

    /// Until nothing waits on `link`.
    async fn drive(self: Arc<Self>, durability: Durability, link: OnLink) {
        let _guard = PanicGuard(&self);
        loop {
            let mut group = {
                let mut waiting = self.lock();
                match waiting.get_mut(&link.generation) {
                    Some(group) if !group.is_empty() => mem::take(group),
                    _ => {
                        waiting.remove(&link.generation);
                        return;
                    }
                }
            };
            // One is behind all that was answered.
            let fence = group.iter_mut().find_map(|one| one.fence.take());
            let result = wait(durability, &link, fence).await;
            self.note(&result);
            for one in group {
                // An error means that the caller has given up.
                let _ = one.answer.send(result.clone());
            }
        }
    }

    /// Logs the first and the last of failures in a row, also when the replicas of one master of several fail.
    fn note(&self, result: &Result<(), StoreError>) {
        let mut missed = self.missed.lock();
        match result {
            Err(error @ StoreError::Unavailable { kind: NO_REPLICAS, .. })
                if missed.replace(Instant::now()).is_none() =>
            {
                tracing::error!(%error, "replicas do not confirm what is scheduled: it is answered with 503");
            }
            Ok(()) if missed.is_some_and(|at| at.elapsed() >= CALM) => {
                *missed = None;
                tracing::warn!("replicas confirm again what is scheduled");
            }
            _ => {}
        }
    }

    /// No panic can leave it half-changed.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<Unconfirmed>>> {
        self.waiting.lock()
    }
}

async fn wait(durability: Durability, link: &OnLink, fence: Option<Call>) -> Result<(), StoreError> {
    let Durability { replicas, timeout } = durability;
    if let Some(fence) = fence {
        let (fenced, on): (bool, u64) = fence.run_over(&link.connection).await?;
        if on != link.generation {
            return Err(link_lost());
        }
        if !fenced {
            return Err(unknown(UNREGISTERED, "the partition is not open any more"));
        }
    }
    let mut wait = redis::cmd("WAIT");
    wait.arg(replicas).arg(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
    let confirmed: Option<u64> = link.connection.run_over(link.generation, &wait).await?;
    match confirmed {
        None => Err(link_lost()),
        Some(confirmed) if confirmed < replicas => {
            metrics::redis_error(NO_REPLICAS);
            Err(unknown(NO_REPLICAS, &format!("{confirmed} of {replicas} replicas confirmed it within {timeout:?}")))
        }
        Some(_) => Ok(()),
    }
}

/// After a panic, which is a defect, what waits gets an error, and the next call starts another task.
struct PanicGuard<'a>(&'a Writes);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().clear();
        }
    }
}

fn unknown(kind: &'static str, text: &str) -> StoreError {
    let text = format!("{text}: whether it lasts is unknown, repeat it with the same id");
    StoreError::Unavailable { kind, text }
}

fn link_lost() -> StoreError {
    unknown(NO_ANSWER, "the connection was lost before replicas confirmed it")
}
