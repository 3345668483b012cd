//! Writes whose success is reported: with `redis.durability` only once replicas have confirmed them.
//!
//! WAIT confirms what its own connection wrote, and holds up everything behind it there. So these writes have a connection of
//! their own, and one WAIT is for all that were answered before it: those that arrive meanwhile share the next one.

use std::{
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::FromRedisValue;
use tokio::sync::oneshot;

use super::{
    UNREGISTERED,
    connection::{Connection, NO_ANSWER, NO_REPLICAS},
    script::Call,
};
use crate::{metrics, store::StoreError};

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
    connection: Arc<Connection>,
    /// `None`: the master's answer is enough.
    durability: Option<Durability>,
    queue: Mutex<ConfirmQueue>,
    /// Whether the replicas did not confirm the last ones.
    is_failing: AtomicBool,
}

#[derive(Default)]
struct ConfirmQueue {
    waiting: Vec<Unconfirmed>,
    /// A task confirms those that wait.
    is_driven: bool,
}

struct Unconfirmed {
    /// The link on which it was answered.
    link: u64,
    /// Called before WAIT when the call itself wrote nothing.
    fence: Option<Call>,
    answer: oneshot::Sender<Result<(), StoreError>>,
}

impl Writes {
    /// With `durability`, `connection` must be for these writes only.
    pub fn new(connection: Arc<Connection>, durability: Option<Durability>) -> Arc<Self> {
        Arc::new(Self { connection, durability, queue: Mutex::default(), is_failing: AtomicBool::new(false) })
    }

    pub fn durability(&self) -> Option<Durability> {
        self.durability
    }

    /// The reply, and the link to be confirmed.
    pub async fn run<T: FromRedisValue>(&self, call: Call) -> Result<(T, u64), StoreError> {
        call.run_on_link(&self.connection).await
    }

    /// Returns when enough replicas have what was answered on `link`. `fence`: for a call that wrote nothing. WAIT would not
    /// wait for the write of another connection that its answer depends on.
    ///
    /// # Errors
    /// `Unavailable`: it is written, and may be lost when another server becomes the master. To be repeated.
    pub async fn confirm(self: &Arc<Self>, link: u64, fence: Option<Call>) -> Result<(), StoreError> {
        let Some(durability) = self.durability else { return Ok(()) };
        let (answer, answered) = oneshot::channel();
        let must_drive = {
            let mut queue = self.lock();
            queue.waiting.push(Unconfirmed { link, fence, answer });
            !mem::replace(&mut queue.is_driven, true)
        };
        if must_drive {
            tokio::spawn(Arc::clone(self).drive(durability));
        }
        answered.await.unwrap_or_else(|_| Err(unknown(NO_ANSWER, "punctual is stopping")))
    }

    /// Whether enough replicas have all that was written so far.
    ///
    /// # Errors
    /// Those of `confirm`.
    pub async fn check(self: &Arc<Self>) -> Result<(), StoreError> {
        if self.durability.is_none() {
            return Ok(());
        }
        let (_, link): (String, u64) = self.connection.run_on_link(&redis::cmd("PING")).await?;
        self.confirm(link, None).await
    }

    async fn drive(self: Arc<Self>, durability: Durability) {
        let _guard = PanicGuard(&self);
        loop {
            let group = {
                let mut queue = self.lock();
                queue.is_driven = !queue.waiting.is_empty();
                if !queue.is_driven {
                    return;
                }
                mem::take(&mut queue.waiting)
            };
            let newest = group.iter().map(|one| one.link).max().unwrap_or_default();
            let (mut group, older): (Vec<_>, Vec<_>) = group.into_iter().partition(|one| one.link == newest);
            for one in older {
                // An error means that the caller has given up; so below.
                let _ = one.answer.send(Err(link_lost()));
            }
            // One is behind all that was answered.
            let fence = group.iter_mut().find_map(|one| one.fence.take());
            let result = self.wait(durability, newest, fence).await;
            self.note(&result);
            for one in group {
                let _ = one.answer.send(result.clone());
            }
        }
    }

    async fn wait(&self, durability: Durability, link: u64, fence: Option<Call>) -> Result<(), StoreError> {
        let Durability { replicas, timeout } = durability;
        if let Some(fence) = fence {
            let (fenced, on): (bool, u64) = fence.run_on_link(&self.connection).await?;
            if on != link {
                return Err(link_lost());
            }
            if !fenced {
                return Err(unknown(UNREGISTERED, "the partition is not open any more"));
            }
        }
        let mut wait = redis::cmd("WAIT");
        wait.arg(replicas).arg(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        let confirmed: Option<u64> = self.connection.run_over(link, &wait).await?;
        match confirmed {
            None => Err(link_lost()),
            Some(confirmed) if confirmed < replicas => {
                metrics::redis_error(NO_REPLICAS);
                Err(unknown(
                    NO_REPLICAS,
                    &format!("{confirmed} of {replicas} replicas confirmed it within {timeout:?}"),
                ))
            }
            Some(_) => Ok(()),
        }
    }

    /// Logs the first and the last of failures in a row.
    fn note(&self, result: &Result<(), StoreError>) {
        let is_missed = matches!(result, Err(StoreError::Unavailable { kind: NO_REPLICAS, .. }));
        match result {
            Err(error) if is_missed && !self.is_failing.swap(true, Ordering::Relaxed) => {
                tracing::error!(%error, "replicas do not confirm what is scheduled: it is answered with 503");
            }
            Ok(()) if self.is_failing.swap(false, Ordering::Relaxed) => {
                tracing::warn!("replicas confirm again what is scheduled");
            }
            _ => {}
        }
    }

    /// No panic can leave it half-changed.
    fn lock(&self) -> MutexGuard<'_, ConfirmQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// After a panic, which is a defect, what waits gets an error, and the next call starts another task.
struct PanicGuard<'a>(&'a Writes);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            *self.0.lock() = ConfirmQueue::default();
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
