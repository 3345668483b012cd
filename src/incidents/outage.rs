//! Times of the log lines of an outage. The clock is an argument.

use std::time::Duration;

use tokio::time::Instant;

use super::LOG_INTERVAL;

/// Maximum number of different errors of one outage that are logged at once. Each is logged once: the cause can change,
/// but texts that always differ must not become a line each.
const MAX_ERRORS: usize = 5;

/// An outage of a subject, and the outages that follow it within `LOG_INTERVAL`.
#[derive(Debug)]
pub struct Outage {
    since: Instant,
    is_down: bool,
    /// Whether the latest line reports that the subject is down.
    is_shown: bool,
    /// The latest line, except the line of an end.
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
        let (error, known) = (error.to_owned(), vec![error.to_owned()]);
        Self { since: now, is_down: true, is_shown: true, logged: now, failed: now, error, known }
    }

    pub fn is_down(&self) -> bool {
        self.is_down
    }

    pub fn lasted(&self, now: Instant) -> Duration {
        now - self.since
    }

    /// The latest error.
    pub fn error(&self) -> &str {
        &self.error
    }

    /// Records a failure. Returns whether to log it at once, because the error is new. An outage that begins again with
    /// a known error is logged when it is due.
    pub fn failed(&mut self, now: Instant, error: &str) -> bool {
        self.failed = now;
        if !self.is_down {
            (self.since, self.is_down) = (now, true);
        }
        if self.error == error {
            return false;
        }
        error.clone_into(&mut self.error);
        let is_news = self.known.len() < MAX_ERRORS && self.known.iter().all(|known| known != error);
        if is_news {
            self.known.push(error.to_owned());
            (self.logged, self.is_shown) = (now, true);
        }
        is_news
    }

    /// Records the end. Returns whether to log it.
    pub fn ended(&mut self) -> bool {
        self.is_down = false;
        std::mem::take(&mut self.is_shown)
    }

    /// Records a failure with an error that the next line shows.
    pub fn failed_quietly(&mut self, now: Instant, error: &str) {
        self.failed = now;
        error.clone_into(&mut self.error);
    }

    /// The time of the next line, or of the end of the interval if the subject is up.
    pub fn due(&self) -> Instant {
        self.logged + LOG_INTERVAL
    }

    /// Starts the next interval.
    pub fn remind(&mut self, now: Instant) -> Reminder {
        let failed = self.failed > self.logged;
        self.logged = now;
        match (std::mem::replace(&mut self.is_shown, true), failed) {
            (false, _) => Reminder::Began,
            (true, true) => Reminder::Failed,
            (true, false) => Reminder::Silent,
        }
    }
}

/// The event of an interval.
pub enum Reminder {
    /// An outage that was not logged yet.
    Began,
    Failed,
    /// No failure.
    Silent,
}
