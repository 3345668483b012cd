//! A sorted set.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

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
        let invalid = || "ERR value is not a valid float".to_owned();
        let text = std::str::from_utf8(text).map_err(|_| invalid())?;
        let number = match text.trim_start_matches('+').to_ascii_lowercase().as_str() {
            "inf" | "infinity" => f64::INFINITY,
            "-inf" | "-infinity" => f64::NEG_INFINITY,
            other => other.parse().map_err(|_| invalid())?,
        };
        if number.is_nan() { Err(invalid()) } else { Ok(Self(number)) }
    }

    /// The text of Redis for a score.
    pub fn text(self) -> Vec<u8> {
        let Self(number) = self;
        if number.is_infinite() {
            return if number > 0.0 { b"inf".to_vec() } else { b"-inf".to_vec() };
        }
        // Scores of the scripts are below 2^63, where the shortest form has no exponent.
        format!("{number}").into_bytes()
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
        let old = self.scores.insert(member.clone(), score);
        if let Some(old) = old {
            if old == score {
                return Some(old);
            }
            self.order.remove(&(old, member.clone()));
        }
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
