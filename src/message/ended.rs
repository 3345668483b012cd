//! What may be remembered of messages that are no longer live.

use std::time::Duration;

use serde::Serialize;

use crate::time::UnixMillis;

/// How a message ended, short of being purged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    Delivered,
    Cancelled,
}

impl Ending {
    pub fn as_str(self) -> &'static str {
        match self {
            Ending::Delivered => "delivered",
            Ending::Cancelled => "cancelled",
        }
    }

    /// `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        [Ending::Delivered, Ending::Cancelled].into_iter().find(|ending| ending.as_str() == text)
    }
}

/// A message that was live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub ending: Ending,
    pub at: UnixMillis,
}

/// Which ended messages a route remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remember {
    /// How long; zero: none.
    pub period: Duration,
    /// How many at most, the latest; each partition has its share.
    pub max: u32,
}
