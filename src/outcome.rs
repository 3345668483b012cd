//! What an attempt came to, and what follows from it. Sinks classify; `decide` alone concludes.

use std::time::Duration;

use rand::Rng;

use crate::backoff::Backoff;

/// The result of one attempt, as its sink saw it. Texts name the cause without the payload and without secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The destination has taken responsibility.
    Confirmed,
    /// This message failed there; another may pass.
    Failed { error: String, retry_after: Option<Duration> },
    /// The destination turns everyone away for now, or did not answer in time after it was sent to.
    Throttled { error: String, retry_after: Option<Duration> },
    /// The destination refused this message for good.
    Rejected { error: String },
    /// This message cannot be sent at all; the destination was not asked.
    Unsendable { error: String },
    /// No answer for this message: the destination was not reached, the connection was lost, no confirm came in time. The
    /// scheduler decides from what else got through whether message, domain or sink is the cause.
    Unavailable { error: String },
}

/// Every value of `Outcome::failure_kind`.
pub const FAILURE_KINDS: [&str; 4] = ["failed", "throttled", "rejected", "unavailable"];

impl Outcome {
    /// The `kind` label of `punctual_delivery_failures_total`; `None` when confirmed.
    pub fn failure_kind(&self) -> Option<&'static str> {
        match self {
            Outcome::Confirmed => None,
            Outcome::Failed { .. } => Some("failed"),
            Outcome::Throttled { .. } => Some("throttled"),
            Outcome::Rejected { .. } | Outcome::Unsendable { .. } => Some("rejected"),
            Outcome::Unavailable { .. } => Some("unavailable"),
        }
    }

    /// What went wrong; `None` when confirmed.
    pub fn error(&self) -> Option<&str> {
        match self {
            Outcome::Confirmed => None,
            Outcome::Failed { error, .. }
            | Outcome::Throttled { error, .. }
            | Outcome::Rejected { error }
            | Outcome::Unsendable { error }
            | Outcome::Unavailable { error } => Some(error),
        }
    }
}

/// Why a message is dead; the `reason` label of `punctual_messages_dead_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeadReason {
    /// The sink refused it for good.
    Rejected,
    /// Its attempts are used up.
    Attempts,
    /// Claimed after its `expires_at`.
    Expired,
    /// Its lease expired in every claim, the last ones with nothing else in flight.
    Crash,
    /// Its body was missing in Redis.
    Orphan,
    /// Its body cannot be read.
    Undecodable,
    /// A source could not understand it.
    Invalid,
}

impl DeadReason {
    pub const ALL: [Self; 7] =
        [Self::Rejected, Self::Attempts, Self::Expired, Self::Crash, Self::Orphan, Self::Undecodable, Self::Invalid];

    pub fn as_str(self) -> &'static str {
        match self {
            DeadReason::Rejected => "rejected",
            DeadReason::Attempts => "attempts",
            DeadReason::Expired => "expired",
            DeadReason::Crash => "crash",
            DeadReason::Orphan => "orphan",
            DeadReason::Undecodable => "undecodable",
            DeadReason::Invalid => "invalid",
        }
    }
}

/// What a failed attempt is put down to, as far as the message is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
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

/// A route's answer to failure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// At least 1.
    pub max_attempts: u32,
    pub backoff: Backoff,
}

/// `attempt` counts from 1 and includes this one; `max_attempts` is the message's own limit, if it has one.
pub fn decide(
    outcome: &Outcome,
    verdict: Verdict,
    attempt: u32,
    max_attempts: Option<u32>,
    policy: &RetryPolicy,
    rng: &mut impl Rng,
) -> Decision {
    let retry_after = match (outcome, verdict) {
        (Outcome::Confirmed, _) => return Decision::Ack,
        (Outcome::Rejected { .. } | Outcome::Unsendable { .. }, _) => return Decision::Bury(DeadReason::Rejected),
        (_, Verdict::Waits(pause)) => return Decision::Defer { pause },
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

    const SECOND: Duration = Duration::from_secs(1);

    fn follows(outcome: &Outcome, verdict: Verdict, attempt: u32) -> Decision {
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
            assert_eq!(follows(&outcome, Verdict::Counts, attempt), decision, "{outcome:?}");
        }
    }

    #[test]
    fn retry_after_is_a_lower_bound_and_capped() {
        for (asked, delay) in [(30, 30), (1_000_000_000, 60), (0, 1)] {
            let outcome = failed(Some(asked * SECOND));
            assert_eq!(follows(&outcome, Verdict::Counts, 1), Decision::Retry { delay: delay * SECOND });
        }
    }

    #[test]
    fn a_failure_of_the_destination_counts_nothing() {
        let waits = Verdict::Waits(2 * SECOND);
        assert_eq!(follows(&failed(None), waits, 3), Decision::Defer { pause: 2 * SECOND });
        assert_eq!(follows(&Outcome::Confirmed, waits, 3), Decision::Ack);
        let rejected = Outcome::Rejected { error: String::new() };
        assert_eq!(follows(&rejected, waits, 1), Decision::Bury(DeadReason::Rejected));
    }
}
