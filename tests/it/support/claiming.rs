use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use punctual::store::{ClaimEnd, ClaimRequest, Lease, Settlement, Suspects};

/// A claim of at most `limit` messages. Every second claim is a call of its own. Each has its own number, so that none
/// repeats another.
pub fn claim_request(limit: u32, lease: Duration) -> ClaimRequest {
    static SEQUENCE: AtomicU64 = AtomicU64::new(1);
    let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed);
    ClaimRequest {
        claimant: 1,
        sequence,
        again: false,
        backlog: sequence.is_multiple_of(2),
        suspects: Suspects::Defer(Duration::ZERO),
        max_suspects: 1,
        limit,
        max_bytes: u64::MAX,
        lease,
    }
}

/// A settlement for each lease, all with this end.
pub fn all(leases: impl IntoIterator<Item = Lease>, end: &ClaimEnd) -> Vec<Settlement> {
    leases.into_iter().map(|lease| Settlement::new(lease, end.clone())).collect()
}
