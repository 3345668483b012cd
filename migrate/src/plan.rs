//! The plan: the new definitions, and what a person has to know about them.

use serde::Serialize;

use crate::definitions::Definitions;

/// RabbitMQ 4 drops a message at its 21st return to a quorum queue, and each crash of punctual is a return.
pub const DELIVERY_LIMIT: u32 = 1_000_000;
/// The type of the queues that punctual reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum QueueType {
    Quorum,
    Classic,
}

pub struct Plan {
    pub definitions: Definitions,
    pub moved: Vec<Moved>,
    /// Of the broker, beside the three that every moved exchange becomes.
    pub changed: Vec<Note>,
    pub undecided: Vec<Note>,
    /// The least-privilege user.
    pub user: String,
}

/// What becomes of one delayed exchange.
#[derive(Clone, Serialize)]
pub struct Moved {
    pub vhost: String,
    pub exchange: String,
    /// Its `x-delayed-type`.
    #[serde(rename = "type")]
    pub kind: String,
    pub queue: String,
    pub out: String,
    /// Of its route, sink and source.
    pub route: String,
    pub bindings: usize,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    pub about: String,
    pub text: String,
}

impl Note {
    pub fn new(about: impl Into<String>, text: impl Into<String>) -> Self {
        Self { about: about.into(), text: text.into() }
    }
}
