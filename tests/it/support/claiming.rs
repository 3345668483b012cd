use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use punctual::store::{ClaimEnd, ClaimRequest, Lease, Settlement, Suspects};

/// A claim of at most so many messages, some in a call of their own. No two of these repeat each other.
pub fn claim_request(limit: u32, lease: Duration) -> ClaimRequest {
    static SEQUENCE: AtomicU64 = AtomicU64::new(1);
    let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed);
    ClaimRequest {
        claimant: 1,
        sequence,
        again: false,
        backlog: sequence.is_multiple_of(2),
        suspects: Suspects::PutOff(Duration::ZERO),
        company: 1,
        limit,
        max_bytes: u64::MAX,
        lease,
    }
}

/// The same end for each lease.
pub fn all(leases: impl IntoIterator<Item = Lease>, end: &ClaimEnd) -> Vec<Settlement> {
    leases.into_iter().map(|lease| Settlement::new(lease, end.clone())).collect()
}
