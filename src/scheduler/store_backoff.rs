//! How long to wait before a failed call of the store is repeated.

use std::time::Duration;

use crate::{
    incidents::{Incidents, Subject},
    store::StoreError,
};

/// First wait after the store could not be reached.
const FIRST: Duration = Duration::from_millis(50);

/// Maximum wait while the store cannot be reached: well below the 2 s within which a route must work after Redis is
/// back.
const LONGEST: Duration = Duration::from_millis(500);

/// Wait after an error that an operator must resolve. Operators are not faster.
const OPERATOR_WAIT: Duration = Duration::from_secs(5);

/// Minimum time between two log lines.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Time without an answer after which an outage of Redis has been detected, if it is one.
const FOUND: Duration = Duration::from_secs(10);

/// Counts consecutive failures.
#[derive(Debug, Default)]
pub struct StoreBackoff {
    failures: u32,
    /// Time of the first failure.
    since: Option<tokio::time::Instant>,
    logged: Option<tokio::time::Instant>,
}

impl StoreBackoff {
    /// Returns how long to wait. Logs an error that an operator must resolve, at most once a minute. An outage usually
    /// affects every partition and is logged as an outage of Redis; it is logged here only if Redis is otherwise up.
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

    /// Records an answer. Returns whether the previous call had failed.
    pub fn answered(&mut self) -> bool {
        self.since = None;
        std::mem::take(&mut self.failures) > 0
    }
}

/// Whether a repeated call can succeed without an operator. Whether the failed call took effect is unknown.
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

    #[tokio::test(start_paused = true)]
    async fn an_error_that_an_operator_must_resolve_is_logged_once_a_minute() {
        let refused = StoreError::WrongType { text: String::new() };
        let (mut backoff, incidents) = (StoreBackoff::default(), Incidents::default());
        let mut times = Vec::new();
        for _ in 0..30 {
            let wait = backoff.wait(&incidents, &"r:0/1", "settle", &refused);
            times.extend(backoff.logged);
            tokio::time::advance(wait).await;
        }
        times.dedup();
        let intervals: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(intervals, [LOG_INTERVAL; 2]);
    }
}
