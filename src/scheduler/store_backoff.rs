//! How long to wait before the store is asked again after it failed.

use std::time::Duration;

use crate::{incidents::Incidents, store::StoreError};

/// First wait after the store could not be reached.
const FIRST: Duration = Duration::from_millis(50);

/// Longest wait while it cannot be reached: well within the 2 s in which a route must be back once Redis is.
const LONGEST: Duration = Duration::from_millis(500);

/// Wait after an error that an operator must resolve: people are not faster.
const OPERATOR_WAIT: Duration = Duration::from_secs(5);

/// Between two log lines of the same error.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Counts failures in a row.
#[derive(Debug, Default)]
pub struct StoreBackoff {
    failures: u32,
    logged: Option<tokio::time::Instant>,
}

impl StoreBackoff {
    /// Returns how long to wait. Logs an error that an operator must resolve, once a minute at most; an outage is a suspicion
    /// that concerns every partition.
    pub fn wait(
        &mut self,
        incidents: &Incidents,
        place: &dyn std::fmt::Display,
        doing: &'static str,
        error: &StoreError,
    ) -> Duration {
        let now = tokio::time::Instant::now();
        if is_outage(error) {
            tracing::debug!(partition = %place, doing, %error, "the store does not answer; trying again");
            incidents.suspect_redis();
        } else if self.logged.is_none_or(|logged| now.duration_since(logged) >= LOG_INTERVAL) {
            self.logged = Some(now);
            tracing::error!(partition = %place, doing, %error, "this partition waits for an operator to resolve the error");
        }
        self.failures = self.failures.saturating_add(1);
        if is_outage(error) { LONGEST.min(FIRST * (1 << (self.failures - 1).min(8))) } else { OPERATOR_WAIT }
    }

    /// Returns whether it had failed before.
    pub fn answered(&mut self) -> bool {
        std::mem::take(&mut self.failures) > 0
    }
}

/// Whether waiting alone can help; whether the store did it is unknown then.
pub fn is_outage(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_grow_to_half_a_second_and_start_anew_after_an_answer() {
        let outage = StoreError::Unavailable { kind: "timeout", text: String::new() };
        let (mut backoff, incidents) = (StoreBackoff::default(), Incidents::default());
        let waits: Vec<_> = (0..6).map(|_| backoff.wait(&incidents, &"r:0", "claim", &outage).as_millis()).collect();
        assert_eq!(waits, [50, 100, 200, 400, 500, 500]);
        assert!(backoff.answered() && !backoff.answered());
        assert_eq!(backoff.wait(&incidents, &"r:0", "claim", &outage), FIRST);
        assert_eq!(
            backoff.wait(&incidents, &"r:0", "claim", &StoreError::WrongType { text: String::new() }),
            OPERATOR_WAIT
        );
    }
}
