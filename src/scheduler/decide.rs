//! The consequence of an attempt. Sinks classify the outcome; only `decide` determines how the claim ends.

use std::time::Duration;

use rand::Rng;

use crate::{
    message::DeadReason,
    retry::RetryPolicy,
    sink::Outcome,
    store::{ClaimEnd, Sent},
};

/// The cause of a failed attempt, as far as it concerns the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribution {
    /// The message is the cause: the attempt counts.
    Counts,
    /// The destination is the cause, or the cause is not known yet: no attempt counts, and the message is due again
    /// after this time.
    Waits(Duration),
}

/// How a claim ends after an attempt, or if the message cannot be sent. `attempt` counts from 1 and includes this
/// attempt; `max_attempts` is the message's own limit, if it has one.
pub fn decide(
    outcome: &Outcome,
    verdict: Attribution,
    attempt: u32,
    max_attempts: Option<u32>,
    policy: &RetryPolicy,
    rng: &mut impl Rng,
) -> ClaimEnd {
    let (retry_after, error) = match (outcome, verdict) {
        (Outcome::Confirmed, _) => return ClaimEnd::Ack,
        (Outcome::Rejected { error } | Outcome::Unsendable { error }, _) => {
            return ClaimEnd::Bury { reason: DeadReason::Rejected, error: error.clone() };
        }
        (_, Attribution::Waits(pause)) => return ClaimEnd::Defer { pause, sent: Sent::Yes { hold: None } },
        (Outcome::Failed { error, retry_after } | Outcome::Throttled { error, retry_after }, _) => {
            (*retry_after, error.clone())
        }
        (Outcome::Unsent { error } | Outcome::Unavailable { error } | Outcome::Lost { error }, _) => {
            (None, format!("{error}; again and again with this message, while others get through"))
        }
    };
    if attempt >= max_attempts.unwrap_or(policy.max_attempts) {
        return ClaimEnd::Bury { reason: DeadReason::Attempts, error };
    }
    let asked = retry_after.unwrap_or_default().min(policy.backoff.max());
    ClaimEnd::Retry { delay: policy.backoff.delay(attempt, rng).max(asked), error, hold: None }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;
    use crate::retry::Backoff;

    const SECOND: Duration = Duration::from_secs(1);

    /// The decision as text: a `ClaimEnd` cannot be compared.
    fn follows(outcome: &Outcome, verdict: Attribution, attempt: u32) -> String {
        let policy = RetryPolicy { max_attempts: 3, backoff: Backoff::new(SECOND, 2.0, 60 * SECOND, 0.0).unwrap() };
        format!("{:?}", decide(outcome, verdict, attempt, None, &policy, &mut StdRng::seed_from_u64(1)))
    }

    fn failed(retry_after: Option<Duration>) -> Outcome {
        Outcome::Failed { error: "HTTP 500".into(), retry_after }
    }

    fn retry(delay: Duration, error: &str) -> ClaimEnd {
        ClaimEnd::Retry { delay, error: error.into(), hold: None }
    }

    fn bury(reason: DeadReason, error: &str) -> ClaimEnd {
        ClaimEnd::Bury { reason, error: error.into() }
    }

    #[test]
    fn each_outcome_has_its_consequence() {
        let unavailable = Outcome::Unavailable { error: "x".into() };
        let again = "x; again and again with this message, while others get through";
        for (outcome, attempt, end) in [
            (Outcome::Confirmed, 1, ClaimEnd::Ack),
            (failed(None), 1, retry(SECOND, "HTTP 500")),
            (failed(None), 2, retry(2 * SECOND, "HTTP 500")),
            (failed(None), 3, bury(DeadReason::Attempts, "HTTP 500")),
            (unavailable.clone(), 1, retry(SECOND, again)),
            (unavailable, 3, bury(DeadReason::Attempts, again)),
            (Outcome::Lost { error: "x".into() }, 1, retry(SECOND, again)),
            (Outcome::Rejected { error: "x".into() }, 1, bury(DeadReason::Rejected, "x")),
            (Outcome::Unsendable { error: "x".into() }, 1, bury(DeadReason::Rejected, "x")),
        ] {
            assert_eq!(follows(&outcome, Attribution::Counts, attempt), format!("{end:?}"), "{outcome:?}");
        }
    }

    #[test]
    fn retry_after_is_a_lower_bound_and_capped() {
        for (asked, delay) in [(30, 30), (1_000_000_000, 60), (0, 1)] {
            let outcome = failed(Some(asked * SECOND));
            let end = retry(delay * SECOND, "HTTP 500");
            assert_eq!(follows(&outcome, Attribution::Counts, 1), format!("{end:?}"));
        }
    }

    #[test]
    fn a_failure_of_the_destination_counts_nothing() {
        let waits = Attribution::Waits(2 * SECOND);
        let rejected = Outcome::Rejected { error: "x".into() };
        for (outcome, attempt, end) in [
            (failed(None), 3, ClaimEnd::Defer { pause: 2 * SECOND, sent: Sent::Yes { hold: None } }),
            (Outcome::Confirmed, 3, ClaimEnd::Ack),
            (rejected, 1, bury(DeadReason::Rejected, "x")),
        ] {
            assert_eq!(follows(&outcome, waits, attempt), format!("{end:?}"));
        }
    }
}
