use std::sync::Arc;

use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::{breaker::SinkPermit, budget::Reservation};
use crate::{
    store::{ClaimEnd, Lease},
    time::UnixMillis,
};

/// A claimed message and what it holds until its settlement was answered.
pub struct Held {
    pub lease: Lease,
    /// Its score in `pending` before the claim.
    pub not_before: UnixMillis,
    /// No other instance can have it before: the lease counted from when the claim was sent.
    pub lease_ends: Instant,
    pub sink_permit: SinkPermit,
    pub share: Reservation,
    /// Of a suspect: those of one claim at a time in a process.
    pub _suspects: Option<Arc<OwnedSemaphorePermit>>,
}

impl Held {
    /// Gives back at once what messages of one route hold, so that the next claim gets all of it.
    pub fn release(all: impl IntoIterator<Item = Self>) {
        let all = all.into_iter().map(|held| (held.sink_permit, held.share));
        let together = all.reduce(|(mut permits, mut shares), (permit, share)| {
            permits.absorb(permit);
            shares.absorb(share);
            (permits, shares)
        });
        drop(together);
    }

    /// As if it had never been claimed.
    pub fn given_back(&self) -> ClaimEnd {
        ClaimEnd::Release { at: self.not_before }
    }
}
