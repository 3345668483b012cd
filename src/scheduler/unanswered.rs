use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Counts the settlements of a partition that the store did not answer, by call: their messages are delivered or
/// decided upon, and must not be taken for crashed when the store is back and their leases are over.
#[derive(Clone, Debug, Default)]
pub struct Unanswered(Arc<AtomicUsize>);

impl Unanswered {
    pub fn any(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }

    /// One, until the mark is dropped.
    pub fn mark(&self) -> Mark {
        self.0.fetch_add(1, Ordering::SeqCst);
        Mark(self.clone())
    }
}

#[derive(Debug)]
pub struct Mark(Unanswered);

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}
