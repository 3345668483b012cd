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
    pub const ALL: [Self; 6] =
        [Self::Rejected, Self::Attempts, Self::Expired, Self::Crash, Self::Orphan, Self::Undecodable];

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

/// How a claim ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Ack,
    /// Counts the attempt.
    Retry {
        delay: Duration,
    },
    Bury(DeadReason),
    /// As if it had never been claimed.
    Release,
}

/// A route's answer to failure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// At least 1.
    pub max_attempts: u32,
    pub backoff: Backoff,
}

/// `attempt` counts from 1 and includes this one; `max_attempts` is the message's own limit, if it has one.
/// A `probe` (sent through an open breaker) counts nothing unless it was confirmed or rejected.
pub fn decide(
    outcome: &Outcome,
    attempt: u32,
    max_attempts: Option<u32>,
    probe: bool,
    policy: &RetryPolicy,
    rng: &mut impl Rng,
) -> Decision {
    match outcome {
        Outcome::Confirmed => Decision::Ack,
        Outcome::Rejected { .. } | Outcome::Unsendable { .. } => Decision::Bury(DeadReason::Rejected),
        Outcome::Unavailable { .. } => Decision::Release,
        Outcome::Failed { .. } | Outcome::Throttled { .. } if probe => Decision::Release,
        Outcome::Failed { retry_after, .. } | Outcome::Throttled { retry_after, .. } => {
            if attempt >= max_attempts.unwrap_or(policy.max_attempts) {
                return Decision::Bury(DeadReason::Attempts);
            }
            let asked = retry_after.unwrap_or(Duration::ZERO).min(policy.backoff.max());
            Decision::Retry { delay: policy.backoff.delay(attempt, rng).max(asked) }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn follows(outcome: &Outcome, attempt: u32, probe: bool) -> Decision {
        let policy = RetryPolicy { max_attempts: 3, backoff: Backoff::new(SECOND, 2.0, 60 * SECOND, 0.0).unwrap() };
        decide(outcome, attempt, None, probe, &policy, &mut StdRng::seed_from_u64(1))
    }

    fn failed(retry_after: Option<Duration>) -> Outcome {
        Outcome::Failed { error: "HTTP 500".into(), retry_after }
    }

    #[test]
    fn each_outcome_has_its_consequence() {
        assert_eq!(follows(&Outcome::Confirmed, 1, false), Decision::Ack);
        assert_eq!(follows(&failed(None), 1, false), Decision::Retry { delay: SECOND });
        assert_eq!(follows(&failed(None), 2, false), Decision::Retry { delay: 2 * SECOND });
        assert_eq!(follows(&failed(None), 3, false), Decision::Bury(DeadReason::Attempts));
        let error = String::from("x");
        assert_eq!(
            follows(&Outcome::Rejected { error: error.clone() }, 1, false),
            Decision::Bury(DeadReason::Rejected)
        );
        assert_eq!(follows(&Outcome::Unavailable { error }, 3, false), Decision::Release);
    }

    #[test]
    fn retry_after_is_a_lower_bound_and_capped() {
        assert_eq!(follows(&failed(Some(30 * SECOND)), 1, false), Decision::Retry { delay: 30 * SECOND });
        assert_eq!(
            follows(&failed(Some(Duration::from_secs(1_000_000_000))), 1, false),
            Decision::Retry { delay: 60 * SECOND }
        );
        assert_eq!(follows(&failed(Some(Duration::ZERO)), 1, false), Decision::Retry { delay: SECOND });
    }

    #[test]
    fn a_probe_counts_nothing_unless_confirmed_or_rejected() {
        assert_eq!(follows(&failed(None), 3, true), Decision::Release);
        assert_eq!(follows(&Outcome::Confirmed, 3, true), Decision::Ack);
        assert_eq!(follows(&Outcome::Rejected { error: String::new() }, 1, true), Decision::Bury(DeadReason::Rejected));
    }
}
