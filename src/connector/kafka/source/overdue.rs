//! The clock and the log lines of `max_overdue`: the time by Redis, and the number of skipped records.

use std::time::Duration;

use tokio::time::Instant;

use crate::{queue::QueueError, source::Intake};

/// Minimum time between two log lines: a first read can skip thousands of records.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Redis' clock, read once and continued by the monotonic clock. The wall clock of the process is not used.
#[derive(Clone, Copy, Debug)]
pub struct RedisClock {
    /// Milliseconds since the epoch, at `read`.
    then: u64,
    read: Instant,
}

impl RedisClock {
    /// # Errors
    /// When Redis does not answer.
    pub async fn read(intake: &Intake) -> Result<Self, QueueError> {
        let then = intake.queue().now(intake.route()).await?;
        Ok(Self { then, read: Instant::now() })
    }

    /// Milliseconds since the epoch.
    pub fn now(self) -> u64 {
        self.then.saturating_add(u64::try_from(self.read.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

/// Counts skipped records and logs the count.
#[derive(Default)]
pub struct SkippedRecords {
    /// Records since the last log line.
    count: u64,
    logged: Option<Instant>,
}

impl SkippedRecords {
    pub fn add(&mut self) {
        self.count += 1;
    }

    /// Logs the number of records since the last line, at most once per `LOG_INTERVAL`.
    pub fn log(&mut self, source: &str) {
        if self.count > 0 && self.logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
            let records = std::mem::take(&mut self.count);
            tracing::warn!(source, records, "skipped records that are overdue by more than `max_overdue`");
            self.logged = Some(Instant::now());
        }
    }
}
