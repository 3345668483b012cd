//! The handle of the queues: all operations on messages of users, programs and sources, except delivery. The API, the
//! command line and the sources use it.

mod acceptance;
mod bury;
mod coalescer;
mod cursor;
mod dead;
mod ended;
mod external;
mod flows;
mod groups;
mod handle;
mod merge;
mod pending;
mod redirect;
mod registry;
mod scatter;
mod schedules;
mod stats;
#[cfg(test)]
mod tests;

pub use acceptance::Capacity;
pub use ended::{EndedPage, EndedQuery};
pub use groups::{GroupAction, GroupWork};
pub use handle::{Queue, ShownRoute, check_due};
pub use pending::{Purge, Refused};
pub use redirect::Stayed;
pub use registry::StartError;
pub use schedules::{NewSchedule, RouteSchedule, ScheduleError};

use std::sync::Arc;

use serde::Serialize;

pub use crate::store::redis::{HORIZONS, PartitionForecast as Forecast};
use crate::{
    message::Limit,
    store::{DeadGroup, Pause, Snapshot, StoreError},
    time::UnixMillis,
};

/// The result of a bulk call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bulk {
    pub count: u64,
    /// Whether selected messages remain.
    pub more: bool,
    /// Only of a filter: messages that were looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scanned: Option<u64>,
    /// Dead messages that died before this time were selected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<UnixMillis>,
    /// Pending messages that were accepted or moved last before this time were selected by a filter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<UnixMillis>,
    /// Only of a redrive with a rate or a start: the due time after the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<UnixMillis>,
    /// The position at which the next call with a filter continues. Opaque.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// The dead messages of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadSummary {
    pub total: u64,
    /// Whether all messages were counted in the available time.
    pub complete: bool,
    pub groups: Vec<DeadGroup>,
}

impl DeadSummary {
    fn add(&mut self, group: DeadGroup) {
        self.total += group.count;
        match self.groups.iter_mut().find(|known| known.reason == group.reason) {
            None => self.groups.push(group),
            Some(known) => {
                known.count += group.count;
                known.oldest = known.oldest.min(group.oldest);
                if group.newest >= known.newest {
                    (known.newest, known.sample) = (group.newest, group.sample);
                }
            }
        }
    }
}

/// A part of a listing.
#[derive(Clone, Debug)]
pub struct Page {
    pub messages: Vec<Snapshot>,
    /// Messages that were looked at.
    pub scanned: u64,
    /// Where the next page begins; `None` at the end. Opaque.
    pub cursor: Option<String>,
}

/// The numbers of one route, over all partitions. The API and the command line show the JSON form.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RouteStats {
    pub route: Arc<str>,
    /// `None`: the route is not configured here.
    pub sink: Option<Arc<str>>,
    pub paused: bool,
    #[serde(flatten)]
    pub pause: Option<RoutePause>,
    /// `None`: the route is always open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<RouteWindow>,
    /// Includes `due`.
    pub pending: u64,
    pub due: u64,
    pub unack: u64,
    pub dead: u64,
    /// Pending and in-flight messages with failed attempts or crashes.
    pub retrying: u64,
    /// Pending messages that come due within each of `HORIZONS`, overdue ones included; a metric.
    #[serde(skip)]
    pub due_within: [u64; HORIZONS.len()],
    /// Due messages that wait for their flow; not among `due`. `None`: the route has no flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for_flow: Option<u64>,
    /// Flows for which messages wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_flows: Option<u64>,
    /// Stored bodies of pending and in-flight messages, in bytes.
    pub bytes: u64,
    /// Used shares of `limits.messages` and `limits.bytes`, in the fullest partition; a metric.
    #[serde(skip)]
    pub limits_used: [Option<f64>; 2],
    pub next_due: Option<UnixMillis>,
    /// Set if the route keeps what became of its messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<bool>,
    /// Time since the oldest due message was due, or since the window opened, if that was later; 0 while it is closed.
    pub oldest_overdue_seconds: f64,
    pub partitions: u16,
    /// Present while messages are moved to another number of partitions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moving: Option<Moving>,
}

/// The move of a route to another number of partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Moving {
    /// Former number of partitions.
    pub from: u16,
    /// New number of partitions.
    pub to: u16,
    /// Messages and dead letters that are not moved yet. The other numbers include them.
    pub left: u64,
}

/// The window of a route, at the time of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RouteWindow {
    pub open: bool,
    /// The last opening or closing; `None`: more than a week ago, if ever.
    pub since: Option<UnixMillis>,
    /// The next opening or closing; `None`: not within two weeks, if ever.
    pub until: Option<UnixMillis>,
}

/// The pause of a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RoutePause {
    pub paused_at: UnixMillis,
    /// The name of the token, or `None` without one.
    pub paused_by: Option<String>,
    pub note: Option<String>,
}

impl From<Pause> for RoutePause {
    fn from(Pause { at, by, note }: Pause) -> Self {
        Self { paused_at: at, paused_by: by, note }
    }
}

#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum QueueError {
    #[error("there is no route `{0}`")]
    UnknownRoute(String),
    /// A caller's error that it can correct: nothing was written.
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("route `{0}` has no flows: it has no setting `flow`")]
    NoFlows(String),
    #[error("route `{0}` keeps no history: it has no setting `history.for`")]
    NoHistory(String),
    /// The other route of a redrive is at this limit.
    #[error("the other route is at its limit: {}", .0.explain())]
    Full(Limit),
    #[error("route `{0}` forwards no dead letters: it has no setting `dead.forward`")]
    NoForwarding(String),
}
