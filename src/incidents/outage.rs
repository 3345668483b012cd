//! When a lasting outage is worth a log line. No clock: instants are arguments.

use std::time::Duration;

use tokio::time::Instant;

use super::LOG_INTERVAL;

/// Different errors of one outage that are logged at once, each the first time: the cause may change, and texts that
/// never repeat must not become a line each.
const MAX_ERRORS: usize = 5;

/// Something is down.
#[derive(Debug)]
pub struct Outage {
    since: Instant,
    /// The latest line.
    logged: Instant,
    /// The latest failure.
    failed: Instant,
    error: String,
    /// Those that were logged, up to `MAX_ERRORS`.
    known: Vec<String>,
}

impl Outage {
    /// Its first line is logged by the caller.
    pub fn new(now: Instant, error: &str) -> Self {
        Self { since: now, logged: now, failed: now, error: error.to_owned(), known: vec![error.to_owned()] }
    }

    pub fn lasted(&self, now: Instant) -> Duration {
        now - self.since
    }

    /// The latest one.
    pub fn error(&self) -> &str {
        &self.error
    }

    /// It failed again. Returns whether that is to be logged at once: another cause.
    pub fn failed(&mut self, now: Instant, error: &str) -> bool {
        self.failed = now;
        if self.error == error {
            return false;
        }
        error.clone_into(&mut self.error);
        let is_news = self.known.len() < MAX_ERRORS && self.known.iter().all(|known| known != error);
        if is_news {
            self.known.push(error.to_owned());
            self.logged = now;
        }
        is_news
    }

    /// It failed again, with an error that is shown by the next line.
    pub fn failed_quietly(&mut self, now: Instant, error: &str) {
        self.failed = now;
        error.clone_into(&mut self.error);
    }

    /// When the next line about it is due.
    pub fn due(&self) -> Instant {
        self.logged + LOG_INTERVAL
    }

    /// The next line is logged, or left out. Returns whether it failed since the latest one.
    pub fn remind(&mut self, now: Instant) -> bool {
        let failed = self.failed > self.logged;
        self.logged = now;
        failed
    }
}
