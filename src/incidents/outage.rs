//! Times of the log lines of an outage. The clock is an argument.

use std::time::Duration;

use tokio::time::Instant;

use super::LOG_INTERVAL;

/// Maximum number of different errors of one outage that are logged at once. Each is logged once: the cause can change,
/// but texts that always differ must not become a line each.
const MAX_ERRORS: usize = 5;

/// An outage of a subject.
#[derive(Debug)]
pub struct Outage {
    since: Instant,
    /// The latest line.
    logged: Instant,
    /// The latest failure.
    failed: Instant,
    error: String,
    /// Errors that were logged, up to `MAX_ERRORS`.
    known: Vec<String>,
}

impl Outage {
    /// The caller logs the first line.
    pub fn new(now: Instant, error: &str) -> Self {
        Self { since: now, logged: now, failed: now, error: error.to_owned(), known: vec![error.to_owned()] }
    }

    pub fn lasted(&self, now: Instant) -> Duration {
        now - self.since
    }

    /// The latest error.
    pub fn error(&self) -> &str {
        &self.error
    }

    /// Records a failure. Returns whether to log it at once, because the error is new.
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

    /// Records a failure with an error that the next line shows.
    pub fn failed_quietly(&mut self, now: Instant, error: &str) {
        self.failed = now;
        error.clone_into(&mut self.error);
    }

    /// The time of the next line.
    pub fn due(&self) -> Instant {
        self.logged + LOG_INTERVAL
    }

    /// Starts the next interval. Returns whether there was a failure in the previous one.
    pub fn remind(&mut self, now: Instant) -> bool {
        let failed = self.failed > self.logged;
        self.logged = now;
        failed
    }
}
