//! Permits for the connections of all HTTP sinks: a process can open only a limited number of files.
//!
//! While workers wait for a permit, the others give theirs back: an idle worker at once, a busy one after its turn.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rustix::process::{Resource, getrlimit};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Files of the process that are left to Redis, the log and the like. The API takes at most half of the files.
const OTHER_FILES: usize = 20;
/// Minimum connections of all sinks, even if the process can open only few files.
const MIN_CONNECTIONS: usize = 4;
/// Time for which a busy connection is kept while others wait: several times as long as a TLS handshake, and far below
/// the usual `timeout`.
pub const TURN: Duration = Duration::from_millis(250);

static OUTGOING: LazyLock<Arc<Semaphore>> = LazyLock::new(|| {
    let files = getrlimit(Resource::Nofile).current.and_then(|files| usize::try_from(files).ok());
    let most = (files.unwrap_or(Semaphore::MAX_PERMITS) / 2).saturating_sub(OTHER_FILES);
    Arc::new(Semaphore::new(most.clamp(MIN_CONNECTIONS, Semaphore::MAX_PERMITS)))
});
/// Workers that wait for a permit of `OUTGOING`.
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// Notifies one idle worker for each worker that begins to wait.
static WANTED: Notify = Notify::const_new();

/// Permits of the sink and of the process for one connection.
pub struct ConnectionPermit {
    _sink: OwnedSemaphorePermit,
    _process: OwnedSemaphorePermit,
}

impl ConnectionPermit {
    /// Waits until another connection can be opened. `sink`: the connections of the sink. Cancel-safe.
    pub async fn acquire(sink: &Arc<Semaphore>) -> Self {
        let sink = Arc::clone(sink).acquire_owned().await.expect("never closed");
        let process = match Arc::clone(&OUTGOING).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => waiting(Arc::clone(&OUTGOING).acquire_owned()).await.expect("never closed"),
        };
        Self { _sink: sink, _process: process }
    }
}

async fn waiting<T>(permit: impl Future<Output = T>) -> T {
    struct Waiting;
    impl Drop for Waiting {
        fn drop(&mut self) {
            WAITING.fetch_sub(1, Ordering::AcqRel);
        }
    }
    WAITING.fetch_add(1, Ordering::AcqRel);
    let _waiting = Waiting;
    WANTED.notify_one();
    permit.await
}

/// Whether workers wait for a permit.
pub fn are_wanted() -> bool {
    WAITING.load(Ordering::Acquire) > 0
}

/// Returns when an idle worker is to give its permit back. Cancel-safe.
pub async fn wanted() {
    let mut wanted = pin!(WANTED.notified());
    wanted.as_mut().enable();
    if !are_wanted() {
        wanted.await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::{spawn, task::yield_now};

    use super::*;

    #[tokio::test]
    async fn idle_workers_give_their_permits_back_while_another_waits() {
        assert!(!are_wanted());
        let idle = spawn(wanted());
        yield_now().await;
        assert!(!idle.is_finished(), "none waits");
        let waits = spawn(waiting(pending::<()>()));
        idle.await.unwrap();
        assert!(are_wanted());
        wanted().await;
        waits.abort();
        waits.await.unwrap_err();
        assert!(!are_wanted());
    }
}
