//! A sorted set like those of Redis.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Index,
};

/// Ids with a score each, in order of score, then id.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SortedSet {
    scores: BTreeMap<String, u64>,
    order: BTreeSet<(u64, String)>,
}

impl SortedSet {
    /// Adds the id, or changes its score.
    pub fn insert(&mut self, id: &str, score: u64) {
        if let Some(old) = self.scores.insert(id.to_owned(), score) {
            self.order.remove(&(old, id.to_owned()));
        }
        self.order.insert((score, id.to_owned()));
    }

    /// Removes the id, and returns its score.
    pub fn remove(&mut self, id: &str) -> Option<u64> {
        let score = self.scores.remove(id)?;
        self.order.remove(&(score, id.to_owned()));
        Some(score)
    }

    pub fn get(&self, id: &str) -> Option<u64> {
        self.scores.get(id).copied()
    }

    pub fn contains(&self, id: &str) -> bool {
        self.scores.contains_key(id)
    }

    pub fn len(&self) -> usize {
        self.scores.len()
    }

    pub fn is_empty(&self) -> bool {
        self.scores.is_empty()
    }

    /// The lowest score.
    pub fn head(&self) -> Option<u64> {
        self.order.first().map(|(score, _)| *score)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.order.iter().map(|(score, id)| (id.as_str(), *score))
    }

    /// The ids with a score of at most `last`, and their scores.
    pub fn up_to(&self, last: u64) -> impl Iterator<Item = (&str, u64)> {
        self.order.range(..(last + 1, String::new())).map(|(score, id)| (id.as_str(), *score))
    }

    /// The ids with this score.
    pub fn at(&self, score: u64) -> impl Iterator<Item = &str> {
        self.order.range((score, String::new())..(score + 1, String::new())).map(|(_, id)| id.as_str())
    }
}

impl FromIterator<(String, u64)> for SortedSet {
    fn from_iter<T: IntoIterator<Item = (String, u64)>>(members: T) -> Self {
        let mut set = Self::default();
        for (id, score) in members {
            set.insert(&id, score);
        }
        set
    }
}

impl Index<&str> for SortedSet {
    type Output = u64;

    /// # Panics
    /// When the id is not in the set.
    fn index(&self, id: &str) -> &u64 {
        &self.scores[id]
    }
}

impl fmt::Debug for SortedSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
