//! Log lines about what happens often: the first at once, then a count each minute.

use tokio::time::Instant;

use super::LOG_INTERVAL;

/// What happened since the latest line.
#[derive(Debug, Default)]
pub struct Tally {
    count: u64,
    sample: Option<Sample>,
    logged: Option<Instant>,
}

/// One case of many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    pub id: String,
    pub error: String,
}

impl Tally {
    pub fn add(&mut self, count: u64, sample: Option<Sample>) {
        self.count += count;
        self.sample = sample.or(self.sample.take());
    }

    /// Whether there is anything to log, now or later.
    pub fn waits(&self) -> bool {
        self.count > 0
    }

    /// When the next line is due; `None` when there is nothing to log, or a line is due at once.
    pub fn due(&self) -> Option<Instant> {
        self.logged.filter(|_| self.waits()).map(|logged| logged + LOG_INTERVAL)
    }

    /// What to log now.
    pub fn take(&mut self, now: Instant) -> Option<(u64, Option<Sample>)> {
        if !self.waits() || self.due().is_some_and(|due| now < due) {
            return None;
        }
        self.logged = Some(now);
        Some((std::mem::take(&mut self.count), self.sample.take()))
    }
}
