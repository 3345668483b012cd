//! Merges the pages of many partitions into one page, in order and with bounded memory.

use std::cmp::Ordering;

use super::{Page, cursor};
use crate::{
    message::MessageId,
    store::{
        Order,
        redis::{Listed, ListedPart},
    },
};

type Place = (u64, MessageId);

/// Takes the pages of the partitions one by one.
pub struct Merge {
    /// Maximum number of messages of the page.
    limit: usize,
    /// Maximum bytes of bodies of the page.
    max_bytes: u64,
    order: Order,
    scanned: u64,
    /// In order; no messages after `end`.
    listed: Vec<Listed>,
    /// Messages after this position may be incomplete, so they belong to a later page.
    end: Option<Place>,
}

impl Merge {
    pub fn new(limit: usize, max_bytes: u64, order: Order) -> Self {
        Self { limit, max_bytes, order, scanned: 0, listed: Vec::new(), end: None }
    }

    pub fn add(&mut self, part: ListedPart) {
        let order = self.order;
        if let Some(reached) = part.reached
            && self.end.as_ref().is_none_or(|end| compare(order, &reached, end).is_lt())
        {
            self.end = Some(reached);
        }
        self.scanned += part.scanned;
        self.listed.extend(part.listed);
        self.listed.sort_by(|one, other| compare(order, &place(one), &place(other)));
        if let Some(end) = &self.end {
            self.listed.retain(|one| compare(order, &place(one), end).is_le());
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

    pub fn finish(self) -> Page {
        let cursor = self.end.map(|(score, id)| cursor::encode(self.order, score, &id));
        let messages = self.listed.into_iter().map(|one| one.snapshot).collect();
        Page { messages, scanned: self.scanned, cursor }
    }
}

fn compare(order: Order, one: &Place, other: &Place) -> Ordering {
    match order {
        Order::Ascending => one.cmp(other),
        Order::Descending => other.cmp(one),
    }
}

fn place(one: &Listed) -> Place {
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
                revision: None,
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

    fn page(limit: usize, parts: Vec<(Vec<Listed>, bool)>) -> (Vec<String>, Option<Place>) {
        ordered(Order::Ascending, limit, parts)
    }

    fn ordered(order: Order, limit: usize, parts: Vec<(Vec<Listed>, bool)>) -> (Vec<String>, Option<Place>) {
        let mut merge = Merge::new(limit, MAX_BYTES, order);
        for (listed, more) in parts {
            let (now, scanned) = (UnixMillis::default(), listed.len() as u64);
            let reached = listed.last().filter(|_| more).map(place);
            merge.add(ListedPart { now, scanned, listed, reached });
        }
        let page = merge.finish();
        let cursor = page.cursor.map(|cursor| cursor::decode(order, &cursor).unwrap());
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
    fn a_page_in_descending_order_ends_at_the_latest_end() {
        let parts = vec![(part(&[(4, "d"), (1, "a")], 1), true), (part(&[(5, "e"), (3, "c"), (2, "b")], 1), true)];
        let expected = (["e", "d", "c", "b"].map(str::to_owned).to_vec(), Some(at(2, "b")));
        assert_eq!(ordered(Order::Descending, 10, parts), expected);
        let equal = vec![(part(&[(1, "a")], 1), false), (part(&[(1, "b")], 1), false)];
        assert_eq!(ordered(Order::Descending, 1, equal), (vec!["b".to_owned()], Some(at(1, "b"))));
    }

    #[test]
    fn large_messages_of_many_partitions_make_a_short_page_that_goes_on() {
        let half = usize::try_from(MAX_BYTES / 2).unwrap();
        let parts = |bytes| ["a", "b", "c", "d"].map(|id| (part(&[(1, id)], bytes), false)).into();
        assert_eq!(page(10, parts(half)), (vec!["a".to_owned(), "b".to_owned()], Some(at(1, "b"))));
        assert_eq!(page(10, parts(3 * half)), (vec!["a".to_owned()], Some(at(1, "a"))));
    }
}
