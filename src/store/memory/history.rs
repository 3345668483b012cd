//! The history of a partition (lua/include/history.lua).

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::message::linked;

/// Ends of a block.
pub const BLOCK: u64 = 16;
/// Maximum number of blocks that one call deletes.
const MOST_DELETED: u64 = 128;

/// The ends of a partition's messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryHistory {
    /// Number of the first end that is kept.
    pub first: u64,
    /// Time of the last end.
    pub last: u64,
    /// Time, id and stored entry of each, in order of their numbers.
    pub ends: VecDeque<(u64, String, Bytes)>,
}

impl MemoryHistory {
    /// The number of the next end.
    pub fn following(&self) -> u64 {
        self.first + self.ends.len() as u64
    }

    /// Keeps ends, and deletes old ones: more than `max`, or older than `age` (ms).
    pub(super) fn keep(&mut self, ends: Vec<(String, Bytes)>, now: u64, age: u64, max: u64) {
        if ends.is_empty() {
            return;
        }
        let now = now.max(self.last);
        let skipped = (ends.len() as u64).saturating_sub(max);
        let written = ends.len() as u64 - skipped;
        let begins = |block: u64| self.ends.get(usize::try_from(block * BLOCK).expect("few")).map(|(at, ..)| *at);
        let beyond = (self.following() + written).saturating_sub(max + self.first) / BLOCK;
        let mut blocks = beyond.min(MOST_DELETED);
        for _ in 0..2 {
            let is_old = begins(blocks + 1).is_some_and(|at| at < now.saturating_sub(age));
            if !is_old || blocks == MOST_DELETED {
                break;
            }
            blocks += 1;
        }
        let mut newest = BTreeMap::new();
        for (number, (_, id, _)) in (self.first..).zip(&self.ends) {
            newest.insert(id.clone(), number / BLOCK);
        }
        let following = self.following();
        self.ends.drain(..usize::try_from(blocks * BLOCK).expect("few"));
        self.first += blocks * BLOCK;
        self.last = now;
        let kept = ends.into_iter().skip(usize::try_from(skipped).expect("few"));
        for (number, (id, entry)) in (following..).zip(kept) {
            let former = newest.insert(id.clone(), number / BLOCK);
            let entry = former.map_or(entry.clone(), |block| linked(&entry, block));
            self.ends.push_back((now, id, entry));
        }
    }
}
