//! The outcome of an attempt, as its sink classifies it.

use std::time::Duration;

/// The result of one attempt. Error texts name the cause, without payload and secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The external system confirmed the message.
    Confirmed,
    /// This message failed; others may succeed.
    Failed { error: String, retry_after: Option<Duration> },
    /// The external system refuses all messages for now, or the reply to one message timed out.
    Throttled { error: String, retry_after: Option<Duration> },
    /// The external system refused this message permanently.
    Rejected { error: String },
    /// This message cannot be sent; nothing was sent.
    Unsendable { error: String },
    /// Nothing was sent in time, because the sink had no capacity left or stops. This does not count as an attempt or a
    /// failure, and says nothing about the message or the external system. The message waits again as if it had not
    /// been claimed.
    Unsent { error: String },
    /// No reply for this message: the external system is unreachable, the connection was lost, or a broker did not
    /// confirm in time. The scheduler decides from other outcomes whether the message, the domain or the sink is the
    /// cause.
    Unavailable { error: String },
    /// No reply for this message because its connection was lost, but a new connection could be opened, so the external
    /// system is reachable. The message may have been processed.
    Lost { error: String },
}

/// `Outcome::kind` of a confirmation.
pub const CONFIRMED: &str = "confirmed";

/// `Outcome::kind` of a message that was not sent.
pub const UNSENT: &str = "unsent";

/// All values of `Outcome::failure_kind`.
pub const FAILURE_KINDS: [&str; 4] = ["failed", "throttled", "rejected", "unavailable"];

impl Outcome {
    /// The `kind` label of `punctual_delivery_failures_total`; `None` if confirmed or unsent.
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

    /// The error; `None` if confirmed.
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
