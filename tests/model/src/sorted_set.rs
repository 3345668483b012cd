//! A sorted set.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use crate::number;

/// A score, ordered as Redis orders them. Never NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score(pub f64);

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.partial_cmp(&other.0).expect("no NaN")
    }
}

impl Score {
    /// # Errors
    /// The error of Redis for a score that is not a number.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let found = number::prefix(text).filter(|found| found.len == text.len() && !found.is_out_of_range);
        let found = found.filter(|found| !found.number.is_nan());
        // A small sorted set of Redis keeps -0 as 0.
        found.map(|found| Self(found.number + 0.0)).ok_or_else(|| "ERR value is not a valid float".to_owned())
    }

    /// The end of a range, which is read with less care: blanks before it, no text, and any size. `None`: not a number.
    pub fn parse_end(text: &[u8]) -> Option<Self> {
        // It ends at a zero byte.
        let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
        if text.is_empty() {
            return Some(Self(0.0));
        }
        let text = text.trim_ascii_start();
        let found = number::prefix(text).filter(|found| found.len == text.len() && !found.number.is_nan());
        found.map(|found| Self(found.number))
    }

    /// The text of Redis 7.0 for a score.
    pub fn text(self) -> Vec<u8> {
        number::text(self.0, 17).into_bytes()
    }
}

/// Members by score, then by bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SortedSet {
    scores: BTreeMap<Vec<u8>, Score>,
    order: BTreeSet<(Score, Vec<u8>)>,
}

/// Both ends of a range of scores or of members.
pub type Range<T> = (Bound<T>, Bound<T>);

impl SortedSet {
    pub fn len(&self) -> usize {
        self.scores.len()
    }

    pub fn is_empty(&self) -> bool {
        self.scores.is_empty()
    }

    pub fn score(&self, member: &[u8]) -> Option<Score> {
        self.scores.get(member).copied()
    }

    /// Returns the former score.
    pub fn insert(&mut self, member: Vec<u8>, score: Score) -> Option<Score> {
        let old = self.score(&member);
        if old == Some(score) {
            return old;
        }
        if let Some(old) = old {
            self.order.remove(&(old, member.clone()));
        }
        self.scores.insert(member.clone(), score);
        self.order.insert((score, member));
        old
    }

    pub fn remove(&mut self, member: &[u8]) -> bool {
        let Some(score) = self.scores.remove(member) else { return false };
        self.order.remove(&(score, member.to_vec()))
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&Vec<u8>, Score)> {
        self.order.iter().map(|(score, member)| (member, *score))
    }

    /// The members with scores in the range.
    pub fn by_score(&self, (from, to): Range<Score>) -> impl DoubleEndedIterator<Item = (&Vec<u8>, Score)> {
        let start = match from {
            Bound::Included(score) | Bound::Excluded(score) => Bound::Included((score, Vec::new())),
            Bound::Unbounded => Bound::Unbounded,
        };
        let after = move |score: Score| !matches!(from, Bound::Excluded(bound) if score <= bound);
        let before = move |score: Score| match to {
            Bound::Included(bound) => score <= bound,
            Bound::Excluded(bound) => score < bound,
            Bound::Unbounded => true,
        };
        let found: Vec<_> = self
            .order
            .range((start, Bound::Unbounded))
            .map(|(score, member)| (member, *score))
            .skip_while(move |(_, score)| !after(*score))
            .take_while(move |(_, score)| before(*score))
            .collect();
        found.into_iter()
    }

    /// The members in the range of bytes, of a set in which all scores are equal.
    pub fn by_member(&self, (from, to): &Range<Vec<u8>>) -> impl DoubleEndedIterator<Item = (&Vec<u8>, Score)> {
        let score = self.order.first().map_or(Score(0.0), |(score, _)| *score);
        let start = match from {
            Bound::Included(member) => Bound::Included((score, member.clone())),
            Bound::Excluded(member) => Bound::Excluded((score, member.clone())),
            Bound::Unbounded => Bound::Unbounded,
        };
        let before = |member: &Vec<u8>| match to {
            Bound::Included(bound) => member <= bound,
            Bound::Excluded(bound) => member < bound,
            Bound::Unbounded => true,
        };
        let found: Vec<_> = self
            .order
            .range((start, Bound::Unbounded))
            .map(|(score, member)| (member, *score))
            .take_while(|(member, _)| before(member))
            .collect();
        found.into_iter()
    }
}
