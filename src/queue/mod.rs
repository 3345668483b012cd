//! The handle to the queues: everything that a user, a program or a source can do with messages, short of
//! delivering them. The API, the command line and the sources all go through it.

mod clock;
mod coalescer;
mod cursor;
mod foreign;
mod growth;
mod handle;
mod inter;
mod merge;
mod registry;

pub use handle::{Queue, check_due};
pub use registry::StartError;

use std::sync::Arc;

use serde::Serialize;

use crate::{
    message::{Ended, Ending, MessageId, State, StoredMessage},
    port::StoreError,
    time::UnixMillis,
};

/// What scheduling an id did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Scheduled,
    /// The id was live and is kept as it was.
    Exists(State),
    Replaced,
    /// Replaced while it was dead: it lives again.
    Revived,
    /// It should be replaced but is in flight: nothing changed.
    InFlight,
    /// The record that it was read from, or a later one, was applied before: nothing changed.
    Known,
    /// The route remembers that the id ended: nothing changed, whether it should be kept or replaced. Not for what was read
    /// from a record: one that is not known is another message.
    Ended(Ending),
}

/// The answer for one scheduled message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduled {
    pub id: MessageId,
    /// Its due time; for a kept message, the one it has; for one that ended, when it did; 0 for one that is known.
    pub due: UnixMillis,
    pub status: Status,
}

/// What is known of an id.
#[derive(Clone, Debug)]
pub enum Found {
    Live(Snapshot),
    /// The route remembers it.
    Ended(Ended),
}

/// A live message as it can be looked at.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub id: MessageId,
    pub state: State,
    /// Time of the next attempt when pending, else the original due time.
    pub deliver_at: UnixMillis,
    /// Failed attempts so far.
    pub attempts: u32,
    /// For a dead message it begins with the reason, `"rejected: ..."`.
    pub last_error: Option<String>,
    /// `Err`: the body cannot be read, and why.
    pub message: Result<StoredMessage, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rescheduled {
    Done(UnixMillis),
    InFlight,
    Dead,
    NotFound,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    Cancelled,
    /// It was dead, and is gone now.
    Purged,
    InFlight,
    NotFound,
    /// The record that asks for it, or a later one, was applied before: nothing changed.
    Known,
}

/// A part of a listing.
#[derive(Clone, Debug)]
pub struct Page {
    pub messages: Vec<Snapshot>,
    /// Where the next page begins; `None` at the end. Opaque.
    pub cursor: Option<String>,
}

/// The numbers of one route, all partitions together; its JSON is what the API and the command line show.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RouteStats {
    pub route: Arc<str>,
    /// `None`: not in our configuration.
    pub sink: Option<Arc<str>>,
    pub paused: bool,
    /// Includes `due`.
    pub pending: u64,
    pub due: u64,
    pub unack: u64,
    pub dead: u64,
    pub next_due: Option<UnixMillis>,
    pub oldest_overdue_seconds: f64,
}

#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum QueueError {
    #[error("there is no route `{0}`")]
    UnknownRoute(String),
    /// A limit of the queue that the caller can check: nothing was written.
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}
