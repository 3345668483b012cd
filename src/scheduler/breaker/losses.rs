//! Messages that were lost: sent, and without an answer.

use std::collections::HashMap;

use tokio::time::Instant;

use super::down::MessageKey;

/// Messages whose losses are kept, the latest: as many as may be in flight when a destination goes down, 2 MB at most.
pub const MAX_LOST: usize = 10_000;

#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// So often while others of its domain got through.
    pub times: u32,
    pub at: Instant,
}

/// The latest of each.
#[derive(Debug, Default)]
pub struct Losses(HashMap<MessageKey, Loss>);

impl Losses {
    pub fn keep(&mut self, key: MessageKey, loss: Loss) {
        if !self.0.contains_key(&key) && self.0.len() >= MAX_LOST {
            let mut times: Vec<_> = self.0.values().map(|loss| loss.at).collect();
            let (_, median, _) = times.select_nth_unstable(MAX_LOST / 2);
            let median = *median;
            self.0.retain(|_, loss| loss.at > median);
        }
        self.0.insert(key, loss);
    }

    pub fn get(&self, key: &MessageKey) -> Option<Loss> {
        self.0.get(key).copied()
    }

    pub fn contains(&self, key: &MessageKey) -> bool {
        self.0.contains_key(key)
    }

    pub fn remove(&mut self, key: &MessageKey) {
        self.0.remove(key);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}
