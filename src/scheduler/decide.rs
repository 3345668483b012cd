//! What follows from an attempt. Sinks classify it; `decide` alone concludes.

use std::time::Duration;

use rand::Rng;

use crate::{message::DeadReason, retry::RetryPolicy, sink::Outcome};

/// What a failed attempt is put down to, as far as the message is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribution {
    /// The message: the attempt counts.
    Counts,
    /// Its destination, or not known yet: nothing counts, and the message is due again after this time.
    Waits(Duration),
}

/// How a claim ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Ack,
    /// Counts the attempt.
    Retry {
        delay: Duration,
    },
    Bury(DeadReason),
    /// Counts nothing; due again after `pause`.
    Defer {
        pause: Duration,
    },
}

/// `attempt` counts from 1 and includes this one; `max_attempts` is the message's own limit, if it has one.
pub fn decide(
    outcome: &Outcome,
    verdict: Attribution,
    attempt: u32,
    max_attempts: Option<u32>,
    policy: &RetryPolicy,
    rng: &mut impl Rng,
) -> Decision {
    let retry_after = match (outcome, verdict) {
        (Outcome::Confirmed, _) => return Decision::Ack,
        (Outcome::Rejected { .. } | Outcome::Unsendable { .. }, _) => return Decision::Bury(DeadReason::Rejected),
        (_, Attribution::Waits(pause)) => return Decision::Defer { pause },
        (Outcome::Failed { retry_after, .. } | Outcome::Throttled { retry_after, .. }, _) => *retry_after,
        (Outcome::Unavailable { .. }, _) => None,
    };
    if attempt >= max_attempts.unwrap_or(policy.max_attempts) {
        return Decision::Bury(DeadReason::Attempts);
    }
    let asked = retry_after.unwrap_or_default().min(policy.backoff.max());
    Decision::Retry { delay: policy.backoff.delay(attempt, rng).max(asked) }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;
    use crate::retry::Backoff;

    const SECOND: Duration = Duration::from_secs(1);

    fn follows(outcome: &Outcome, verdict: Attribution, attempt: u32) -> Decision {
        let policy = RetryPolicy { max_attempts: 3, backoff: Backoff::new(SECOND, 2.0, 60 * SECOND, 0.0).unwrap() };
        decide(outcome, verdict, attempt, None, &policy, &mut StdRng::seed_from_u64(1))
    }

    fn failed(retry_after: Option<Duration>) -> Outcome {
        Outcome::Failed { error: "HTTP 500".into(), retry_after }
    }

    #[test]
    fn each_outcome_has_its_consequence() {
        let unavailable = Outcome::Unavailable { error: "x".into() };
        for (outcome, attempt, decision) in [
            (Outcome::Confirmed, 1, Decision::Ack),
            (failed(None), 1, Decision::Retry { delay: SECOND }),
            (failed(None), 2, Decision::Retry { delay: 2 * SECOND }),
            (failed(None), 3, Decision::Bury(DeadReason::Attempts)),
            (unavailable.clone(), 1, Decision::Retry { delay: SECOND }),
            (unavailable, 3, Decision::Bury(DeadReason::Attempts)),
            (Outcome::Rejected { error: "x".into() }, 1, Decision::Bury(DeadReason::Rejected)),
            (Outcome::Unsendable { error: "x".into() }, 1, Decision::Bury(DeadReason::Rejected)),
        ] {
            assert_eq!(follows(&outcome, Attribution::Counts, attempt), decision, "{outcome:?}");
        }
    }

    #[test]
    fn retry_after_is_a_lower_bound_and_capped() {
        for (asked, delay) in [(30, 30), (1_000_000_000, 60), (0, 1)] {
            let outcome = failed(Some(asked * SECOND));
            assert_eq!(follows(&outcome, Attribution::Counts, 1), Decision::Retry { delay: delay * SECOND });
        }
    }

    #[test]
    fn a_failure_of_the_destination_counts_nothing() {
        let waits = Attribution::Waits(2 * SECOND);
        assert_eq!(follows(&failed(None), waits, 3), Decision::Defer { pause: 2 * SECOND });
        assert_eq!(follows(&Outcome::Confirmed, waits, 3), Decision::Ack);
        let rejected = Outcome::Rejected { error: String::new() };
        assert_eq!(follows(&rejected, waits, 1), Decision::Bury(DeadReason::Rejected));
    }
}
