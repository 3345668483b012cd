//! Settlements that the store did not answer.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Counts the calls with settlements of a partition that the store did not answer. Their messages are delivered or
/// decided. They must not count as crashed when the store is reachable again and their leases have expired.
#[derive(Clone, Debug, Default)]
pub struct Unanswered(Arc<AtomicUsize>);

impl Unanswered {
    pub fn any(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }

    /// Counts one call until the guard is dropped.
    pub fn mark(&self) -> UnansweredGuard {
        self.0.fetch_add(1, Ordering::SeqCst);
        UnansweredGuard(self.clone())
    }
}

#[derive(Debug)]
pub struct UnansweredGuard(Unanswered);

impl Drop for UnansweredGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}
