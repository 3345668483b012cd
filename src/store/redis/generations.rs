//! Which numbers of partitions a route has had, and which of them is the newest.
//!
//! A number gets the next generation when it is chosen: by the first instance that is configured with it, or by an
//! operator. The number with the higher generation wins: an instance with an older number than the registered one must
//! not move the messages back. Redis can come back with older data, so instances merge the generations that they know
//! with those that they read. That is possible because generations only grow.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The generation of each number that was chosen; at most `MAX_PARTITIONS` numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generations(BTreeMap<u16, u64>);

impl Generations {
    /// The generations of a route that has had one number only.
    pub fn first(number: u16) -> Self {
        Self(BTreeMap::from([(number, 1)]))
    }

    /// The generation of a number; 0 if it was never chosen.
    pub fn of(&self, number: u16) -> u64 {
        self.0.get(&number).copied().unwrap_or(0)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Makes a number the newest.
    pub fn choose(&mut self, number: u16) {
        let newest = self.0.values().max().copied().unwrap_or(0);
        if self.of(number) < newest || newest == 0 {
            self.0.insert(number, newest + 1);
        }
    }

    /// Merges the generations that another reader knows.
    pub fn unite(&mut self, other: &Self) {
        for (number, generation) in &other.0 {
            let own = self.0.entry(*number).or_default();
            *own = (*own).max(*generation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_that_was_chosen_last_has_the_highest_generation() {
        let mut generations = Generations::first(1);
        generations.choose(1);
        assert_eq!(generations.of(1), 1, "it is the newest");
        generations.choose(4);
        assert_eq!((generations.of(1), generations.of(4), generations.of(8)), (1, 2, 0));
        let before = generations.clone();
        generations.choose(1);
        assert_eq!((generations.of(1), generations.of(4)), (3, 2));
        let mut restored = before;
        restored.unite(&generations);
        assert_eq!(restored, generations);
    }
}
