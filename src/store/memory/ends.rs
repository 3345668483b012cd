//! Ends of messages, for the history of their partition.

use bytes::Bytes;

use super::partition::{MemoryPartition, PartitionSettings};
use crate::message::{EndOutcome, EndRecord};

impl MemoryPartition {
    /// The end of a message with its body and its failed attempts.
    pub(super) fn end_of(&self, id: &str, outcome: EndOutcome, by: Option<&str>) -> (String, Bytes) {
        let record = EndRecord::of(self.bodies.get(id).unwrap_or(&Bytes::new()), 0);
        (id.to_owned(), record.entry(outcome, id, self.failures(id), None, by))
    }

    /// The end of a message that dies without an attempt. `error`: with the reason.
    pub(super) fn burial_of(&self, id: &str, failures: u32, error: &str) -> (String, Bytes) {
        let record = EndRecord::of(self.bodies.get(id).unwrap_or(&Bytes::new()), failures);
        (id.to_owned(), record.entry(EndOutcome::Dead, id, failures, Some(error), None))
    }

    /// Keeps the ends of one call, on a route with a history.
    pub(super) fn keep_ends(&mut self, ends: Vec<(String, Bytes)>, now: u64, settings: PartitionSettings) {
        if let Some((age, max)) = settings.history {
            self.history.keep(ends, now / 1000, age, max);
        }
    }
}
