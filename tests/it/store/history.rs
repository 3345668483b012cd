//! The history of a route: lists, lookups, bounds, and its end.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use punctual::{
    message::{EndOutcome, EndRecord, EndedMessage, HistoryLimits, NewMessage, OnConflict},
    queue::{EndedQuery, Purge, Queue, QueueError},
    store::{
        ClaimEnd, Filter, Found, Lease, Order, Partition, Settlement, Store,
        redis::{EndPlace, RedisStore, RouteSettings},
    },
    time::{Due, UnixMillis},
};

use super::{
    arguments::claim,
    bench::{Bench, MAX_PAYLOAD, id, later},
    content::FAR_AHEAD,
    operation::FAR,
    rows::{PREFIX, key},
    scene::{NEW, SCENES},
};

const ROUTE: &str = "kept";

fn settings(partitions: u16, history: Option<(Duration, u32)>) -> RouteSettings {
    let history = history.map(|(period, max)| HistoryLimits { period, max });
    RouteSettings { partitions, history, ..RouteSettings::plain(ROUTE, MAX_PAYLOAD) }
}

async fn store(bench: &Bench, partitions: u16, history: Option<(Duration, u32)>) -> (Arc<RedisStore>, Queue) {
    let store = Arc::new(RedisStore::new(bench.store.servers().clone(), PREFIX, [settings(partitions, history)]));
    store.register().await.expect("registered");
    (store.clone(), Queue::new(store, &BTreeMap::new(), false))
}

fn message(text: &str, due: Due) -> NewMessage {
    let (payload, metadata) = ("payload".into(), punctual::message::Metadata::default());
    NewMessage { id: id(text), due, payload, metadata, on_conflict: OnConflict::Keep, debounce: None, record: None }
}

/// Accepts messages and delivers them.
async fn deliver(store: &RedisStore, queue: &Queue, texts: impl IntoIterator<Item = String>) {
    let batch = texts.into_iter().map(|text| message(&text, Due::NOW)).collect();
    queue.schedule(ROUTE, "api", batch).await.expect("accepted");
    for partition in all(store) {
        let bench_claim = punctual::store::ClaimRequest { limit: 1000, ..claim(NEW, next(store, &partition).await) };
        let taken = store.claim(&partition, bench_claim).await.expect("claimed");
        let settlement = |one: &punctual::store::Claimed| Settlement {
            record: Some(EndRecord::of(&one.body, one.failures).with_status(Some(204))),
            ..Settlement::new(Lease { id: one.id.clone(), token: taken.token, bytes: one.body.len() }, ClaimEnd::Ack)
        };
        store.settle(&partition, &taken.messages.iter().map(settlement).collect::<Vec<_>>()).await.expect("settled");
    }
}

/// Larger than the numbers of all earlier claims.
async fn next(store: &RedisStore, partition: &Partition) -> u64 {
    store.stats(partition).await.expect("an answer").now
}

fn all(store: &RedisStore) -> Vec<Partition> {
    let settings = store.routes().next().expect("one route");
    Partition::all(&settings.name, settings.partitions).collect()
}

async fn listed(queue: &Queue, limit: usize) -> Vec<EndedMessage> {
    filtered(queue, &latest(), limit).await
}

/// Without a filter, the latest first.
fn latest() -> EndedQuery {
    EndedQuery { outcome: None, filter: Filter::default(), order: Order::Descending }
}

async fn filtered(queue: &Queue, query: &EndedQuery, limit: usize) -> Vec<EndedMessage> {
    let (mut ends, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let page = queue.ended(ROUTE, query, limit, cursor.as_deref(), later()).await.expect("a page");
        assert!(page.ends.len() == limit || page.cursor.is_none(), "a page is full unless it is the last one");
        assert!(page.scanned >= page.ends.len() as u64);
        ends.extend(page.ends);
        match page.cursor {
            Some(next) => cursor = Some(next),
            None => return ends,
        }
    }
}

#[tokio::test]
async fn ends_of_all_partitions_are_listed_once_each_the_latest_first() {
    let bench = Bench::start().await;
    let (store, queue) = store(&bench, 3, Some((Duration::from_hours(1), 1000))).await;
    for round in 0..4 {
        deliver(&store, &queue, (0..25).map(|n| format!("r{round}-{n}"))).await;
    }
    for limit in [1, 7, 33, 1000] {
        let ends = listed(&queue, limit).await;
        assert_eq!(ends.len(), 100, "pages of {limit}");
        assert!(ends.windows(2).all(|pair| pair[0].ended >= pair[1].ended), "in order");
        let mut ids: Vec<_> = ends.iter().map(|end| end.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 100, "each once");
        assert!(ends.iter().all(|end| end.outcome == EndOutcome::Delivered && end.status == Some(204)));
    }
    // A place is a time or an end: that of this time is listed, the end itself is not.
    let one = &listed(&queue, 1000).await[50];
    let partition = &all(&store)[usize::from(one.id.partition(3))];
    for order in [Order::Ascending, Order::Descending] {
        let from = store.ends(partition, order, EndPlace::At(one.ended), 1000).await.expect("an answer").ends;
        let (number, _) = from.iter().find(|(_, end)| end.id == one.id).expect("it ended then");
        let behind = store.ends(partition, order, EndPlace::Behind(*number), 1000).await.expect("an answer").ends;
        assert!(behind.iter().all(|(other, _)| if order == Order::Ascending {
            other > number
        } else {
            other < number
        }));
        assert!(behind.len() < from.len() && !behind.is_empty());
    }
    let at = EndPlace::At(UnixMillis::new(1000).expect("a time"));
    let long_ago = store.ends(partition, Order::Descending, at, 10).await;
    assert!(long_ago.expect("an answer").ends.is_empty());
    assert!(queue.ended(ROUTE, &latest(), 1, Some("x"), later()).await.is_err());
}

#[tokio::test]
async fn ends_are_filtered_by_time_and_outcome_in_both_orders() {
    let mut bench = Bench::start().await;
    let (store, queue) = store(&bench, 3, Some((Duration::from_hours(1), 10_000))).await;
    for round in 0..6 {
        deliver(&store, &queue, (0..100).map(|n| format!("r{round}-{n}"))).await;
        bench.pass_by(3).await;
    }
    queue.schedule(ROUTE, "api", vec![message("gone", Due::After(FAR))]).await.expect("accepted");
    let purge = Purge { ids: None, before: None, limit: 10, dry_run: false, by: Some("ops") };
    queue.purge_pending(ROUTE, purge, later(), &mut punctual::queue::Bulk::default()).await.expect("cancelled");

    let all = listed(&queue, 1000).await;
    let mut reversed = all.clone();
    reversed.reverse();
    let times: Vec<_> = all.iter().map(|end| end.ended).collect();
    for order in [Order::Ascending, Order::Descending] {
        let ordered = if order == Order::Ascending { &reversed } else { &all };
        for (since, until) in
            [(None, None), (Some(times[400]), None), (None, Some(times[200])), (Some(times[500]), Some(times[50]))]
        {
            let filter = Filter { since, until, ..Filter::default() };
            let query = EndedQuery { outcome: None, filter, order };
            let is_inside = |end: &&EndedMessage| {
                since.is_none_or(|since| end.ended >= since) && until.is_none_or(|until| end.ended < until)
            };
            let wanted: Vec<_> = ordered.iter().filter(is_inside).cloned().collect();
            assert!(!wanted.is_empty());
            for limit in [7, 1000] {
                assert_eq!(filtered(&queue, &query, limit).await, wanted, "{query:?}, pages of {limit}");
            }
        }
        let cancelled = EndedQuery { outcome: Some(EndOutcome::Cancelled), filter: Filter::default(), order };
        let found = filtered(&queue, &cancelled, 1).await;
        assert_eq!(found.iter().map(|end| end.id.as_str()).collect::<Vec<_>>(), ["gone"]);
    }
    // After its time a page ends where it is, and the next one goes on there.
    let rare = EndedQuery { outcome: Some(EndOutcome::Cancelled), order: Order::Ascending, ..latest() };
    let (mut cursor, mut scanned, mut found) = (None::<String>, 0, 0);
    loop {
        let now = tokio::time::Instant::now();
        let page = queue.ended(ROUTE, &rare, 10, cursor.as_deref(), now).await.expect("a page");
        (scanned, found, cursor) = (scanned + page.scanned, found + page.ends.len(), page.cursor);
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!((scanned, found), (601, 1));
}

#[tokio::test]
async fn an_id_shows_its_last_ends_with_who_cancelled_it() {
    let bench = Bench::start().await;
    let (store, queue) = store(&bench, 1, Some((Duration::from_hours(1), 1000))).await;
    for _ in 0..7 {
        deliver(&store, &queue, ["a".to_owned()]).await;
    }
    queue.schedule(ROUTE, "api", vec![message("a", Due::After(FAR))]).await.expect("accepted");
    let Some(Found::Live { ends, .. }) = queue.get(ROUTE, &id("a")).await.expect("an answer") else {
        panic!("it is pending");
    };
    assert_eq!(ends.len(), 5);
    let purge = Purge { ids: None, before: None, limit: 10, dry_run: false, by: Some("ops") };
    queue.purge_pending(ROUTE, purge, later(), &mut punctual::queue::Bulk::default()).await.expect("cancelled");
    let Some(Found::Ended { remembered: None, ends }) = queue.get(ROUTE, &id("a")).await.expect("an answer") else {
        panic!("it has ended");
    };
    let outcomes: Vec<_> = ends.iter().map(|end| (end.outcome, end.cancelled_by.as_deref())).collect();
    let delivered = (EndOutcome::Delivered, None);
    assert_eq!(outcomes, [(EndOutcome::Cancelled, Some("ops")), delivered, delivered, delivered, delivered]);
    assert_eq!(ends[0].due.get() - ends[0].accepted.get(), FAR);
    assert!(queue.get(ROUTE, &id("b")).await.expect("an answer").is_none());
    // Its ends are also found behind those of many others.
    for n in 0..3 {
        deliver(&store, &queue, ["far".to_owned()]).await;
        deliver(&store, &queue, (0..40).map(|other| format!("other-{n}-{other}"))).await;
    }
    let Some(Found::Ended { ends, .. }) = queue.get(ROUTE, &id("far")).await.expect("an answer") else {
        panic!("it has ended");
    };
    assert_eq!(ends.len(), 3);
}

#[tokio::test]
async fn a_history_is_bounded_by_number_and_by_age() {
    let mut bench = Bench::start().await;
    let (store, queue) = self::store(&bench, 1, Some((Duration::from_hours(1), 40))).await;
    let partition = all(&store).remove(0);
    for round in 0..5 {
        deliver(&store, &queue, (0..30).map(|n| format!("r{round}-{n}"))).await;
        let kept = bench.rows(&partition).await.history.ends.len();
        assert!(kept <= 40 + 15 && (round < 2 || kept >= 40), "{kept} are kept");
    }
    assert!(queue.get(ROUTE, &id("r0-0")).await.expect("an answer").is_none());
    // With smaller limits, each call deletes some of the old ones.
    let (lower, _) = self::store(&bench, 1, Some((Duration::from_hours(1), 1))).await;
    while lower.trim_history(&partition).await.expect("an answer").1 {}
    let kept = bench.rows(&partition).await.history.ends.len();
    assert!(kept <= 16, "{kept} are kept");
    // Too old ones are not shown any more, and are deleted although nothing ends.
    let (short, queue) = self::store(&bench, 1, Some((Duration::from_millis(1), 40))).await;
    bench.pass_by(5).await;
    assert_eq!(listed(&queue, 10).await, []);
    assert_eq!(short.trim_history(&partition).await, Ok((0, false)));
    assert_eq!(bench.rows(&partition).await.history, punctual::store::memory::MemoryHistory::default());
}

#[tokio::test]
async fn a_block_of_old_ends_is_deleted_once_the_next_block_is_old_too() {
    const BLOCK: usize = 16;
    let mut bench = Bench::start().await;
    let (store, queue) = self::store(&bench, 1, Some((Duration::from_millis(1), 1000))).await;
    let partition = all(&store).remove(0);
    for round in 0..5 {
        deliver(&store, &queue, (0..BLOCK).map(|n| format!("r{round}-{n}"))).await;
        bench.pass_by(5).await;
        let kept = bench.rows(&partition).await.history.ends.len();
        assert_eq!(kept, BLOCK * (round + 1).min(2));
    }
}

#[tokio::test]
async fn a_route_without_a_history_has_its_keys_deleted() {
    let mut bench = Bench::start().await;
    let (store, queue) = self::store(&bench, 1, Some((Duration::from_hours(1), 40))).await;
    deliver(&store, &queue, ["a".to_owned()]).await;
    let partition = all(&store).remove(0);
    let (without, queue) = self::store(&bench, 1, None).await;
    assert_eq!(without.trim_history(&partition).await, Ok((0, false)));
    let keys = [key(&partition, "history"), key(&partition, "ended")];
    let left: u64 = redis::cmd("EXISTS").arg(&keys).query_async(&mut bench.raw).await.expect("an answer");
    assert_eq!(left, 0);
    assert_eq!(queue.ended(ROUTE, &latest(), 1, None, later()).await.err(), Some(QueueError::NoHistory(ROUTE.into())));
}

#[tokio::test]
async fn a_move_to_other_partitions_ends_with_the_deletion_of_the_history() {
    let mut bench = Bench::start().await;
    let (store, queue) = self::store(&bench, 1, Some((Duration::from_hours(1), 40))).await;
    deliver(&store, &queue, ["a".to_owned()]).await;
    queue.schedule(ROUTE, "api", vec![message("b", Due::After(FAR))]).await.expect("accepted");
    let old = all(&store).remove(0);
    let (moved, queue) = self::store(&bench, 2, Some((Duration::from_hours(1), 40))).await;
    assert!(matches!(queue.get(ROUTE, &id("a")).await, Ok(Some(Found::Ended { .. }))), "during the move");
    while !moved.move_some(ROUTE).await.expect("moved").is_done {}
    assert!(queue.get(ROUTE, &id("a")).await.expect("an answer").is_none());
    let keys = [key(&old, "history"), key(&old, "ended")];
    let left: u64 = redis::cmd("EXISTS").arg(&keys).query_async(&mut bench.raw).await.expect("an answer");
    assert_eq!(left, 0);
}

#[tokio::test]
async fn a_large_purge_reads_a_bounded_part_of_the_bodies() {
    let bench = Bench::start().await;
    let (_, queue) = self::store(&bench, 1, Some((Duration::from_hours(1), 40))).await;
    let large = |n: usize| {
        let mut message = message(&format!("large-{n}"), Due::After(FAR));
        message.payload = vec![u8::try_from(n).expect("few"); MAX_PAYLOAD].into();
        // Not compressible.
        message.payload =
            message.payload.iter().enumerate().map(|(i, b)| b ^ u8::try_from(i * i % 251).expect("small")).collect();
        message.metadata.key = Some("k".into());
        message
    };
    for n in 0..12 {
        queue.schedule(ROUTE, "api", vec![large(n)]).await.expect("accepted");
    }
    let purge = Purge { ids: None, before: None, limit: 100, dry_run: false, by: None };
    queue.purge_pending(ROUTE, purge, later(), &mut punctual::queue::Bulk::default()).await.expect("cancelled");
    let ends = listed(&queue, 100).await;
    assert_eq!(ends.len(), 12);
    assert!(ends.iter().all(|end| end.due.get() > FAR), "the due time of each is kept");
}

#[tokio::test]
async fn a_purge_reads_its_first_body_at_any_size_and_no_more_than_eight_mebibytes_in_all() {
    let mut bench = Bench::start().await;
    let (store, queue) = self::store(&bench, 1, Some((Duration::from_hours(1), 40))).await;
    let partition = all(&store).remove(0);
    let metadata = br#"{"key":"k"}"#;
    let times = [FAR.to_be_bytes(), FAR.to_be_bytes()].concat();
    let head = [&[1][..], &times, &[0, 0, 0, 11], metadata].concat();
    let mebibyte = 1024 * 1024;
    // The sizes of the bodies, and which of them are read.
    for (n, (sizes, read)) in [
        (&[9 * mebibyte, 100][..], &[true, false][..]),
        (&[5 * mebibyte, 3 * mebibyte, 100], &[true, true, false]),
        (&[5 * mebibyte, 3 * mebibyte + 1, 100], &[true, false, true]),
    ]
    .into_iter()
    .enumerate()
    {
        let ids: Vec<_> = (0..sizes.len()).map(|i| id(&format!("m{n}-{i}"))).collect();
        let mut pipe = redis::pipe();
        for (id, size) in ids.iter().zip(sizes) {
            let body = [&head[..], &vec![b'x'; size - head.len()]].concat();
            pipe.zadd(key(&partition, "pending"), id.as_str(), FAR_AHEAD).hset(
                key(&partition, "messages"),
                id.as_str(),
                body,
            );
        }
        pipe.exec_async(&mut bench.raw).await.expect("written");
        store.purge_pending(&partition, Some(&ids), 9, false, None).await.expect("cancelled");
        let mut ends = listed(&queue, 100).await;
        ends.retain(|end| ids.contains(&end.id));
        ends.sort_by(|one, other| one.id.cmp(&other.id));
        let has_key = ends.iter().map(|end| end.key.is_some()).collect::<Vec<_>>();
        assert_eq!(has_key, read, "{sizes:?}: {ends:?}");
    }
}

/// A command on the keys of a history that is not free.
const COSTS: &str = "(string.find(key, '}:history$') or string.find(key, '}:ended$')) and command ~= 'UNLINK'";

#[tokio::test]
async fn without_a_history_no_script_runs_a_command_for_it() {
    let mut bench = Bench::start().await;
    bench.store = Arc::new(RedisStore::new(
        bench.store.servers().clone(),
        PREFIX,
        [RouteSettings { name: super::scene::ROUTE.into(), ..settings(1, None) }],
    ));
    for (scene, script) in SCENES.iter().filter(|(scene, script)| {
        // `produce` reads the settings that the scene wrote; other stores have a history.
        ["settle", "claim", "cancel", "recover", "purge_pending", "transfer", "bury", "get"].contains(script)
            && !scene.contains(", ")
    }) {
        let seen = bench.watch((scene, script), COSTS).await;
        assert_eq!(seen, None, "{scene}");
    }
}
