//! Reasons of deaths.

/// The reason why a message is dead; the `reason` label of `punctual_messages_dead_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeadReason {
    /// The sink refused the message permanently.
    Rejected,
    /// The message has no attempts left.
    Attempts,
    /// The message was claimed after its `expires_at`.
    Expired,
    /// The lease of the message expired in five claims. In the last three it was claimed alone.
    Crash,
    /// The body of the message was missing in Redis.
    Orphan,
    /// The body of the message cannot be read.
    Undecodable,
    /// A source could not decode the message.
    Invalid,
}

impl DeadReason {
    pub const ALL: [Self; 7] =
        [Self::Rejected, Self::Attempts, Self::Expired, Self::Crash, Self::Orphan, Self::Undecodable, Self::Invalid];

    /// Whether a message that dies for this reason was sent.
    pub fn is_attempted(self) -> bool {
        matches!(self, Self::Rejected | Self::Attempts)
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }

    /// The error for an unknown reason.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_an_unknown_reason_names_all_of_them() {
        let error = DeadReason::unknown("lost");
        assert_eq!(
            error,
            "`lost` is no reason: one of rejected, attempts, expired, crash, orphan, undecodable, invalid"
        );
    }
}
