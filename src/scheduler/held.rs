use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{breaker::Seat, budget::Permit, gate::Pass};
use crate::{port::Lease, time::UnixMillis};

/// A claimed message and what it holds on to until its settlement was answered.
pub struct Held {
    pub lease: Lease,
    /// Where it goes back to when it is released.
    pub not_before: UnixMillis,
    /// Nobody else can have it before: the lease counted from when the claim was sent.
    pub lease_ends: Instant,
    pub seat: Seat,
    pub _permit: Permit,
    pub _pass: Arc<Pass>,
}

impl Held {
    /// Goes back to `pause` after `now`, microseconds on Redis' clock, when it is released.
    pub fn until(mut self, now: u64, pause: Duration) -> Self {
        let at = now / 1000 + u64::try_from(pause.as_millis()).expect("a short time");
        self.not_before = UnixMillis::new(at).unwrap_or(self.not_before);
        self
    }
}
