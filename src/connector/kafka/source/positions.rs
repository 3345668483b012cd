//! How far each assigned partition is in Redis, and how far its group knows that.

use std::collections::BTreeMap;

use rdkafka::{TopicPartitionList, error::KafkaResult};

use super::{
    beginning::{Beginning, list},
    record::Place,
};

#[derive(Debug, Default)]
pub struct Positions(BTreeMap<Place, Position>);

#[derive(Debug)]
struct Position {
    /// The first offset that is not in Redis.
    next: i64,
    /// What was last committed, unless that failed.
    committed: Option<i64>,
    /// See `Beginning`.
    first_read_ends: Option<i64>,
}

impl Positions {
    /// It is ours, and the group knows where it begins.
    pub fn begin(&mut self, begun: Beginning) {
        let Beginning { place, next, first_read_ends } = begun;
        self.0.insert(place, Position { next, committed: Some(next), first_read_ends });
    }

    /// All up to `offset` is in Redis, or needs not be there.
    pub fn taken(&mut self, place: &Place, offset: i64) {
        if let Some(position) = self.0.get_mut(place) {
            // Lower than before when the topic was made anew.
            position.next = offset + 1;
            position.first_read_ends = position.first_read_ends.filter(|ends| position.next < *ends);
        }
    }

    /// Whether the record was there before the group was.
    pub fn is_first_read(&self, place: &Place, offset: i64) -> bool {
        self.0.get(place).and_then(|position| position.first_read_ends).is_some_and(|ends| offset < ends)
    }

    pub fn next(&self, place: &Place) -> Option<i64> {
        self.0.get(place).map(|position| position.next)
    }

    /// What the group does not know yet; it counts as committed from now on. `None`: it knows all.
    pub fn uncommitted(&mut self) -> KafkaResult<Option<TopicPartitionList>> {
        let news = self.0.iter_mut().filter(|(_, position)| position.committed != Some(position.next));
        let news: Vec<Beginning> = news
            .map(|(place, position)| {
                position.committed = Some(position.next);
                Beginning { place: place.clone(), next: position.next, first_read_ends: position.first_read_ends }
            })
            .collect();
        (!news.is_empty()).then(|| list(&news)).transpose()
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
        for partition in 0..2 {
            positions.begin(Beginning { place: place(partition), next: 0, first_read_ends: None });
        }
        assert_eq!(offsets(&mut positions), [], "the group knows where it begins");
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

    #[test]
    fn a_first_read_is_told_with_each_commit_until_it_ends() {
        let place = Place { topic: "t".into(), partition: 0 };
        let mut positions = Positions::default();
        positions.begin(Beginning { place: place.clone(), next: 0, first_read_ends: Some(10) });
        assert!(positions.is_first_read(&place, 9) && !positions.is_first_read(&place, 10));
        for (offset, told) in [(4, "first read ends at 10"), (8, "first read ends at 10"), (9, "")] {
            positions.taken(&place, offset);
            let list = positions.uncommitted().unwrap().unwrap();
            assert_eq!(list.elements()[0].metadata(), told, "{offset}");
        }
        assert!(!positions.is_first_read(&place, 4));
    }
}
