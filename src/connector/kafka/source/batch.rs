//! Batches of consumed records on their way to Redis: one in flight, the next one buffered behind it.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

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

/// At most one batch in flight and one batch of later records. After a cancelled batch both are in the backlog, which
/// gets no records until one of them is in flight again and stored.
#[derive(Default)]
pub struct BatchBuffer {
    in_flight: Vec<FetchedRecord>,
    /// Indices in `in_flight` of the entries of the batch.
    entries: Vec<usize>,
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

    /// Puts the first records of the backlog in flight, at most a batch; `None` while a batch is in flight or the backlog
    /// is empty.
    pub fn start_batch(&mut self) -> Option<FetchedBatch> {
        if self.is_in_flight() || self.backlog.is_empty() {
            return None;
        }
        // After a cancelled batch the backlog exceeds a batch.
        let (mut records, mut bytes) = (0, 0);
        while records < MAX_BATCH_RECORDS
            && bytes < MAX_BATCH_BYTES
            && let Some(record) = self.backlog.get(records)
        {
            records += 1;
            bytes += record.bytes;
        }
        let later = self.backlog.split_off(records);
        self.in_flight = mem::replace(&mut self.backlog, later);
        self.backlog_bytes -= bytes;
        let mut entries = Vec::new();
        self.entries.clear();
        for (index, record) in self.in_flight.iter().enumerate() {
            if let Some(entry) = &record.entry {
                self.entries.push(index);
                entries.push(entry.clone());
            }
        }
        let (cancel, cancelled) = oneshot::channel();
        self.cancel = Some(cancel);
        Some(FetchedBatch { entries, cancelled })
    }

    /// Marks entries of the batch in flight as stored: its records need no write. Returns each partition that has
    /// advanced, with the last offset before which nothing waits.
    pub fn mark_stored(&mut self, entries: &[usize]) -> Vec<(TopicPartition, i64)> {
        for entry in entries {
            if let Some(record) = self.entries.get(*entry).and_then(|index| self.in_flight.get_mut(*index)) {
                record.entry = None;
            }
        }
        let (mut waiting, mut advanced) = (BTreeSet::new(), BTreeMap::new());
        for record in &self.in_flight {
            if record.entry.is_some() {
                waiting.insert(&record.partition);
            } else if !waiting.contains(&record.partition) {
                advanced.insert(&record.partition, record.offset);
            }
        }
        advanced.into_iter().map(|(partition, offset)| (partition.clone(), offset)).collect()
    }

    /// Cancels the batch in flight. `finish` follows.
    pub fn cancel(&mut self) {
        self.cancel = None;
    }

    /// Ends the batch in flight. If its records are in Redis, returns them. If not, they become the front of the
    /// backlog: those marked as stored have offsets that count after those of earlier records.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::MessageId;

    fn partition(index: i32) -> TopicPartition {
        TopicPartition { topic: "t".into(), index }
    }

    fn record(index: i32, offset: i64, has_entry: bool) -> FetchedRecord {
        let id = MessageId::parse(&format!("{index}-{offset}")).expect("an id");
        let entry = has_entry.then(|| SourceEntry::Cancel(id.into()));
        FetchedRecord { partition: partition(index), offset, bytes: 1, entry }
    }

    fn ids(batch: &FetchedBatch) -> Vec<String> {
        let id = |entry: &SourceEntry| match entry {
            SourceEntry::Cancel(cancellation) => cancellation.id.to_string(),
            other => panic!("{other:?}"),
        };
        batch.entries.iter().map(id).collect()
    }

    #[test]
    fn at_most_two_batches_are_buffered_however_often_a_batch_is_cancelled() {
        for (bytes, most) in [(1, 2 * MAX_BATCH_RECORDS), (MAX_BATCH_BYTES / 4, 8)] {
            let (mut buffer, mut offset, mut sent) = (BatchBuffer::default(), 0, Vec::new());
            for _ in 0..5 {
                for _ in 0..2 {
                    while buffer.has_capacity() {
                        buffer.push(FetchedRecord { bytes, ..record(0, offset, true) });
                        offset += 1;
                    }
                    if let Some(batch) = buffer.start_batch() {
                        sent.push(ids(&batch));
                    }
                }
                assert_eq!(buffer.in_flight.len() + buffer.backlog.len(), most);
                buffer.cancel();
                buffer.finish(false);
            }
            assert!(sent.len() == 5 && sent.iter().all(|ids| *ids == sent[0] && ids.len() == most / 2));
        }
    }

    #[test]
    fn a_batch_can_be_cancelled_and_records_of_a_partition_leave_the_backlog() {
        let mut buffer = BatchBuffer::default();
        assert!(buffer.is_empty() && !buffer.is_in_flight());
        buffer.push(record(0, 1, true));
        assert!(!buffer.is_empty());
        let mut batch = buffer.start_batch().expect("a batch");
        assert!(!buffer.is_empty() && buffer.is_in_flight());
        assert!(buffer.is_any_in_flight(|one| *one == partition(0)));
        assert!(!buffer.is_any_in_flight(|one| *one == partition(1)));
        for index in 0..2 {
            buffer.push(FetchedRecord { bytes: MAX_BATCH_BYTES / 2, ..record(index, 2, true) });
        }
        assert!(!buffer.has_capacity());
        buffer.remove(|one| *one == partition(0));
        assert!(buffer.has_capacity());
        assert_eq!(batch.cancelled.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        buffer.cancel();
        assert_eq!(batch.cancelled.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        buffer.finish(false);
        assert_eq!(ids(&buffer.start_batch().expect("a batch")), ["0-1", "1-2"]);
    }

    #[test]
    fn a_partition_advances_to_its_first_waiting_record_and_stored_records_are_not_sent_again() {
        let mut buffer = BatchBuffer::default();
        for (index, offset, has_entry) in
            [(0, 1, true), (1, 1, true), (0, 2, false), (0, 3, true), (1, 2, true), (0, 4, true)]
        {
            buffer.push(record(index, offset, has_entry));
        }
        let batch = buffer.start_batch().expect("a batch");
        assert_eq!(ids(&batch), ["0-1", "1-1", "0-3", "1-2", "0-4"]);
        assert_eq!(buffer.mark_stored(&[3, 4]), [], "earlier records wait");
        assert_eq!(buffer.mark_stored(&[0]), [(partition(0), 2)]);
        assert!(buffer.finish(false).is_empty());
        let batch = buffer.start_batch().expect("a batch");
        assert_eq!(ids(&batch), ["1-1", "0-3"]);
        assert_eq!(buffer.mark_stored(&[0, 1]), [(partition(0), 4), (partition(1), 2)]);
        assert_eq!(buffer.finish(true).len(), 6);
    }
}
