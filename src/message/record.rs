//! What a message was read from, where that can be read again.

use std::{fmt, sync::Arc};

use super::MessageId;

/// A record of a log for which an id is scheduled or cancelled. The store keeps of each id the one that was applied last,
/// for as long as it knows the id, and so recognizes those that are read again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Names the log; not empty.
    pub place: Arc<str>,
    pub offset: u64,
    /// Milliseconds since the epoch, 0 where it has none: tells a log that was made anew from one that is read again.
    pub timestamp: u64,
}

impl LogRecord {
    /// Takes the place of `earlier`, which is not applied: from now on both are known.
    #[must_use]
    pub fn after(self, earlier: &Self) -> Self {
        if self.place != earlier.place {
            return self;
        }
        Self { timestamp: self.timestamp.max(earlier.timestamp), ..self }
    }
}

/// As it is stored.
impl fmt::Display for LogRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.offset, self.timestamp, self.place)
    }
}

/// An id that is no longer wanted.
#[derive(Clone, Debug)]
pub struct Cancellation {
    pub id: MessageId,
    /// Of a source's: what it was read from.
    pub record: Option<LogRecord>,
    /// What it cancels was never scheduled, and must not be when it is read again: to be remembered all the same.
    pub unseen: bool,
}

impl From<MessageId> for Cancellation {
    fn from(id: MessageId) -> Self {
        Self { id, record: None, unseen: false }
    }
}
