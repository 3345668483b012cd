//! Ends of claims, and the answers of the store.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{Lease, attempt::FailedAttempt, flow::PARKED};
use crate::{
    message::{DeadReason, EndRecord},
    time::UnixMillis,
};

/// Whether a settlement took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    Done,
    /// The token is not that of the current claim: nothing changed.
    Stale,
}

/// The result of one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transferred {
    Done,
    /// The token is not that of the current claim: nothing changed.
    Stale,
    /// Why the list cannot take the value: nothing changed, and the claim is still valid.
    Refused(String),
}

/// How a claim of one message ends.
#[derive(Clone, Debug)]
pub struct Settlement {
    pub lease: Lease,
    pub end: ClaimEnd,
    /// The attempt that failed, if `end` is a retry or a burial after one.
    pub attempt: Option<FailedAttempt>,
    /// For the history of the route, if it has one.
    pub record: Option<EndRecord>,
}

impl Settlement {
    /// A settlement without a failed attempt, on a route without a history.
    pub fn new(lease: Lease, end: ClaimEnd) -> Self {
        Self { lease, end, attempt: None, record: None }
    }
}

#[derive(Clone, Debug)]
pub enum ClaimEnd {
    /// Delivered: the message is deleted.
    Ack,
    /// The attempt failed and counts; due again after `delay`. `error` is kept, shortened if it is long. `hold`: no
    /// other message of its flow leaves before.
    Retry { delay: Duration, error: String, hold: Option<Duration> },
    /// Dead. `error` is kept, shortened if it is long.
    Bury { reason: DeadReason, error: String },
    /// Pending as if never claimed, due at this time.
    Release { at: UnixMillis },
    /// No attempt is counted; due again after `pause`, by the store's clock.
    Defer { pause: Duration, sent: Sent },
    /// Only of the message of a schedule, for which any other end than a retry, a release or a deferral means that the
    /// occurrence is over: what follows it.
    Plan(Planned),
}

/// The plan of the next occurrence of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Revision of the definition by which it was planned.
    pub revision: String,
    /// `None`: the schedule has ended.
    pub occurrence: Option<UnixMillis>,
    /// When it is sent.
    pub at: UnixMillis,
    /// Occurrences before it that are not sent.
    pub missed: u64,
}

/// The score of a schedule that is paused or has ended.
pub const NEVER: u64 = PARKED - 1;

/// Whether a deferred message was sent. If not, it gives its slot of the rate of its flow back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    No,
    /// `hold`: no other message of its flow leaves before.
    Yes {
        hold: Option<Duration>,
    },
}

impl ClaimEnd {
    /// The name of the end in logs and in `punctual_stale_settlements_total`.
    pub fn name(&self) -> &'static str {
        match self {
            ClaimEnd::Ack => "ack",
            ClaimEnd::Retry { .. } => "retry",
            ClaimEnd::Bury { .. } => "bury",
            ClaimEnd::Release { .. } | ClaimEnd::Defer { .. } => "release",
            ClaimEnd::Plan(_) => "plan",
        }
    }
}

/// Delivery to a list on the same Redis: push and ack in one step.
#[derive(Clone, Debug)]
pub struct Transfer {
    pub lease: Lease,
    pub list: Arc<str>,
    pub value: Bytes,
    /// For the history of the route, if it has one.
    pub record: Option<EndRecord>,
}
