//! Ends of messages, from all partitions.

use parking_lot::Mutex;
use tokio::time::sleep;

use super::*;
use crate::message::{EndOutcome, HistoryLimits};

fn with_history() -> RouteSettings {
    RouteSettings { history: Some(HistoryLimits { period: Duration::from_hours(1), max: 100_000 }), ..route() }
}

fn query(order: Order) -> EndedQuery {
    EndedQuery { outcome: None, filter: Filter::default(), order }
}

impl Bench {
    /// Cancels a message a second, from the time 0 on.
    async fn with_ends(count: usize) -> Self {
        let bench = Self::start([with_history()]).await;
        let some = |n: usize| keyed(&format!("m{n}"), if n.is_multiple_of(5) { "k" } else { "other" });
        bench.schedule((0..count).map(some)).await;
        for name in ids("m", count) {
            bench.queue.cancel("r", &name.into()).await.unwrap();
            sleep(Duration::from_secs(1)).await;
        }
        bench
    }

    async fn ended(&self, query: &EndedQuery, limit: usize, cursor: Option<&str>) -> EndedPage {
        self.queue.ended("r", query, limit, cursor, later()).await.unwrap()
    }

    /// The ids of all pages, and the number of pages.
    async fn all_ended(&self, query: &EndedQuery, limit: usize) -> (Vec<String>, usize) {
        let (mut ids, mut pages, mut cursor) = (Vec::new(), 0, None);
        loop {
            let page = self.ended(query, limit, cursor.as_deref()).await;
            assert!(page.ends.len() <= limit && pages < 100, "{page:?}");
            ids.extend(page.ends.into_iter().map(|end| end.id.to_string()));
            (cursor, pages) = (page.cursor, pages + 1);
            if cursor.is_none() {
                return (ids, pages);
            }
        }
    }
}

fn names(numbers: impl Iterator<Item = usize>) -> Vec<String> {
    numbers.map(|n| format!("m{n}")).collect()
}

#[tokio::test(start_paused = true)]
async fn the_pages_have_each_end_once_in_order() {
    let bench = Bench::with_ends(100).await;
    for (limit, most) in [(1, 100), (7, 15), (50, 2), (100, 1), (1000, 1)] {
        assert_eq!(bench.all_ended(&query(Order::Ascending), limit).await, (names(0..100), most), "{limit}");
        assert_eq!(bench.all_ended(&query(Order::Descending), limit).await, (names((0..100).rev()), most), "{limit}");
    }
    let page = bench.ended(&query(Order::Ascending), 30, None).await;
    assert_eq!(
        (page.scanned, page.ends[0].outcome, page.ends[7].ended.get() - page.ends[0].ended.get()),
        (30, EndOutcome::Cancelled, 7000)
    );
    let wrong = bench.queue.ended("r", &query(Order::Descending), 1, page.cursor.as_deref(), later()).await;
    assert!(matches!(wrong, Err(QueueError::Invalid(_))), "{wrong:?}");
}

#[tokio::test(start_paused = true)]
async fn a_filter_takes_what_matches_within_its_times() {
    let bench = Bench::with_ends(100).await;
    let filter = Filter { since: Some(at(20_000)), until: Some(at(60_000)), ..key("k") };
    let matching: Vec<usize> = (20..60).step_by(5).collect();
    for limit in [3, 8, 1000] {
        let mut query = EndedQuery { filter: filter.clone(), ..query(Order::Ascending) };
        assert_eq!(bench.all_ended(&query, limit).await.0, names(matching.iter().copied()), "{limit}");
        query.order = Order::Descending;
        assert_eq!(bench.all_ended(&query, limit).await.0, names(matching.iter().copied().rev()), "{limit}");
    }
    for order in [Order::Ascending, Order::Descending] {
        let bounded = EndedQuery { filter: filter.clone(), ..query(order) };
        let page = bench.ended(&bounded, 1000, None).await;
        assert_eq!((page.ends.len(), page.scanned, page.cursor), (8, 40, None), "{order:?}");
    }
    for (outcome, count) in [(EndOutcome::Cancelled, 100), (EndOutcome::Delivered, 0)] {
        let query = EndedQuery { outcome: Some(outcome), ..query(Order::Ascending) };
        assert_eq!(bench.all_ended(&query, 1000).await.0.len(), count);
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_of_a_filter_can_end_at_its_deadline() {
    let bench = Bench::start([RouteSettings { partitions: 1, ..with_history() }]).await;
    // More than a call reads for a filter.
    let count = 2500;
    bench.schedule(messages("m", count)).await;
    for name in ids("m", count) {
        bench.queue.cancel("r", &name.into()).await.unwrap();
    }
    let none = EndedQuery { filter: key("k"), ..query(Order::Ascending) };
    let page = bench.queue.ended("r", &none, 10, None, Instant::now()).await.unwrap();
    assert!(page.ends.is_empty() && page.cursor.is_some() && (1000..2000).contains(&page.scanned), "{}", page.scanned);
    let rest = bench.ended(&none, 10, page.cursor.as_deref()).await;
    assert_eq!((rest.ends.len(), page.scanned + rest.scanned, rest.cursor), (0, count as u64, None));
    // Without a filter a page is full in any case.
    let page = bench.queue.ended("r", &query(Order::Ascending), 1000, None, Instant::now()).await.unwrap();
    assert_eq!((page.ends.len(), page.cursor.is_some()), (1000, true));
}

#[tokio::test(start_paused = true)]
async fn a_route_without_a_history_says_so() {
    let bench = Bench::plain().await;
    let error = bench.queue.ended("r", &query(Order::Ascending), 10, None, later()).await.unwrap_err();
    assert_eq!(error, QueueError::NoHistory("r".to_owned()));
    let error = bench.queue.ended("x", &query(Order::Ascending), 10, None, later()).await.unwrap_err();
    assert_eq!(error, QueueError::UnknownRoute("x".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn bounds_are_exact_to_the_millisecond() {
    let bench = Bench::with_ends(100).await;
    assert_eq!(bench.queue.stats("r").await.unwrap().history, Some(true));
    let all = bench.ended(&query(Order::Ascending), 100, None).await.ends;
    let filter = Filter { since: Some(all[20].ended), until: Some(all[60].ended), ..Filter::default() };
    for limit in [7, 1000] {
        let mut query = EndedQuery { filter: filter.clone(), ..query(Order::Ascending) };
        assert_eq!(bench.all_ended(&query, limit).await.0, names(20..60), "{limit}");
        query.order = Order::Descending;
        assert_eq!(bench.all_ended(&query, limit).await.0, names((20..60).rev()), "{limit}");
    }
}

/// Cancels messages of a route with one partition.
async fn cancel(bench: &Bench, prefix: &str, count: usize) {
    bench.schedule(messages(prefix, count)).await;
    for name in ids(prefix, count) {
        bench.queue.cancel("r", &name.into()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn ends_that_are_too_old_are_passed_over_with_few_reads() {
    let bench = Bench::start([RouteSettings { partitions: 1, ..with_history() }]).await;
    let read = Arc::new(Mutex::new(Vec::new()));
    let blocks = read.clone();
    bench.redis.server.reply_with(move |command| {
        if let [_, _, _, _, order, _, count] = command
            && order == "asc"
        {
            blocks.lock().push(count.parse::<u32>().unwrap());
        }
        None
    });
    sleep(Duration::from_secs(1)).await;
    cancel(&bench, "old", 40).await;
    sleep(Duration::from_mins(50)).await;
    cancel(&bench, "m", 30).await;
    sleep(Duration::from_mins(15)).await;
    // A block has 16 ends. The first three have eight that are young enough.
    let page = bench.ended(&query(Order::Ascending), 20, None).await;
    assert_eq!(page.ends.iter().map(|end| end.id.to_string()).collect::<Vec<_>>(), names(0..20));
    assert_eq!(std::mem::take(&mut *read.lock()), [3, 2]);

    // All that one call reads is too old, and later than the last time of the filter.
    cancel(&bench, "n", 1100).await;
    sleep(Duration::from_hours(2)).await;
    let early = EndedQuery { filter: Filter { until: Some(at(1)), ..Filter::default() }, ..query(Order::Ascending) };
    let page = bench.ended(&early, 20, None).await;
    assert_eq!((page.ends.len(), page.cursor, read.lock().len()), (0, None, 1));
}
