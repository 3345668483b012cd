use std::sync::Arc;

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
