//! The handle to the queues: everything that a user, a program or a source can do with messages, short of
//! delivering them. The API, the command line and the sources all go through it.

mod bury;
mod clock;
mod coalescer;
mod cursor;
mod external;
mod growth;
mod handle;
mod merge;
mod pending;
mod registry;
mod scatter;

pub use handle::{Queue, check_due};
pub use registry::StartError;

use std::sync::Arc;

use serde::Serialize;

pub use crate::store::redis::{HORIZONS, PartitionForecast as Forecast};
use crate::{
    store::{DeadGroup, Pause, Snapshot, StoreError},
    time::{MIN_MILLIS, UnixMillis},
};

/// The result of a bulk call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bulk {
    pub count: u64,
    /// Whether selected messages remain.
    pub more: bool,
    /// Of dead messages: those that died before were selected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<UnixMillis>,
    /// Of dead messages: where the next call goes on. Opaque.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// The dead messages of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadSummary {
    pub total: u64,
    /// Whether all were counted in the time.
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
    #[serde(flatten)]
    pub pause: Option<RoutePause>,
    /// Includes `due`.
    pub pending: u64,
    pub due: u64,
    pub unack: u64,
    pub dead: u64,
    /// In pending and unack, after failed attempts or crashes.
    pub retrying: u64,
    /// Pending messages that come due within each of `HORIZONS`, overdue ones included; a metric.
    #[serde(skip)]
    pub due_within: [u64; HORIZONS.len()],
    /// Stored bodies of pending and in-flight messages, in bytes.
    pub bytes: u64,
    /// Used parts of `limits.messages` and `limits.bytes`, of the fullest partition; a metric.
    #[serde(skip)]
    pub limits_used: [Option<f64>; 2],
    pub next_due: Option<UnixMillis>,
    pub oldest_overdue_seconds: f64,
    pub partitions: u16,
    /// While messages are moved to another number of partitions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moving: Option<Moving>,
}

/// The move of a route to another number of partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Moving {
    /// Number of partitions.
    pub from: u16,
    /// Number of partitions.
    pub to: u16,
    /// Messages and dead letters that are to be moved. Included in the other numbers.
    pub left: u64,
}

/// Why a route is paused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RoutePause {
    /// `None`: it was paused by a release that did not store the time.
    pub paused_at: Option<UnixMillis>,
    /// The name of the token, or `None` without one.
    pub paused_by: Option<String>,
    pub note: Option<String>,
}

impl From<Pause> for RoutePause {
    fn from(Pause { at, by, note }: Pause) -> Self {
        Self { paused_at: Some(at).filter(|at| at.get() >= MIN_MILLIS), paused_by: by, note }
    }
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
