//! How long to wait before the store is asked again after it failed.

use std::time::Duration;

use crate::{
    incidents::{Incidents, Subject},
    store::StoreError,
};

/// First wait after the store could not be reached.
const FIRST: Duration = Duration::from_millis(50);

/// Longest wait while it cannot be reached: well within the 2 s in which a route must be back once Redis is.
const LONGEST: Duration = Duration::from_millis(500);

/// Wait after an error that an operator must resolve: people are not faster.
const OPERATOR_WAIT: Duration = Duration::from_secs(5);

/// Between two log lines of the same error.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// After so long without an answer an outage of Redis has been found, if it is one.
const FOUND: Duration = Duration::from_secs(10);

/// Counts failures in a row.
#[derive(Debug, Default)]
pub struct StoreBackoff {
    failures: u32,
    /// The first of them.
    since: Option<tokio::time::Instant>,
    logged: Option<tokio::time::Instant>,
}

impl StoreBackoff {
    /// Returns how long to wait. Logs, once a minute at most, an error that an operator must resolve. An outage usually concerns
    /// every partition, and is logged as one of Redis; here only where Redis is up otherwise.
    pub fn wait(
        &mut self,
        incidents: &Incidents,
        place: &dyn std::fmt::Display,
        doing: &'static str,
        error: &StoreError,
    ) -> Duration {
        let now = tokio::time::Instant::now();
        let since = *self.since.get_or_insert(now);
        if is_outage(error) {
            incidents.suspect_redis();
        }
        if self.is_news(now, incidents, since, error) {
            self.logged = Some(now);
            if is_outage(error) {
                tracing::warn!(partition = %place, doing, %error, "the store does not answer; trying again");
            } else {
                tracing::error!(partition = %place, doing, %error, "this partition waits for an operator to resolve the error");
            }
        }
        self.failures = self.failures.saturating_add(1);
        if is_outage(error) { LONGEST.min(FIRST * (1 << (self.failures - 1).min(8))) } else { OPERATOR_WAIT }
    }

    fn is_news(
        &self,
        now: tokio::time::Instant,
        incidents: &Incidents,
        since: tokio::time::Instant,
        error: &StoreError,
    ) -> bool {
        let is_found = || now >= since + FOUND && !incidents.is_down(&Subject::Redis);
        (!is_outage(error) || is_found()) && self.logged.is_none_or(|logged| now >= logged + LOG_INTERVAL)
    }

    /// Returns whether it had failed before.
    pub fn answered(&mut self) -> bool {
        self.since = None;
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
        let waits: Vec<_> = (0..6).map(|_| backoff.wait(&incidents, &"r:0/1", "claim", &outage).as_millis()).collect();
        assert_eq!(waits, [50, 100, 200, 400, 500, 500]);
        assert!(backoff.answered() && !backoff.answered());
        assert_eq!(backoff.wait(&incidents, &"r:0/1", "claim", &outage), FIRST);
        assert_eq!(
            backoff.wait(&incidents, &"r:0/1", "claim", &StoreError::WrongType { text: String::new() }),
            OPERATOR_WAIT
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_logged_here_only_while_redis_is_up_otherwise() {
        let outage = StoreError::Unavailable { kind: "readonly", text: String::new() };
        for is_down in [true, false] {
            let (mut backoff, incidents) = (StoreBackoff::default(), Incidents::default());
            if is_down {
                incidents.failed(&Subject::Redis, "refused");
            }
            backoff.wait(&incidents, &"r:0/1", "settle", &outage);
            assert_eq!(backoff.logged, None, "not at once");
            tokio::time::advance(FOUND).await;
            backoff.wait(&incidents, &"r:0/1", "settle", &outage);
            assert_eq!(backoff.logged.is_none(), is_down);
        }
    }
}
