//! Whether a sink is reachable, independent of its messages. It is checked once at the start, which also connects it,
//! and later on request only.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::sinks::RunningSink;
use crate::store::redis::connection::Connection;

/// Time for which a result is reused, so that a dashboard that refreshes every second does not load a broker.
const FRESH: Duration = Duration::from_secs(5);
/// Maximum time of one check: longer than the connect timeout of any sink.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// The time and the result of a check.
type Answer = (Instant, Result<(), String>);

#[derive(Clone)]
pub struct Reachability {
    sink: RunningSink,
    /// The queue's Redis, for a list on it.
    own: Option<Arc<Connection>>,
    last: watch::Sender<Option<Answer>>,
    under_way: Arc<AtomicBool>,
}

impl Reachability {
    /// `own`: the queue's Redis, for a list on it.
    pub fn new(sink: RunningSink, own: Option<Arc<Connection>>) -> Self {
        Self { sink, own, last: watch::Sender::default(), under_way: Arc::default() }
    }

    pub fn sink(&self) -> &RunningSink {
        &self.sink
    }

    /// The latest result. If it is not fresh, a check starts, and its result is returned if it arrives within
    /// `max_wait`. `None` before the first result. Must be called within a tokio runtime.
    pub async fn answer(&self, max_wait: Duration) -> Option<Result<(), String>> {
        let fresh = |answer: &Option<Answer>| answer.as_ref().is_some_and(|(at, _)| at.elapsed() < FRESH);
        let mut last = self.last.subscribe();
        if !fresh(&last.borrow()) {
            self.ask();
            // A later result is for the next caller.
            let _ = timeout(max_wait, last.wait_for(fresh)).await;
        }
        last.borrow().as_ref().map(|(_, answer)| answer.clone())
    }

    /// Starts a check in the background, unless one is in progress.
    fn ask(&self) {
        if self.under_way.swap(true, Ordering::SeqCst) {
            return;
        }
        let reachability = self.clone();
        tokio::spawn(async move {
            let answer = timeout(ANSWER_TIMEOUT, reachability.sink.check(reachability.own.as_deref())).await;
            let answer = answer.unwrap_or_else(|_| Err(format!("no answer in {ANSWER_TIMEOUT:?}")));
            reachability.under_way.store(false, Ordering::SeqCst);
            reachability.last.send_replace(Some((Instant::now(), answer)));
        });
    }
}
