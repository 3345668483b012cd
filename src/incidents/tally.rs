//! Log lines about what happens often: the first at once, then a count each minute.

use tokio::time::Instant;

use super::LOG_INTERVAL;

/// What happened since the latest line.
#[derive(Debug, Default)]
pub struct Tally {
    count: u64,
    /// The times of the first and the last counted one.
    times: Option<(Instant, Instant)>,
    sample: Option<Sample>,
    logged: Option<Instant>,
}

/// One case of many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    pub id: String,
    pub error: String,
}

/// A line.
#[derive(Debug, PartialEq, Eq)]
pub struct Counted {
    pub count: u64,
    /// When the first and the last of them happened, where that was not just now.
    pub times: Option<(Instant, Instant)>,
    /// The last one.
    pub sample: Option<Sample>,
}

impl Tally {
    pub fn add(&mut self, now: Instant, count: u64, sample: Option<Sample>) {
        self.count += count;
        self.times = Some((self.times.map_or(now, |(first, _)| first), now));
        self.sample = sample.or(self.sample.take());
    }

    /// Whether there is anything to log, now or later.
    pub fn waits(&self) -> bool {
        self.count > 0
    }

    /// Whether nothing happened since the latest line, and that is long ago.
    pub fn is_over(&self, now: Instant) -> bool {
        !self.waits() && self.logged.is_none_or(|logged| now >= logged + LOG_INTERVAL)
    }

    /// When the next line is due; `None` when there is nothing to log, or a line is due at once.
    pub fn due(&self) -> Option<Instant> {
        self.logged.filter(|_| self.waits()).map(|logged| logged + LOG_INTERVAL)
    }

    /// What to log now.
    pub fn take(&mut self, now: Instant) -> Option<Counted> {
        if !self.waits() || self.due().is_some_and(|due| now < due) {
            return None;
        }
        self.logged = Some(now);
        let times = self.times.take().filter(|(first, _)| *first < now);
        Some(Counted { count: std::mem::take(&mut self.count), times, sample: self.sample.take() })
    }
}
