//! Writes that report success to the caller: with `redis.durability`, only once replicas have confirmed them.
//!
//! WAIT confirms the writes of its own connection, and blocks later commands there. So these writes have their own
//! connection. One WAIT confirms all writes that were answered before it; writes that arrive during a WAIT share the
//! next one.

use std::{collections::BTreeMap, mem, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use redis::FromRedisValue;
use tokio::{sync::oneshot, time::Instant};

use super::{
    connection::{NO_ANSWER, NO_REPLICAS, OnLink, Servers},
    script::Call,
};
use crate::{metrics, store::StoreError};

/// Time without a failure after which it is logged that replicas confirm again.
const CALM: Duration = Duration::from_secs(5);

/// When a write counts as successful.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durability {
    /// Number of replicas that must confirm the write: at least 1.
    pub replicas: u64,
    /// Maximum wait for the replicas.
    pub timeout: Duration,
}

/// Sends writes to Redis, and confirms them.
pub struct Writes {
    servers: Servers,
    /// `None`: the master's answer is enough.
    durability: Option<Durability>,
    /// Answered writes that wait for confirmation, by the generation of their link. A task confirms the writes of each
    /// link that has an entry.
    waiting: Mutex<BTreeMap<u64, Vec<Unconfirmed>>>,
    /// The last time that replicas did not confirm, until it is logged that they confirm again.
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

    /// Runs a call. Returns the reply, and the link to pass to `confirm`.
    pub async fn run<T: FromRedisValue>(&self, call: Call) -> Result<(T, OnLink), StoreError> {
        call.run_on_link(&self.servers).await
    }

    /// Returns when enough replicas have all writes that were answered on `link`. `fence` is for a call that wrote
    /// nothing: its answer can depend on a write of another connection, for which WAIT alone would not wait.
    ///
    /// # Errors
    /// `Unavailable`: the master has the write, but a fail-over can lose it. The caller must repeat the call.
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

    /// Checks whether enough replicas of each master have everything written so far.
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

    /// Confirms writes until none waits on `link`.
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
            // One fence is enough: it is sent after all answered writes.
            let fence = group.iter_mut().find_map(|one| one.fence.take());
            let result = wait(durability, &link, fence).await;
            self.note(&result);
            for one in group {
                // An error means that the caller has given up.
                let _ = one.answer.send(result.clone());
            }
        }
    }

    /// Logs the first failure in a row, and the recovery; also if only the replicas of one of several masters fail.
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

    /// No panic can leave the map half-changed.
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
            // Others of the group wrote. Who gets `UNREGISTERED` repeats the call, which is wrong for these.
            return Err(unknown(NO_ANSWER, "the partition was closed before replicas confirmed it"));
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

/// After a panic, which is a defect, waiting writes get an error, and the next call starts another task.
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

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::{super::simulated::Simulated, *};
    use crate::log_lines::LogLines;

    #[tokio::test(start_paused = true)]
    async fn after_a_panic_the_waiting_writes_fail_and_later_ones_are_confirmed() {
        let redis = Simulated::start([]).await;
        redis.server.reply_with(|command| (command[0] == "WAIT").then_some(punctual_model::Reply::Int(1)));
        let connection = Arc::new(redis.connection());
        let durability = Durability { replicas: 1, timeout: CALM };
        let writes = Writes::new(connection.clone().into(), Some(durability));
        let (_, generation): (String, _) = connection.run_on_link(&redis::cmd("PING")).await.unwrap();
        let confirm = || {
            let (writes, link) = (writes.clone(), OnLink { connection: connection.clone(), generation });
            tokio::spawn(async move { writes.confirm(link, None).await })
        };
        // As if a task confirmed the writes of the link.
        writes.lock().insert(generation, Vec::new());
        let waiting = confirm();
        tokio::task::yield_now().await;
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = PanicGuard(&writes);
            panic!("a defect");
        }));
        assert!(panicked.is_err());
        let failed = waiting.await.unwrap();
        assert!(matches!(failed, Err(StoreError::Unavailable { kind: NO_ANSWER, .. })), "{failed:?}");
        assert_eq!(confirm().await.unwrap(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lack_of_replicas_is_logged_once_and_its_end_after_five_calm_seconds() {
        let redis = Simulated::start([]).await;
        let writes = Writes::new(Arc::new(redis.connection()).into(), None);
        let (log, _collecting) = LogLines::collect();
        let logged = |result: &Result<(), StoreError>| {
            writes.note(result);
            log.take().len()
        };
        let missing = Err(unknown(NO_REPLICAS, "1 of 2"));
        assert_eq!((logged(&Ok(())), logged(&Err(link_lost()))), (0, 0));
        assert_eq!((logged(&missing), logged(&missing), logged(&Ok(()))), (1, 0, 0));
        advance(CALM / 2).await;
        assert_eq!(logged(&missing), 0);
        advance(CALM * 99 / 100).await;
        assert_eq!(logged(&Ok(())), 0, "it was missed since");
        advance(CALM / 100).await;
        assert_eq!((logged(&Ok(())), logged(&Ok(())), logged(&missing)), (1, 0, 1));
    }
}
