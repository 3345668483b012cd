//! Log lines about frequent events: the first event at once, then a count each minute.

use tokio::time::Instant;

use super::LOG_INTERVAL;
use crate::message::TraceId;

/// The events since the latest line.
#[derive(Debug, Default)]
pub struct Tally {
    count: u64,
    /// The times of the first and the last counted event.
    times: Option<(Instant, Instant)>,
    sample: Option<Sample>,
    logged: Option<Instant>,
}

/// An example of the counted events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    pub id: String,
    pub error: String,
    /// The message's trace, if it has one.
    pub trace: Option<TraceId>,
}

impl Sample {
    /// A message without a trace.
    pub fn new(id: &str, error: &str) -> Self {
        Self { id: id.to_owned(), error: error.to_owned(), trace: None }
    }
}

/// The content of a line.
#[derive(Debug, PartialEq, Eq)]
pub struct Counted {
    pub count: u64,
    /// The times of the first and the last event, unless the first one is happening now.
    pub times: Option<(Instant, Instant)>,
    /// The latest sample.
    pub sample: Option<Sample>,
}

impl Tally {
    pub fn add(&mut self, now: Instant, count: u64, sample: Option<Sample>) {
        self.count += count;
        self.times = Some((self.times.map_or(now, |(first, _)| first), now));
        self.sample = sample.or(self.sample.take());
    }

    /// Whether there are events to log, now or later.
    pub fn waits(&self) -> bool {
        self.count > 0
    }

    /// Whether there were no events since the latest line and in the last interval.
    pub fn is_over(&self, now: Instant) -> bool {
        !self.waits() && self.logged.is_none_or(|logged| now >= logged + LOG_INTERVAL)
    }

    /// The time of the next line; `None` if there is nothing to log, or the line is due at once.
    pub fn due(&self) -> Option<Instant> {
        self.logged.filter(|_| self.waits()).map(|logged| logged + LOG_INTERVAL)
    }

    /// The line to log now.
    pub fn take(&mut self, now: Instant) -> Option<Counted> {
        if self.due().is_some_and(|due| now < due) {
            return None;
        }
        self.take_early(now)
    }

    /// The last line, before its time.
    pub fn take_early(&mut self, now: Instant) -> Option<Counted> {
        if !self.waits() {
            return None;
        }
        self.logged = Some(now);
        let times = self.times.take().filter(|(first, _)| *first < now);
        Some(Counted { count: std::mem::take(&mut self.count), times, sample: self.sample.take() })
    }
}
