//! How far each assigned partition is in Redis, and how far its group knows that.

use std::collections::BTreeMap;

use rdkafka::{Offset, TopicPartitionList, error::KafkaResult};

use super::record::Place;

#[derive(Debug, Default)]
pub struct Positions(BTreeMap<Place, Position>);

#[derive(Debug)]
struct Position {
    /// The first offset that is not in Redis.
    next: i64,
    /// What was last committed, unless that failed.
    committed: Option<i64>,
}

impl Positions {
    /// All up to `offset` is in Redis, or needs not be there.
    pub fn taken(&mut self, place: &Place, offset: i64) {
        // Lower than before when the topic was made anew.
        let next = offset + 1;
        match self.0.get_mut(place) {
            Some(position) => position.next = next,
            None => {
                self.0.insert(place.clone(), Position { next, committed: None });
            }
        }
    }

    pub fn next(&self, place: &Place) -> Option<i64> {
        self.0.get(place).map(|position| position.next)
    }

    /// What the group does not know yet; it counts as committed from now on. `None`: it knows all.
    pub fn uncommitted(&mut self) -> KafkaResult<Option<TopicPartitionList>> {
        let mut list = TopicPartitionList::new();
        for (place, position) in self.0.iter_mut().filter(|(_, position)| position.committed != Some(position.next)) {
            list.add_partition_offset(&place.topic, place.partition, Offset::Offset(position.next))?;
            position.committed = Some(position.next);
        }
        Ok((list.count() > 0).then_some(list))
    }

    /// Nothing is known to be committed.
    pub fn not_committed(&mut self) {
        self.0.values_mut().for_each(|position| position.committed = None);
    }

    /// They are no longer ours.
    pub fn forget(&mut self, gone: impl Fn(&Place) -> bool) {
        self.0.retain(|place, _| !gone(place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_committed_once_and_again_after_a_failure() {
        let place = |partition| Place { topic: "t".into(), partition };
        let offsets = |positions: &mut Positions| {
            let list = positions.uncommitted().unwrap();
            let elements = list.iter().flat_map(TopicPartitionList::elements);
            elements.map(|one| (one.partition(), one.offset().to_raw().unwrap())).collect::<Vec<_>>()
        };
        let mut positions = Positions::default();
        positions.taken(&place(0), 4);
        positions.taken(&place(1), 0);
        assert_eq!(offsets(&mut positions), [(0, 5), (1, 1)]);
        positions.taken(&place(1), 7);
        assert_eq!(offsets(&mut positions), [(1, 8)]);
        assert_eq!(offsets(&mut positions), []);
        positions.not_committed();
        positions.forget(|place| place.partition == 0);
        assert_eq!(offsets(&mut positions), [(1, 8)]);
    }
}
