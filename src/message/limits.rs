//! Limits of a route.

use std::time::Duration;

/// Limits of the messages that a route accepts. Messages that wait or are in flight count; dead letters do not count.
/// Each partition has an equal share, rounded down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteLimits {
    /// At least the number of partitions.
    pub messages: Option<u64>,
    /// Bytes of stored bodies, after compression: payload, headers and other metadata, and up to 40 bytes more. The
    /// share of a partition holds the largest message.
    pub bytes: Option<u64>,
    /// Maximum time from acceptance to the due time; at least a millisecond.
    pub delay: Option<Duration>,
}

/// The limit for which a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Messages,
    Bytes,
    Delay,
}

impl Limit {
    pub const ALL: [Self; 3] = [Self::Messages, Self::Bytes, Self::Delay];

    /// The status in the results of a batch.
    pub fn status(self) -> &'static str {
        match self {
            Self::Messages => "limit_messages",
            Self::Bytes => "limit_bytes",
            Self::Delay => "limit_delay",
        }
    }

    /// The kind of a problem document, and the slug of an error of `lua/produce.lua`.
    pub fn problem(self) -> &'static str {
        match self {
            Self::Messages => "limit-messages",
            Self::Bytes => "limit-bytes",
            Self::Delay => "limit-delay",
        }
    }

    /// The error text for a person.
    pub fn explain(self) -> &'static str {
        match self {
            Self::Messages => "the route holds as many messages as its `limits.messages` allows",
            Self::Bytes => "the route would hold more bytes than its `limits.bytes` allows",
            Self::Delay => "the delay is longer than the `limits.delay` of the route",
        }
    }
}

/// Limits of the dead letters that a route keeps. The oldest are evicted first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeadLimits {
    /// Time since the death; at least a minute.
    pub max_age: Option<Duration>,
    /// At least the number of partitions. Each partition has an equal share, rounded down.
    pub max_count: Option<u64>,
}

impl DeadLimits {
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_problem_is_the_status_with_hyphens() {
        for limit in Limit::ALL {
            assert_eq!(limit.problem(), limit.status().replace('_', "-"));
        }
    }
}
