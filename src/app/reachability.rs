//! Whether a destination is there, whatever its messages have met with: asked once at the start, which also opens the
//! way for the first message, and then only when somebody wants to know.

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

use super::sinks::Destination;

/// For how long an answer is told again: a dashboard that looks every second is no load for a broker.
const FRESH: Duration = Duration::from_secs(5);
/// Longest wait for one answer: longer than any sink's own bound on connecting.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// What is wrong, if anything; and when it was asked.
type Answer = (Instant, Result<(), String>);

#[derive(Clone)]
pub struct Checkup {
    destination: Destination,
    last: watch::Sender<Option<Answer>>,
    under_way: Arc<AtomicBool>,
}

impl Checkup {
    pub fn new(destination: Destination) -> Self {
        Self { destination, last: watch::Sender::default(), under_way: Arc::default() }
    }

    pub fn destination(&self) -> &Destination {
        &self.destination
    }

    /// The last answer; a new one, if it comes within `patience` and the last is old. `None`: there is none yet. Must be
    /// called within a tokio runtime.
    pub async fn answer(&self, patience: Duration) -> Option<Result<(), String>> {
        let fresh = |answer: &Option<Answer>| answer.as_ref().is_some_and(|(at, _)| at.elapsed() < FRESH);
        let mut last = self.last.subscribe();
        if !fresh(&last.borrow()) {
            self.ask();
            // Too late is as well: then it is the next caller's.
            let _ = timeout(patience, last.wait_for(fresh)).await;
        }
        last.borrow().as_ref().map(|(_, answer)| answer.clone())
    }

    /// Asks in the background, unless that is under way.
    fn ask(&self) {
        if self.under_way.swap(true, Ordering::SeqCst) {
            return;
        }
        let checkup = self.clone();
        tokio::spawn(async move {
            let answer = timeout(ANSWER_TIMEOUT, checkup.destination.check()).await;
            let answer = answer.unwrap_or_else(|_| Err(format!("no answer in {ANSWER_TIMEOUT:?}")));
            checkup.under_way.store(false, Ordering::SeqCst);
            checkup.last.send_replace(Some((Instant::now(), answer)));
        });
    }
}
