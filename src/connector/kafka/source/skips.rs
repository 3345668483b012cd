//! Tells of records that were skipped, now and then: a first read may skip thousands.

use std::time::Duration;

use tokio::time::Instant;

/// Least time between two log lines.
const INTERVAL: Duration = Duration::from_mins(1);

#[derive(Default)]
pub struct Skips {
    untold: u64,
    told: Option<Instant>,
}

impl Skips {
    pub fn add(&mut self) {
        self.untold += 1;
    }

    /// Logs how many there were since the last time, unless that was a moment ago.
    pub fn tell(&mut self, source: &str) {
        if self.untold > 0 && self.told.is_none_or(|told| told.elapsed() >= INTERVAL) {
            let records = std::mem::take(&mut self.untold);
            tracing::warn!(source, records, "skipped what is overdue by more than `max_overdue`");
            self.told = Some(Instant::now());
        }
    }
}
