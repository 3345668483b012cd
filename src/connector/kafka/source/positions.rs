//! The position of each assigned partition in Redis, and the offset that is committed for it.

use std::collections::BTreeMap;

use rdkafka::{TopicPartitionList, error::KafkaResult};

use super::{
    record::TopicPartition,
    start_position::{StartPosition, to_list},
};

#[derive(Debug, Default)]
pub struct Positions {
    assigned: BTreeMap<TopicPartition, Position>,
    /// Committed offsets of partitions that were revoked.
    left: BTreeMap<TopicPartition, i64>,
}

#[derive(Debug)]
struct Position {
    /// The lowest offset that the next polled record can have.
    unread: i64,
    /// The first offset that is not in Redis.
    next: i64,
    /// The latest commit that did not fail.
    committed: Option<i64>,
    /// See `StartPosition`.
    first_read_ends: Option<i64>,
}

impl Positions {
    /// Adds an assigned partition. Its start offset is committed. Returns the offset that this process committed for
    /// it, if the start is below that.
    pub fn insert(&mut self, start: StartPosition) -> Option<i64> {
        let StartPosition { partition, next, first_read_ends } = start;
        let left = self.left.remove(&partition);
        let position = Position { unread: next, next, committed: Some(next), first_read_ends };
        self.assigned.insert(partition, position);
        left.filter(|left| next < *left)
    }

    /// Whether a partition of the topic was revoked before.
    pub fn was_read(&self, topic: &str) -> bool {
        self.left.keys().any(|partition| *partition.topic == *topic)
    }

    /// Notes that the record at `offset` was polled. Returns the lowest offset that it could have, if it is below that:
    /// the log begins again.
    pub fn poll(&mut self, partition: &TopicPartition, offset: i64) -> Option<i64> {
        let position = self.assigned.get_mut(partition)?;
        let expected = std::mem::replace(&mut position.unread, offset + 1);
        let begins_again = offset < expected;
        if begins_again {
            // All records are younger than the group.
            position.first_read_ends = None;
        }
        begins_again.then_some(expected)
    }

    /// Notes that all records up to `offset` are in Redis, or need not be.
    pub fn advance(&mut self, partition: &TopicPartition, offset: i64) {
        if let Some(position) = self.assigned.get_mut(partition) {
            // The offset can be lower than before, after the topic was deleted and created again.
            position.next = offset + 1;
            position.first_read_ends = position.first_read_ends.filter(|ends| position.next < *ends);
        }
    }

    /// Notes that there is no record between the last one and `next`: the markers at the end of transactions, and
    /// aborted records, have offsets too.
    pub fn step_over(&mut self, partition: &TopicPartition, next: i64) {
        if self.next(partition).is_some_and(|known| known < next) {
            self.advance(partition, next - 1);
        }
    }

    /// Whether the record is older than the group.
    pub fn is_first_read(&self, partition: &TopicPartition, offset: i64) -> bool {
        self.assigned.get(partition).and_then(|position| position.first_read_ends).is_some_and(|ends| offset < ends)
    }

    /// The first offset that is not in Redis.
    pub fn next(&self, partition: &TopicPartition) -> Option<i64> {
        self.assigned.get(partition).map(|position| position.next)
    }

    /// Returns the positions to commit, and marks them as committed. `None`: there are none.
    pub fn take_uncommitted(&mut self) -> KafkaResult<Option<TopicPartitionList>> {
        let uncommitted = self.assigned.iter_mut().filter(|(_, position)| position.committed != Some(position.next));
        let uncommitted: Vec<StartPosition> = uncommitted
            .map(|(partition, position)| {
                position.committed = Some(position.next);
                let Position { next, first_read_ends, .. } = *position;
                StartPosition { partition: partition.clone(), next, first_read_ends }
            })
            .collect();
        (!uncommitted.is_empty()).then(|| to_list(&uncommitted)).transpose()
    }

    /// Makes the next `take_uncommitted` return all positions.
    pub fn mark_uncommitted(&mut self) {
        self.assigned.values_mut().for_each(|position| position.committed = None);
    }

    /// Removes revoked partitions.
    pub fn remove(&mut self, is_revoked: impl Fn(&TopicPartition) -> bool) {
        for (partition, position) in self.assigned.extract_if(.., |partition, _| is_revoked(partition)) {
            self.left.extend(position.committed.map(|committed| (partition, committed)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_committed_once_and_again_after_a_failure() {
        let partition = |index| TopicPartition { topic: "t".into(), index };
        let offsets = |positions: &mut Positions| {
            let list = positions.take_uncommitted().unwrap();
            let elements = list.iter().flat_map(TopicPartitionList::elements);
            elements.map(|one| (one.partition(), one.offset().to_raw().unwrap())).collect::<Vec<_>>()
        };
        let mut positions = Positions::default();
        for index in 0..2 {
            positions.insert(StartPosition { partition: partition(index), next: 0, first_read_ends: None });
        }
        assert_eq!(offsets(&mut positions), [], "start offsets are committed");
        positions.advance(&partition(0), 4);
        positions.advance(&partition(1), 0);
        assert_eq!(offsets(&mut positions), [(0, 5), (1, 1)]);
        positions.advance(&partition(1), 7);
        assert_eq!(offsets(&mut positions), [(1, 8)]);
        assert_eq!(offsets(&mut positions), []);
        positions.mark_uncommitted();
        positions.remove(|partition| partition.index == 0);
        assert_eq!(offsets(&mut positions), [(1, 8)]);
    }

    #[test]
    fn a_log_that_begins_again_is_detected_by_a_record_or_by_a_start() {
        let partition = TopicPartition { topic: "t".into(), index: 0 };
        let start = |next| StartPosition { partition: partition.clone(), next, first_read_ends: None };
        let mut positions = Positions::default();
        assert_eq!((positions.insert(start(4)), positions.was_read("t")), (None, false));
        let polled: Vec<_> = [4, 7, 8, 0, 1].map(|offset| positions.poll(&partition, offset)).into();
        assert_eq!(polled, [None, None, None, Some(9), None]);
        positions.advance(&partition, 1);
        for (committed, next, detected) in [(true, 2, None), (true, 1, Some(2)), (false, 0, None)] {
            if committed {
                positions.take_uncommitted().unwrap();
            } else {
                positions.mark_uncommitted();
            }
            positions.remove(|_| true);
            assert_eq!(positions.was_read("t"), committed);
            assert_eq!(positions.insert(start(next)), detected);
        }
    }

    #[test]
    fn a_position_steps_over_markers_and_never_back() {
        let partition = TopicPartition { topic: "t".into(), index: 0 };
        let mut positions = Positions::default();
        positions.step_over(&partition, 3);
        assert_eq!(positions.next(&partition), None, "not assigned");
        positions.insert(StartPosition { partition: partition.clone(), next: 4, first_read_ends: Some(6) });
        for (to, next) in [(3, 4), (4, 4), (6, 6)] {
            positions.step_over(&partition, to);
            assert_eq!(positions.next(&partition), Some(next), "{to}");
        }
        let list = positions.take_uncommitted().unwrap().unwrap();
        assert_eq!(list.elements()[0].metadata(), "", "the first read has ended");
    }

    #[test]
    fn the_end_of_a_first_read_is_in_each_commit_until_it_is_passed() {
        let partition = TopicPartition { topic: "t".into(), index: 0 };
        let mut positions = Positions::default();
        positions.insert(StartPosition { partition: partition.clone(), next: 0, first_read_ends: Some(10) });
        assert!(positions.is_first_read(&partition, 9) && !positions.is_first_read(&partition, 10));
        for (offset, metadata) in [(4, "first read ends at 10"), (8, "first read ends at 10"), (9, "")] {
            positions.advance(&partition, offset);
            let list = positions.take_uncommitted().unwrap().unwrap();
            assert_eq!(list.elements()[0].metadata(), metadata, "{offset}");
        }
        assert!(!positions.is_first_read(&partition, 4));
    }
}
