//! The outcome of an attempt, as its sink classifies it.

use std::time::Duration;

/// The result of one attempt. Error texts name the cause, without payload and secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The destination confirmed the message.
    Confirmed,
    /// This message failed; others may pass.
    Failed { error: String, retry_after: Option<Duration> },
    /// The destination refuses all messages for now, or the reply to one message did not come in time.
    Throttled { error: String, retry_after: Option<Duration> },
    /// The destination refused this message permanently.
    Rejected { error: String },
    /// This message cannot be sent; nothing was sent.
    Unsendable { error: String },
    /// Nothing was sent in time, as the sink had no capacity left, or stops. It is no attempt, no failure, and no evidence
    /// about message or destination: the message waits again as if it had not been claimed.
    Unsent { error: String },
    /// No answer for this message: the destination is unreachable, the connection was lost, or a broker did not confirm in
    /// time. The scheduler decides from other outcomes whether message, domain or sink is the cause.
    Unavailable { error: String },
    /// No answer for this message, as its connection was lost, while another one could be opened: the destination is
    /// reachable. The message may have been processed.
    Lost { error: String },
}

/// `Outcome::kind` of a confirmation.
pub const CONFIRMED: &str = "confirmed";

/// `Outcome::kind` of a message that was not sent.
pub const UNSENT: &str = "unsent";

/// Every value of `Outcome::failure_kind`.
pub const FAILURE_KINDS: [&str; 4] = ["failed", "throttled", "rejected", "unavailable"];

impl Outcome {
    /// The `kind` label of `punctual_delivery_failures_total`; `None` when confirmed or unsent.
    pub fn failure_kind(&self) -> Option<&'static str> {
        match self {
            Outcome::Confirmed | Outcome::Unsent { .. } => None,
            Outcome::Failed { .. } => Some("failed"),
            Outcome::Throttled { .. } => Some("throttled"),
            Outcome::Rejected { .. } | Outcome::Unsendable { .. } => Some("rejected"),
            Outcome::Unavailable { .. } | Outcome::Lost { .. } => Some("unavailable"),
        }
    }

    /// The `outcome` label of `punctual_sink_attempts_total`.
    pub fn kind(&self) -> &'static str {
        self.failure_kind().unwrap_or(if self.is_unsent() { UNSENT } else { CONFIRMED })
    }

    pub fn is_unsent(&self) -> bool {
        matches!(self, Outcome::Unsent { .. })
    }

    /// What went wrong; `None` when confirmed.
    pub fn error(&self) -> Option<&str> {
        match self {
            Outcome::Confirmed => None,
            Outcome::Failed { error, .. }
            | Outcome::Throttled { error, .. }
            | Outcome::Rejected { error }
            | Outcome::Unsendable { error }
            | Outcome::Unsent { error }
            | Outcome::Unavailable { error }
            | Outcome::Lost { error } => Some(error),
        }
    }
}
