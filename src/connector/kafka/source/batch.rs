//! Batches of consumed records on their way to Redis: one in flight, the next one buffered behind it.

use std::mem;

use tokio::sync::oneshot;

use super::record::TopicPartition;
use crate::source::SourceEntry;

/// Maximum records of a batch: one call of the intake.
const MAX_BATCH_RECORDS: usize = 1000;
/// Maximum bytes of keys, values and headers of a batch. A single record can be larger.
const MAX_BATCH_BYTES: usize = 4 * 1024 * 1024;

/// A batch for the intake.
pub struct FetchedBatch {
    pub entries: Vec<SourceEntry>,
    /// Resolves when the batch must no longer be written.
    pub cancelled: oneshot::Receiver<()>,
}

pub struct FetchedRecord {
    pub partition: TopicPartition,
    pub offset: i64,
    pub bytes: usize,
    /// `None`: the record needs no write, but its offset counts.
    pub entry: Option<SourceEntry>,
}

/// At most one batch in flight and one batch of later records.
#[derive(Default)]
pub struct BatchBuffer {
    in_flight: Vec<FetchedRecord>,
    /// Cancels the batch in flight when it is dropped.
    cancel: Option<oneshot::Sender<()>>,
    backlog: Vec<FetchedRecord>,
    backlog_bytes: usize,
}

impl BatchBuffer {
    pub fn is_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Whether no record is in flight to Redis.
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty() && self.backlog.is_empty()
    }

    /// Whether the batch in flight has a record of a matching partition.
    pub fn is_any_in_flight(&self, matches: impl Fn(&TopicPartition) -> bool) -> bool {
        self.in_flight.iter().any(|record| matches(&record.partition))
    }

    pub fn has_capacity(&self) -> bool {
        self.backlog.len() < MAX_BATCH_RECORDS && self.backlog_bytes < MAX_BATCH_BYTES
    }

    pub fn push(&mut self, record: FetchedRecord) {
        self.backlog_bytes += record.bytes;
        self.backlog.push(record);
    }

    /// Puts the backlog in flight; `None` while a batch is in flight or the backlog is empty.
    pub fn start_batch(&mut self) -> Option<FetchedBatch> {
        if self.is_in_flight() || self.backlog.is_empty() {
            return None;
        }
        self.backlog_bytes = 0;
        self.in_flight = mem::take(&mut self.backlog);
        let entries = self.in_flight.iter().filter_map(|record| record.entry.clone()).collect();
        let (cancel, cancelled) = oneshot::channel();
        self.cancel = Some(cancel);
        Some(FetchedBatch { entries, cancelled })
    }

    /// Cancels the batch in flight. `finish` follows.
    pub fn cancel(&mut self) {
        self.cancel = None;
    }

    /// Ends the batch in flight. If its records are in Redis, returns them. If not, they become the front of the
    /// backlog.
    pub fn finish(&mut self, stored: bool) -> Vec<FetchedRecord> {
        let records = mem::take(&mut self.in_flight);
        if stored {
            return records;
        }
        self.backlog_bytes += records.iter().map(|record| record.bytes).sum::<usize>();
        self.backlog.splice(0..0, records);
        Vec::new()
    }

    /// Drops the batch in flight. Its offsets are not committed.
    pub fn abandon(&mut self) {
        self.in_flight.clear();
        self.cancel();
    }

    /// Drops buffered records of matching partitions. The batch in flight stays.
    pub fn remove(&mut self, matches: impl Fn(&TopicPartition) -> bool) {
        self.backlog.retain(|record| !matches(&record.partition));
        self.backlog_bytes = self.backlog.iter().map(|record| record.bytes).sum();
    }
}
