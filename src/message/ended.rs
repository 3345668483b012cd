//! Completed messages that a route remembers.

use std::time::Duration;

use serde::Serialize;

use crate::time::UnixMillis;

/// How a message was completed. Purged messages are not remembered.
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

/// A remembered message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub ending: Ending,
    pub at: UnixMillis,
}

/// The completed messages that a route remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remember {
    /// Retention; with zero none are remembered.
    pub period: Duration,
    /// Maximum number, divided among the partitions. The oldest messages are evicted.
    pub max: u32,
}
