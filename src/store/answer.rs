//! Answers of the store about single messages.

use serde::Serialize;

use super::PastAttempt;
use crate::{
    message::{Ended, EndedMessage, Ending, Limit, MessageId, State, StoredMessage},
    time::{Due, UnixMillis},
};

/// The result of scheduling an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleStatus {
    Scheduled,
    /// The id was live, and its message is unchanged.
    Exists(State),
    Replaced,
    /// Replaced a dead message: it is pending again.
    Revived,
    /// Not replaced, because the message is in flight: nothing changed.
    InFlight,
    /// The log record that the message was read from, or a later one, was applied before: nothing changed.
    Known,
    /// The route remembers that the id completed: nothing changed, whether the conflict rule is keep or replace. Never
    /// returned for a message from a log record: a record that was not applied yet is a new message.
    Ended(Ending),
    /// The route is at this limit: nothing changed.
    Over(Limit),
}

impl ScheduleStatus {
    /// As replies of the API and spans have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Exists(_) => "exists",
            Self::Replaced | Self::Revived => "replaced",
            Self::InFlight => "in_flight",
            Self::Known => "known",
            Self::Ended(ending) => ending.as_str(),
            Self::Over(limit) => limit.status(),
        }
    }
}

/// The answer for one scheduled message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduled {
    pub id: MessageId,
    /// The due time; for a kept message, its stored due time; for `Ended`, the time of completion; for `Known`, 0.
    pub due: UnixMillis,
    pub status: ScheduleStatus,
}

/// A live or remembered id.
#[derive(Clone, Debug)]
pub enum Found {
    Live {
        snapshot: Box<Snapshot>,
        /// Redis' clock.
        now: UnixMillis,
        /// Whether the route is paused.
        paused: bool,
        /// Earlier ends of the id, the latest first, if the route has a history.
        ends: Vec<EndedMessage>,
    },
    /// The message ended: at least one of both is there.
    Ended {
        /// The route remembers its id.
        remembered: Option<Ended>,
        /// The last ends of the id, the latest first, if the route has a history.
        ends: Vec<EndedMessage>,
    },
}

/// When, by whom and why a route was paused.
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
    /// Parses a value of `paused` (lua/pause.lua). `None` for an empty value: the route is not paused.
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
    /// Time of the next attempt when pending, otherwise the original due time.
    pub deliver_at: UnixMillis,
    /// Due, and waiting for its flow.
    pub parked: bool,
    /// Failed attempts so far.
    pub attempts: u32,
    /// For a dead message it begins with the reason, `"rejected: ..."`.
    pub last_error: Option<String>,
    pub last_error_at: Option<UnixMillis>,
    pub died_at: Option<UnixMillis>,
    /// The last attempts that failed, the latest last. A redrive keeps them.
    pub attempt_log: Vec<PastAttempt>,
    /// Only for a dead letter that `get` returns. It differs after an edit, and after another death.
    pub revision: Option<String>,
    /// `Err`: why the body cannot be decoded.
    pub message: Result<StoredMessage, String>,
}

/// Where a message is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewDue {
    /// Now; the rate of its flow does not apply to it.
    Now,
    At(Due),
    /// By a number of milliseconds from its due time; not before 1970, and at most the longest delay from now.
    By(i64),
}

impl From<Due> for NewDue {
    fn from(due: Due) -> Self {
        Self::At(due)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rescheduled {
    Done(UnixMillis),
    InFlight,
    Dead,
    NotFound,
    /// In its flow, which is ordered, this message comes first: nothing changed.
    Held(MessageId),
    /// The route is at this limit: nothing changed.
    Over(Limit),
    /// The message was accepted or moved too late for this call: nothing changed.
    Later,
    /// The message expires at this time, which is before the new due time or has passed: nothing changed.
    Expires(UnixMillis),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    Cancelled,
    /// The message was dead, and was deleted.
    Purged,
    /// The message is dead, and was kept.
    Dead,
    InFlight,
    NotFound,
    /// The log record of the cancellation, or a later one, was applied before: nothing changed.
    Known,
}
