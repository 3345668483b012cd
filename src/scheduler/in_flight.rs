//! Claimed messages until their settlement.

use std::sync::Arc;

use bytes::Bytes;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::{breaker::SinkPermit, budget::Reservation};
use crate::{
    message::{EndRecord, TraceId},
    store::{ClaimEnd, Lease},
    time::UnixMillis,
};

/// A claimed message with its permits, until its settlement.
pub struct InFlight {
    pub lease: Lease,
    /// Its score in `pending` before the claim.
    pub not_before: UnixMillis,
    /// No other instance can claim the message before: the lease counts from the sending of the claim.
    pub lease_ends: Instant,
    pub permits: Permits,
    /// For a suspect: the permission to have suspects in flight. One claim of a process has it at a time.
    pub suspects: Option<Arc<OwnedSemaphorePermit>>,
    /// Only of the message of a schedule.
    pub occurrence: Option<OccurrenceInFlight>,
    /// For the history of the route, if it has one.
    pub record: Option<EndRecord>,
    /// The message's trace, once the message is decoded.
    pub trace: Option<TraceId>,
}

/// The parts of an occurrence's dead letter.
pub struct OccurrenceInFlight {
    /// The stored body of the schedule's message.
    pub body: Bytes,
    /// Failed attempts before this claim.
    pub failures: u32,
}

/// The permits of a message: of its sink, and of its route's budget.
pub struct Permits {
    pub sink: SinkPermit,
    pub share: Reservation,
}

impl Permits {
    /// Frees the permits of several messages of one route at once, so that the next claim gets all of them.
    pub fn release(all: impl IntoIterator<Item = Self>) {
        let together = all.into_iter().reduce(|mut all, one| {
            all.sink.absorb(one.sink);
            all.share.absorb(one.share);
            all
        });
        drop(together);
    }
}

impl InFlight {
    /// Ends the claim as if the message had never been claimed.
    pub fn given_back(&self) -> ClaimEnd {
        ClaimEnd::Release { at: self.not_before }
    }
}
