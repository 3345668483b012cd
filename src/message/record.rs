//! The log record that a message was read from.

use std::{fmt, sync::Arc};

use super::MessageId;

/// A record of a log (a Kafka partition) that schedules or cancels an id. The store keeps the latest applied record of
/// each live or remembered id, and so recognizes records that are read again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// The name of the log; not empty.
    pub place: Arc<str>,
    pub offset: u64,
    /// Milliseconds since the epoch; 0 without a timestamp. It distinguishes a recreated log from a log that is read
    /// again.
    pub timestamp: u64,
}

impl LogRecord {
    /// Replaces `earlier`, which is not applied itself: both records count as applied.
    #[must_use]
    pub fn after(self, earlier: &Self) -> Self {
        if self.place != earlier.place {
            return self;
        }
        Self { timestamp: self.timestamp.max(earlier.timestamp), ..self }
    }
}

/// The stored form.
impl fmt::Display for LogRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.offset, self.timestamp, self.place)
    }
}

/// The cancellation of an id.
#[derive(Clone, Debug)]
pub struct Cancellation {
    pub id: MessageId,
    /// The record that the cancellation was read from, if the source reads a log.
    pub record: Option<LogRecord>,
    /// The id was never scheduled. It is remembered, too, so that a second read does not schedule it.
    pub unseen: bool,
    /// A dead letter is kept.
    pub keep_dead: bool,
    /// The name of the token that cancels.
    pub by: Option<String>,
}

impl From<MessageId> for Cancellation {
    fn from(id: MessageId) -> Self {
        Self { id, record: None, unseen: false, keep_dead: false, by: None }
    }
}
