//! A bounded map that keeps the entries used last.

use std::{collections::HashMap, hash::Hash};

use tokio::time::Instant;

#[derive(Debug)]
pub struct Latest<K, V> {
    max: usize,
    entries: HashMap<K, (Instant, V)>,
}

impl<K: Clone + Eq + Hash, V> Latest<K, V> {
    /// `max` entries at most.
    pub fn new(max: usize) -> Self {
        Self { max, entries: HashMap::new() }
    }

    /// Returns the value of `key`, by default a new one, and records its use. If the map is full, the least recently
    /// used half is evicted, and `evicted` is called for each value.
    pub fn entry(&mut self, key: &K, now: Instant, mut evicted: impl FnMut(&V)) -> &mut V
    where
        V: Default,
    {
        if self.entries.len() >= self.max && !self.entries.contains_key(key) {
            let mut used: Vec<_> = self.entries.values().map(|(used, _)| *used).collect();
            let (_, median, _) = used.select_nth_unstable(self.max / 2);
            let median = *median;
            self.entries.retain(|_, (used, value)| {
                let stays = *used > median;
                if !stays {
                    evicted(value);
                }
                stays
            });
        }
        let (used, value) = self.entries.entry(key.clone()).or_insert_with(|| (now, V::default()));
        *used = now;
        value
    }

    /// Returns the value of `key`, if there is one, and records its use.
    pub fn get_mut(&mut self, key: &K, now: Instant) -> Option<&mut V> {
        let (used, value) = self.entries.get_mut(key)?;
        *used = now;
        Some(value)
    }

    /// The time of the last use, and the value.
    pub fn get(&self, key: &K) -> Option<(Instant, &V)> {
        self.entries.get(key).map(|(used, value)| (*used, value))
    }

    pub fn remove(&mut self, key: &K) {
        // In an empty map the key need not be hashed.
        if !self.entries.is_empty() {
            self.entries.remove(key);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, (_, value))| (key, value))
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_full_map_keeps_the_half_that_was_used_last() {
        let at = |seconds| Instant::now() + Duration::from_secs(seconds);
        let mut map: Latest<u64, u64> = Latest::new(5);
        for key in 0..5 {
            *map.entry(&key, at(key), |_| panic!("there is a place for it")) = key;
        }
        // The oldest is used again.
        assert_eq!(map.get_mut(&0, at(5)).copied(), Some(0));
        let mut evicted = Vec::new();
        map.entry(&6, at(6), |value| evicted.push(*value));
        evicted.sort_unstable();
        assert_eq!(evicted, [1, 2, 3]);
        let mut kept: Vec<_> = map.iter().map(|(key, _)| *key).collect();
        kept.sort_unstable();
        assert_eq!(kept, [0, 4, 6]);
    }
}
