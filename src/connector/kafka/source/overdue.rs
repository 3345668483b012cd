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

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn skipped_records_are_logged_once_a_minute_and_counted_in_between() {
        let mut skipped = SkippedRecords::default();
        skipped.log("s");
        assert_eq!(skipped.logged, None, "none was skipped");
        for (passed, left) in [(0, 0), (59, 2), (1, 0), (30, 2)] {
            advance(Duration::from_secs(passed)).await;
            skipped.add();
            skipped.add();
            skipped.count = skipped.count.min(2);
            skipped.log("s");
            assert_eq!(skipped.count, left, "{passed}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_of_redis_goes_on_by_the_monotonic_one() {
        let clock = RedisClock { then: 1_700_000_000_000, read: Instant::now() };
        advance(Duration::from_millis(1500)).await;
        assert_eq!(clock.now(), 1_700_000_001_500);
    }
}
