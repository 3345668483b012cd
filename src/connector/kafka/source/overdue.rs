//! What `max_overdue` needs: the time by Redis, and a log line for the records that it skips.

use std::time::Duration;

use tokio::time::Instant;

use crate::{queue::QueueError, source::Intake};

/// Shortest time between two log lines: a first read may skip thousands of records.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Redis' clock, read once and carried on by the monotonic clock. The wall clock of the process plays no part.
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
    /// Since the last log line.
    count: u64,
    logged: Option<Instant>,
}

impl SkippedRecords {
    pub fn add(&mut self) {
        self.count += 1;
    }

    /// Logs the records since the last line, at most once per `LOG_INTERVAL`.
    pub fn log(&mut self, source: &str) {
        if self.count > 0 && self.logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
            let records = std::mem::take(&mut self.count);
            tracing::warn!(source, records, "skipped records that are overdue by more than `max_overdue`");
            self.logged = Some(Instant::now());
        }
    }
}
