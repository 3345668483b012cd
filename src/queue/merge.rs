//! Merges the pages of many partitions into one page, in order and with bounded memory.

use super::{Page, cursor};
use crate::{message::MessageId, store::redis::Listed};

/// Takes the pages of the partitions one by one.
pub struct Merge {
    /// Maximum number of messages of the page.
    limit: usize,
    /// Maximum bytes of bodies of the page.
    max_bytes: u64,
    /// By score, then id; no messages after `end`.
    listed: Vec<Listed>,
    /// Messages after this position may be incomplete, so they belong to a later page.
    end: Option<(u64, MessageId)>,
}

impl Merge {
    pub fn new(limit: usize, max_bytes: u64) -> Self {
        Self { limit, max_bytes, listed: Vec::new(), end: None }
    }

    /// `reached`: the position after which the partition may have more messages.
    pub fn add(&mut self, part: Vec<Listed>, reached: Option<(u64, MessageId)>) {
        if let Some(reached) = reached {
            self.end_at(reached);
        }
        self.listed.extend(part);
        self.listed.sort_by_key(place);
        if let Some(end) = &self.end {
            self.listed.retain(|one| place(one) <= *end);
        }
        let mut bytes = 0;
        let fits = |one: &&Listed| {
            bytes += one.bytes as u64;
            bytes <= self.max_bytes
        };
        // The first message is always part of the page. Otherwise a large message would never be listed.
        let kept = self.listed.iter().take(self.limit).take_while(fits).count().max(1);
        if kept < self.listed.len() {
            self.listed.truncate(kept);
            self.end = self.listed.last().map(place);
        }
    }

    fn end_at(&mut self, place: (u64, MessageId)) {
        if self.end.as_ref().is_none_or(|end| place < *end) {
            self.end = Some(place);
        }
    }

    pub fn finish(self) -> Page {
        let cursor = self.end.map(|(score, id)| cursor::encode(score, &id));
        Page { messages: self.listed.into_iter().map(|one| one.snapshot).collect(), cursor }
    }
}

fn place(one: &Listed) -> (u64, MessageId) {
    (one.score, one.snapshot.id.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{message::State, store::Snapshot, time::UnixMillis};

    const MAX_BYTES: u64 = 1000;

    fn part(ids: &[(u64, &str)], bytes: usize) -> Vec<Listed> {
        let listed = |(score, id): &(u64, &str)| Listed {
            score: *score,
            bytes,
            snapshot: Snapshot {
                attempt_log: Vec::new(),
                parked: false,
                id: MessageId::parse(id).unwrap(),
                state: State::Pending,
                deliver_at: UnixMillis::default(),
                attempts: 0,
                last_error: None,
                last_error_at: None,
                died_at: None,
                message: Err("not of interest".into()),
            },
        };
        ids.iter().map(listed).collect()
    }

    fn page(limit: usize, parts: Vec<(Vec<Listed>, bool)>) -> (Vec<String>, Option<(u64, MessageId)>) {
        let mut merge = Merge::new(limit, MAX_BYTES);
        for (part, more) in parts {
            let reached = part.last().filter(|_| more).map(place);
            merge.add(part, reached);
        }
        let page = merge.finish();
        let cursor = page.cursor.map(|cursor| cursor::decode(&cursor).unwrap());
        (page.messages.iter().map(|one| one.id.to_string()).collect(), cursor)
    }

    fn at(score: u64, id: &str) -> (u64, MessageId) {
        (score, MessageId::parse(id).unwrap())
    }

    #[test]
    fn a_page_ends_where_a_partition_may_go_on_whichever_comes_first() {
        let parts = || vec![(part(&[(1, "a"), (4, "d")], 1), true), (part(&[(2, "b"), (3, "c"), (5, "e")], 1), true)];
        let expected = (["a", "b", "c", "d"].map(str::to_owned).to_vec(), Some(at(4, "d")));
        assert_eq!(page(10, parts()), expected);
        assert_eq!(page(10, parts().into_iter().rev().collect()), expected);
        assert_eq!(page(2, parts()), (vec!["a".to_owned(), "b".to_owned()], Some(at(2, "b"))));
        let whole = vec![(part(&[(1, "a")], 1), false), (Vec::new(), false), (part(&[(1, "b")], 1), false)];
        assert_eq!(page(2, whole), (vec!["a".to_owned(), "b".to_owned()], None));
    }

    #[test]
    fn large_messages_of_many_partitions_make_a_short_page_that_goes_on() {
        let half = usize::try_from(MAX_BYTES / 2).unwrap();
        let parts = |bytes| ["a", "b", "c", "d"].map(|id| (part(&[(1, id)], bytes), false)).into();
        assert_eq!(page(10, parts(half)), (vec!["a".to_owned(), "b".to_owned()], Some(at(1, "b"))));
        assert_eq!(page(10, parts(3 * half)), (vec!["a".to_owned()], Some(at(1, "a"))));
    }
}
