//! The plan: the new definitions, and notes about them for a person.

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
    /// Changes of the broker in addition to those of the moved exchanges.
    pub changed: Vec<Note>,
    pub undecided: Vec<Note>,
    /// The least-privilege user.
    pub user: String,
}

/// The replacement of one delayed exchange.
#[derive(Clone, Serialize)]
pub struct Moved {
    pub vhost: String,
    pub exchange: String,
    /// The `x-delayed-type`.
    #[serde(rename = "type")]
    pub kind: String,
    pub queue: String,
    pub out: String,
    /// The name of the route, sink and source.
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
