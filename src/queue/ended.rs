//! Messages of a route that ended.

use futures::future::try_join_all;
use tokio::time::Instant;

use super::{
    Queue, QueueError,
    cursor::{self, EndKey},
};
use crate::{
    message::{EndOutcome, EndedMessage},
    store::{
        Filter, Order, Partition,
        redis::{EndPlace, EndsPart},
    },
    time::UnixMillis,
};

/// Partitions that are read at once.
const AT_ONCE: usize = 4;

/// Ends of a partition that are read at once for a filter.
const SCANNED: usize = 1000;

/// Which ends are listed.
#[derive(Clone, Debug)]
pub struct EndedQuery {
    pub outcome: Option<EndOutcome>,
    /// Key, flow, group, a part of the error, and bounds of the time of the end. The history has nothing else of it.
    pub filter: Filter,
    pub order: Order,
}

/// A part of a list of ends.
#[derive(Clone, Debug, Default)]
pub struct EndedPage {
    pub ends: Vec<EndedMessage>,
    /// Number of ends that were read.
    pub scanned: u64,
    /// Where the next page begins; `None` at the end. Opaque.
    pub cursor: Option<String>,
}

impl Queue {
    /// Ends of messages, `limit` (1 to 1000) at most. With a filter the page can have fewer, or none, and a cursor, when
    /// the time is `deadline`.
    ///
    /// # Errors
    /// `NoHistory` for a route without a history, `Invalid` unless `ended` made the cursor, in the same order.
    pub async fn ended(
        &self,
        route: &str,
        query: &EndedQuery,
        limit: usize,
        cursor: Option<&str>,
        deadline: Instant,
    ) -> Result<EndedPage, QueueError> {
        self.route(route)?;
        if !self.store().keeps_history(route) {
            return Err(QueueError::NoHistory(route.to_owned()));
        }
        let mut after = cursor.map(|cursor| cursor::decode_ended(query.order, cursor)).transpose()?;
        let mut page = EndedPage::default();
        loop {
            let reached = self.ended_after(route, query, limit, after, &mut page).await?;
            let is_full = page.ends.len() == limit || (query.has_filter() && Instant::now() >= deadline);
            page.cursor = reached.map(|key| cursor::encode_ended(query.order, key));
            if reached.is_none() || is_full {
                return Ok(page);
            }
            after = reached;
        }
    }

    /// Adds ends behind `after` to the page. Returns the key of the last end that was looked at, if others follow.
    async fn ended_after(
        &self,
        route: &str,
        query: &EndedQuery,
        limit: usize,
        after: Option<EndKey>,
        page: &mut EndedPage,
    ) -> Result<Option<EndKey>, QueueError> {
        let (found, store) = (self.route(route)?, self.store());
        let count = if query.has_filter() { SCANNED } else { limit - page.ends.len() };
        let (mut ends, mut reached): (Vec<(EndKey, EndedMessage)>, Option<EndKey>) = (Vec::new(), None);
        for group in found.partitions.chunks(AT_ONCE) {
            let read = |partition| store.ends(partition, query.order, query.begin(partition, after), count);
            let parts = try_join_all(group.iter().map(|(partition, _)| read(partition))).await?;
            for ((partition, _), EndsPart { ends: more, reached: last }) in group.iter().zip(parts) {
                let key = |at, number| (at, partition.index, number);
                ends.extend(more.into_iter().map(|(number, end)| (key(end.ended, number), end)));
                let last = last.map(|(at, number)| key(at, number));
                // Ends of this partition behind it are unknown.
                reached = match (reached, last) {
                    (Some(one), Some(other)) => Some(if query.is_before(&one, &other) { one } else { other }),
                    (one, other) => one.or(other),
                };
            }
        }
        ends.retain(|(key, _)| reached.is_none_or(|reached| !query.is_before(&reached, key)));
        ends.sort_by(|(one, _), (other, _)| match query.order {
            Order::Ascending => one.cmp(other),
            Order::Descending => other.cmp(one),
        });
        let mut ends = ends.into_iter().peekable();
        while let Some((key, end)) = ends.next_if(|(_, end)| !query.is_over(end.ended)) {
            page.scanned += 1;
            if query.takes(&end) {
                page.ends.push(end);
            }
            if page.ends.len() == limit {
                return Ok(Some(key).filter(|_| ends.peek().is_some() || reached.is_some()));
            }
        }
        Ok(reached.filter(|(at, ..)| ends.peek().is_none() && !query.is_over(*at)))
    }
}

impl EndedQuery {
    /// Whether ends can be left out, so that a page can take long.
    pub fn has_filter(&self) -> bool {
        self.outcome.is_some() || self.filter != Filter::default()
    }

    fn takes(&self, end: &EndedMessage) -> bool {
        let Filter { since, until, contains, flow, group, key, .. } = &self.filter;
        let is = |wanted: &Option<String>, actual: &Option<String>| {
            wanted.as_deref().is_none_or(|wanted| wanted == actual.as_deref().unwrap_or_default())
        };
        self.outcome.is_none_or(|outcome| outcome == end.outcome)
            && since.is_none_or(|since| since <= end.ended)
            && until.is_none_or(|until| end.ended < until)
            && contains.as_ref().is_none_or(|part| end.error.as_ref().is_some_and(|error| error.contains(part)))
            && is(flow, &end.flow)
            && is(group, &end.group)
            && is(key, &end.key)
    }

    /// Whether all ends from this time on, in the order of the list, are outside of the bounds.
    fn is_over(&self, at: UnixMillis) -> bool {
        match self.order {
            Order::Ascending => self.filter.until.is_some_and(|until| at >= until),
            Order::Descending => self.filter.since.is_some_and(|since| at < since),
        }
    }

    fn is_before(&self, one: &EndKey, other: &EndKey) -> bool {
        match self.order {
            Order::Ascending => one < other,
            Order::Descending => one > other,
        }
    }

    /// Where the list begins in a partition, behind an end in any partition.
    fn begin(&self, partition: &Partition, after: Option<EndKey>) -> EndPlace {
        let (until, since) = (self.filter.until, self.filter.since);
        match (after, self.order) {
            (Some((_, index, number)), _) if partition.index == index => EndPlace::Behind(number),
            // Two ends at one time: that in the partition with the lower index is the earlier one.
            (Some((at, index, _)), Order::Ascending) if partition.index < index => EndPlace::At(following(at)),
            (Some((at, index, _)), Order::Descending) if partition.index > index => EndPlace::At(preceding(at)),
            (Some((at, ..)), _) => EndPlace::At(at),
            (None, Order::Ascending) => since.map_or(EndPlace::Start, EndPlace::At),
            (None, Order::Descending) => until.map_or(EndPlace::Start, |until| EndPlace::At(preceding(until))),
        }
    }
}

fn preceding(at: UnixMillis) -> UnixMillis {
    UnixMillis::new(at.get().saturating_sub(1)).unwrap_or_default()
}

fn following(at: UnixMillis) -> UnixMillis {
    UnixMillis::new(at.get().saturating_add(1)).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_end_is_before_another_in_the_order_of_the_list() {
        let key = |at, index| (UnixMillis::new(at).unwrap(), index, 7);
        let query = |order| EndedQuery { outcome: None, filter: Filter::default(), order };
        for (earlier, later) in [(key(1, 1), key(2, 0)), (key(1, 0), key(1, 1))] {
            for (order, first, last) in [(Order::Ascending, earlier, later), (Order::Descending, later, earlier)] {
                assert!(query(order).is_before(&first, &last) && !query(order).is_before(&last, &first), "{order:?}");
                assert!(!query(order).is_before(&first, &first), "{order:?}");
            }
        }
    }

    #[test]
    fn a_page_begins_behind_the_last_end_in_each_partition() {
        let millis = |at| UnixMillis::new(at).unwrap();
        let begin = |order, filter: &Filter, index, after: Option<EndKey>| {
            let query = EndedQuery { outcome: None, filter: filter.clone(), order };
            query.begin(&Partition { route: "r".into(), index, count: 3 }, after)
        };
        let (none, after) = (Filter::default(), Some((millis(5), 1, 9)));
        let ascending = [0, 1, 2].map(|index| begin(Order::Ascending, &none, index, after));
        assert_eq!(ascending, [EndPlace::At(millis(6)), EndPlace::Behind(9), EndPlace::At(millis(5))]);
        let descending = [0, 1, 2].map(|index| begin(Order::Descending, &none, index, after));
        assert_eq!(descending, [EndPlace::At(millis(5)), EndPlace::Behind(9), EndPlace::At(millis(4))]);
        let bounds = Filter { since: Some(millis(3)), until: Some(millis(8)), ..Filter::default() };
        for (order, bounded) in [(Order::Ascending, millis(3)), (Order::Descending, millis(7))] {
            assert_eq!(begin(order, &none, 0, None), EndPlace::Start);
            assert_eq!(begin(order, &bounds, 0, None), EndPlace::At(bounded));
        }
    }

    #[test]
    fn each_part_of_a_filter_must_match() {
        let millis = |at| UnixMillis::new(at).unwrap();
        let end = EndedMessage {
            id: crate::message::MessageId::parse("a").unwrap(),
            outcome: EndOutcome::Dead,
            attempts: 1,
            due: millis(0),
            accepted: millis(0),
            ended: millis(10),
            key: Some("k".to_owned()),
            flow: Some("f".to_owned()),
            group: Some("g".to_owned()),
            scheduled_by: None,
            cancelled_by: None,
            status: None,
            error: Some("timeout: of the sink".to_owned()),
        };
        let takes = |filter: Filter, outcome| EndedQuery { outcome, filter, order: Order::Ascending }.takes(&end);
        let some = |text: &str| Some(text.to_owned());
        let matching = [
            Filter::default(),
            Filter { since: Some(millis(10)), ..Filter::default() },
            Filter { until: Some(millis(11)), ..Filter::default() },
            Filter { contains: some("of the"), ..Filter::default() },
            Filter { flow: some("f"), ..Filter::default() },
            Filter { group: some("g"), ..Filter::default() },
            Filter { key: some("k"), ..Filter::default() },
        ];
        for filter in matching {
            assert!(takes(filter.clone(), None) && takes(filter.clone(), Some(EndOutcome::Dead)), "{filter:?}");
            assert!(!takes(filter.clone(), Some(EndOutcome::Delivered)), "{filter:?}");
            let query = |outcome| EndedQuery { outcome, filter: filter.clone(), order: Order::Ascending };
            assert_eq!(query(None).has_filter(), filter != Filter::default());
            assert!(query(Some(EndOutcome::Dead)).has_filter());
        }
        let others = [
            Filter { since: Some(millis(11)), ..Filter::default() },
            Filter { until: Some(millis(10)), ..Filter::default() },
            Filter { contains: some("Of the"), ..Filter::default() },
            Filter { flow: some(""), ..Filter::default() },
            Filter { group: some("h"), ..Filter::default() },
            Filter { key: some("K"), ..Filter::default() },
        ];
        for filter in others {
            assert!(!takes(filter.clone(), None), "{filter:?}");
        }
    }
}
