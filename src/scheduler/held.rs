use std::sync::Arc;

use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::{breaker::SinkPermit, budget::Reservation};
use crate::{
    store::{ClaimEnd, Lease},
    time::UnixMillis,
};

/// A claimed message and what it holds until its settlement.
pub struct Held {
    pub lease: Lease,
    /// Its score in `pending` before the claim.
    pub not_before: UnixMillis,
    /// No other instance can have it before: the lease counted from when the claim was sent.
    pub lease_ends: Instant,
    pub permits: Permits,
    /// Of a suspect: those of one claim at a time in a process.
    pub suspects: Option<Arc<OwnedSemaphorePermit>>,
}

/// The part of a message in the bounds of its sink and its route.
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

impl Held {
    /// As if it had never been claimed.
    pub fn given_back(&self) -> ClaimEnd {
        ClaimEnd::Release { at: self.not_before }
    }
}
