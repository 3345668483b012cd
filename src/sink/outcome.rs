//! What an attempt came to, as its sink classifies it.

use std::time::Duration;

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
