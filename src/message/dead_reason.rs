//! Why messages are dead.

/// Why a message is dead; the `reason` label of `punctual_messages_dead_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeadReason {
    /// The sink refused it for good.
    Rejected,
    /// Its attempts are used up.
    Attempts,
    /// Claimed after its `expires_at`.
    Expired,
    /// Its lease expired in five claims; in the last three it was claimed alone.
    Crash,
    /// Its body was missing in Redis.
    Orphan,
    /// Its body cannot be read.
    Undecodable,
    /// A source could not decode it.
    Invalid,
}

impl DeadReason {
    pub const ALL: [Self; 7] =
        [Self::Rejected, Self::Attempts, Self::Expired, Self::Crash, Self::Orphan, Self::Undecodable, Self::Invalid];

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }

    /// The text about one that is not known.
    pub fn unknown(text: &str) -> String {
        format!("`{text}` is no reason: one of {}", Self::ALL.map(Self::as_str).join(", "))
    }

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
