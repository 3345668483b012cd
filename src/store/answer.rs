//! What the store answers about single messages.

use serde::Serialize;

use crate::{
    message::{Ended, Ending, Limit, MessageId, State, StoredMessage},
    time::UnixMillis,
};

/// What scheduling an id did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleStatus {
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
    /// The route is at this limit: nothing changed.
    Over(Limit),
}

/// The answer for one scheduled message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduled {
    pub id: MessageId,
    /// Its due time; for a kept message, the one it has; for one that ended, when it did; 0 for one that is known.
    pub due: UnixMillis,
    pub status: ScheduleStatus,
}

/// What is known of an id.
#[derive(Clone, Debug)]
pub enum Found {
    Live {
        snapshot: Box<Snapshot>,
        /// Redis' clock.
        now: UnixMillis,
        /// Whether its route is paused.
        paused: bool,
    },
    /// The route remembers it.
    Ended(Ended),
}

/// Why a route is paused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pause {
    #[serde(rename = "paused_at")]
    pub at: UnixMillis,
    /// The name of the token, or `None` without one.
    #[serde(rename = "paused_by")]
    pub by: Option<String>,
    pub note: Option<String>,
}

impl Pause {
    /// A value of `paused` (lua/pause.lua); `None` for an empty one, which stands for a route that is not paused.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '\n');
        let at = parts.next().filter(|at| !at.is_empty())?;
        let mut given = || parts.next().filter(|part| !part.is_empty()).map(str::to_owned);
        Some(Self { at: at.parse().ok().and_then(UnixMillis::new).unwrap_or_default(), by: given(), note: given() })
    }
}

/// A live message as `get` and `list` return it.
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
    pub last_error_at: Option<UnixMillis>,
    pub died_at: Option<UnixMillis>,
    /// `Err`: the body cannot be read, and why.
    pub message: Result<StoredMessage, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rescheduled {
    Done(UnixMillis),
    InFlight,
    Dead,
    NotFound,
    /// The route is at this limit: nothing changed.
    Over(Limit),
    /// It expires at this time, before the due time or now: nothing changed.
    Expires(UnixMillis),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    Cancelled,
    /// It was dead, and is deleted now.
    Purged,
    /// It is dead, and stays.
    Dead,
    InFlight,
    NotFound,
    /// The record that asks for it, or a later one, was applied before: nothing changed.
    Known,
}
