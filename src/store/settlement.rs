//! How claims end, and what the store answers.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::Lease;
use crate::{message::DeadReason, time::UnixMillis};

/// Whether a settlement took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    Done,
    /// The token is not the current claim's: nothing changed.
    Stale,
}

/// What became of one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transferred {
    Done,
    /// The token is not the current claim's: nothing changed.
    Stale,
    /// The list cannot take it, and why: nothing changed, the claim stands.
    Refused(String),
}

/// How a claim of one message ends.
#[derive(Clone, Debug)]
pub struct Settlement {
    pub lease: Lease,
    pub end: ClaimEnd,
}

#[derive(Clone, Debug)]
pub enum ClaimEnd {
    /// Delivered: the message is deleted.
    Ack,
    /// The attempt failed and counts; due again after `delay`. `error` is kept, shortened where it is long.
    Retry { delay: Duration, error: String },
    /// Dead. `error` is kept, shortened where it is long.
    Bury { reason: DeadReason, error: String },
    /// As if it had never been claimed, due at this time.
    Release { at: UnixMillis },
    /// No attempt counts; due again after `pause`, from the clock of the store.
    Defer { pause: Duration },
}

impl ClaimEnd {
    /// The name of its kind, in logs and in `punctual_stale_settlements_total`.
    pub fn name(&self) -> &'static str {
        match self {
            ClaimEnd::Ack => "ack",
            ClaimEnd::Retry { .. } => "retry",
            ClaimEnd::Bury { .. } => "bury",
            ClaimEnd::Release { .. } | ClaimEnd::Defer { .. } => "release",
        }
    }
}

/// Into a list on the same Redis: push and ack in one step.
#[derive(Clone, Debug)]
pub struct Transfer {
    pub lease: Lease,
    pub list: Arc<str>,
    pub value: Bytes,
}
