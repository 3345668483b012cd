//! Members of other programs' keys that are not moved as they are: into a partition that is closed, or because of its size or type.

use std::time::Duration;

use bytes::Bytes;
use punctual::{
    message::{MAX_METADATA_BYTES, MessageId, Metadata, NewMessage, OnConflict, RouteLimits},
    store::{
        Death, Partition, Store, StoreError,
        redis::{
            ExternalEntry, ExternalPlace,
            MoveOutcome::{self, Invalid, Left, Taken},
            PendingCapacity, RedisStore, RouteSettings,
        },
    },
    time::Due,
};

use super::{
    bench::{Bench, MAX_PAYLOAD, id, store_of},
    external::{self, entries, entry, outcomes, place},
    operation::ids,
    rows::{PREFIX, key},
    scene::{ROUTE, SOURCE, partition},
};
use crate::support::claim_request;

/// Bytes beyond which no content is kept.
const MAX_CONTENT: usize = 16 * 1024 * 1024;
const PLACES: [&str; 3] = ["take members", "take hashes", "take from a delayqueue"];

#[tokio::test]
async fn a_partition_that_is_closed_takes_nothing_and_buries_nothing() {
    let mut bench = Bench::start().await;
    let url = bench.server.url();
    let last = Partition { route: "three".into(), index: 2, count: 3 };
    bench.queue.prepare().await.expect("three partitions");
    let fewer = store_of([("three", 2)], &url, MAX_PAYLOAD);
    fewer.register().await.expect("it is empty");
    for scene in PLACES {
        external::write(&mut bench.raw, scene).await;
        let before = bench.dump().await;
        let refused = bench.store.take(&last, &place(scene), MAX_PAYLOAD, &entries(scene)).await;
        assert!(matches!(refused, Err(StoreError::Unavailable { kind: "unregistered", .. })), "{scene}: {refused:?}");
        assert_eq!(bench.dump().await, before, "{scene}");
    }
    let message = small_message(ids(&last).remove(0));
    let before = bench.dump().await;
    let refused = bench.store.bury(&last, Death::INVALID, &[(message.clone(), "broken".into())]).await;
    assert!(matches!(refused, Err(StoreError::Unavailable { kind: "unregistered", .. })), "{refused:?}");
    // The handle asks for the route to be registered first, in vain.
    let refused = bench.queue.bury("three", vec![(message, "broken".into())]).await;
    let told = refused.expect_err("closed").to_string();
    assert!(told.starts_with("redis unregistered: route `three` has 2 partitions, which replaced the 3"), "{told}");
    assert_eq!(bench.dump().await, before);
}

#[tokio::test]
async fn an_emptied_redis_gets_the_routes_before_anything_is_taken() {
    let mut bench = Bench::start().await;
    redis::cmd("FLUSHALL").exec_async(&mut bench.raw).await.expect("flushed");
    external::write(&mut bench.raw, "take members").await;
    let batch = [entry("one", "one")];
    let moved = bench.queue.take(ROUTE, "theirs", &place("take members"), &batch).await.expect("registered anew");
    assert_eq!(outcomes(moved), [Taken]);
    let known: bool =
        redis::cmd("EXISTS").arg(format!("{PREFIX}:routes")).query_async(&mut bench.raw).await.expect("an answer");
    assert!(known);

    // So is one that lost a partition only.
    assert!(bench.store.is_registered().await.expect("an answer"));
    let close = async |bench: &mut Bench| {
        redis::cmd("DEL").arg(key(&partition(), "route")).exec_async(&mut bench.raw).await.expect("deleted");
        assert!(!bench.store.is_registered().await.expect("an answer"));
    };
    close(&mut bench).await;
    redis::cmd("ZADD").arg(&[SOURCE, "1", "two"]).exec_async(&mut bench.raw).await.expect("added");
    let batch = [entry("two", "two")];
    let moved = bench.queue.take(ROUTE, "theirs", &place("take members"), &batch).await.expect("opened anew");
    assert_eq!(outcomes(moved), [Taken]);
    close(&mut bench).await;
    let message = NewMessage {
        id: id("broken"),
        due: Due::NOW,
        payload: Bytes::from_static(b"x"),
        metadata: Metadata::default(),
        on_conflict: OnConflict::Keep,
        debounce: None,
        record: None,
    };
    let left = bench.queue.bury(ROUTE, vec![(message, "broken".into())]).await.expect("opened anew");
    assert!(left.is_empty());
}

#[tokio::test]
async fn a_large_hash_is_not_read_and_stays_where_it_is() {
    let mut bench = Bench::start().await;
    bench.set("").await;
    let mut pipe = redis::pipe();
    for n in 0..2001 {
        pipe.hset("task:wide", n, "x").ignore();
        pipe.hset("task:fits", n % 2000, "é").ignore();
    }
    pipe.hset("task:long", "text", "x".repeat(MAX_PAYLOAD)).ignore();
    // Escaped, it is larger than what it takes.
    pipe.hset("task:grows", "text", "\n".repeat(MAX_PAYLOAD / 2)).ignore();
    let names = ["task:wide", "task:long", "task:grows", "task:fits"];
    for name in names {
        pipe.zadd(SOURCE, name, 1).ignore();
    }
    pipe.exec_async(&mut bench.raw).await.expect("written");
    let batch = names.map(|name| entry(name, name));
    assert_eq!(take(&bench, "take hashes", &batch).await, [Invalid, Invalid, Invalid, Left], "one was read in vain");
    assert_eq!(take(&bench, "take hashes", &batch[3..]).await, [Taken]);
    let rows = bench.rows(&partition()).await;
    assert_eq!(
        rows.errors["task:wide"].2,
        "invalid: its details have 2001 fields, at most 2000: they stay where they are"
    );
    for name in &names[..3] {
        assert!(rows.errors[*name].2.ends_with(": they stay where they are"), "{}", rows.errors[*name].2);
        assert!(rows.bodies[*name].len() < 100, "{name} was not copied");
    }
    let left: (bool, bool, bool, bool, usize) = redis::pipe()
        .exists(names[0])
        .exists(names[1])
        .exists(names[2])
        .exists(names[3])
        .zcard(SOURCE)
        .query_async(&mut bench.raw)
        .await
        .expect("an answer");
    assert_eq!(left, (true, true, true, false, 0));
}

#[tokio::test]
async fn content_beyond_sixteen_mebibytes_is_reported_and_not_copied() {
    let mut bench = Bench::start().await;
    bench.set("").await;
    let (large, fits) = (vec![b'x'; MAX_CONTENT + 1], vec![b'y'; MAX_CONTENT]);
    let mut pipe = redis::pipe();
    pipe.zadd(SOURCE, &large, 1).ignore();
    for (name, body) in [("large", &large), ("fits", &fits)] {
        pipe.zadd("dp:jobs:pending", name, 1).ignore().set(format!("dp:jobs:msg:{name}"), body).ignore();
    }
    pipe.exec_async(&mut bench.raw).await.expect("written");

    let member = ExternalEntry { member: large.into(), ..entry("", "large-member") };
    assert_eq!(take(&bench, "take members", &[member]).await, [Invalid]);
    let batch = ["large", "fits"].map(|name| entry(name, name));
    assert_eq!(take(&bench, "take from a delayqueue", &batch).await, [Invalid, Invalid]);
    let rows = bench.rows(&partition()).await;
    assert_eq!(
        rows.errors["large-member"].2,
        "invalid: the member takes 16777217 bytes, at most 16777216 can be kept: it was dropped"
    );
    assert_eq!(
        rows.errors["large"].2,
        "invalid: its body takes 16777217 bytes, at most 16777216 can be kept: it stays where it is"
    );
    assert!(rows.errors["fits"].2.starts_with("invalid: the payload takes 16777216 bytes, at most"));
    let sizes = ["large-member", "large", "fits"].map(|id| rows.bodies[id].len());
    assert!(sizes[0] < 100 && sizes[1] < 100 && sizes[2] > MAX_CONTENT, "{sizes:?}");
    let left: (usize, usize, bool, bool) = redis::pipe()
        .zcard(SOURCE)
        .zcard("dp:jobs:pending")
        .exists("dp:jobs:msg:large")
        .exists("dp:jobs:msg:fits")
        .query_async(&mut bench.raw)
        .await
        .expect("an answer");
    assert_eq!(left, (0, 0, true, false));
}

#[tokio::test]
async fn a_move_is_bounded_in_bytes_but_for_its_first_message() {
    let mut bench = Bench::start().await;
    bench.set("").await;
    let mut pipe = redis::pipe();
    for n in 0..5 {
        pipe.zadd("dp:jobs:pending", format!("n{n}"), 1).set(format!("dp:jobs:msg:n{n}"), "x".repeat(400_000));
    }
    pipe.exec_async(&mut bench.raw).await.expect("written");
    let batch: Vec<_> = (0..5).map(|n| entry(&format!("n{n}"), &format!("n{n}"))).collect();
    assert_eq!(take(&bench, "take from a delayqueue", &batch).await, [Taken, Taken, Left, Left, Left]);
}

#[tokio::test]
async fn a_body_that_is_no_string_is_a_dead_letter_and_stays() {
    let mut bench = Bench::start().await;
    bench.set("").await;
    let mut pipe = redis::pipe();
    pipe.zadd("dp:jobs:pending", "odd", 1).rpush("dp:jobs:msg:odd", "an element");
    pipe.exec_async(&mut bench.raw).await.expect("written");
    assert_eq!(take(&bench, "take from a delayqueue", &[entry("odd", "odd")]).await, [Invalid]);
    assert_eq!(bench.rows(&partition()).await.errors["odd"].2, "invalid: its body is no string, but a list");
    let left: (usize, usize) = redis::pipe()
        .llen("dp:jobs:msg:odd")
        .zcard("dp:jobs:pending")
        .query_async(&mut bench.raw)
        .await
        .expect("an answer");
    assert_eq!(left, (1, 0));
}

#[tokio::test]
async fn an_id_that_waits_anew_while_a_consumer_kept_it_too_long_is_taken() {
    const FAR: f64 = 5_000_000_000.0;
    let mut bench = Bench::start().await;
    bench.set("").await;
    let mut pipe = redis::pipe();
    pipe.zadd("dp:jobs:pending", "both", FAR).zadd("dp:jobs:unack", "both", 1).set("dp:jobs:msg:both", "a body");
    pipe.exec_async(&mut bench.raw).await.expect("written");
    let found = bench.store.external_due(&place("take from a delayqueue")).await.expect("a look");
    assert_eq!(found.members, ["both"]);
    assert_eq!(take(&bench, "take from a delayqueue", &[entry("both", "both")]).await, [Taken]);
    let now = bench.micros().await / 1000;
    let due = bench.rows(&partition()).await.pending["both"];
    assert!((now - 5000..=now).contains(&due), "{due}");
    let found = bench.store.external_due(&place("take from a delayqueue")).await.expect("a look");
    assert!(found.members.is_empty() && found.next_due.is_none(), "{found:?}");
}

/// Due at once.
fn small_message(id: MessageId) -> NewMessage {
    NewMessage {
        id,
        due: Due::NOW,
        on_conflict: OnConflict::Keep,
        metadata: Metadata::default(),
        payload: Bytes::from_static(b"x"),
        debounce: None,
        record: None,
    }
}

/// A store with one route of this name, which has one partition.
async fn limited(bench: &Bench, name: &str, limits: RouteLimits) -> (RedisStore, Partition) {
    let settings = RouteSettings { limits, ..RouteSettings::plain(name, MAX_PAYLOAD) };
    let store = RedisStore::new(bench.store.servers().clone(), PREFIX, [settings]);
    store.register().await.expect("registered");
    (store, Partition { route: name.into(), index: 0, count: 1 })
}

#[tokio::test]
async fn there_is_capacity_while_the_largest_message_fits() {
    let bench = Bench::start().await;
    // 64 bytes more for times and lengths.
    let largest = (MAX_PAYLOAD + MAX_METADATA_BYTES + 64) as u64;
    for (name, bytes, expected) in [("a", largest, PendingCapacity::Free), ("b", largest - 1, PendingCapacity::Full)] {
        let limits = RouteLimits { bytes: Some(bytes), ..RouteLimits::default() };
        let (store, partition) = limited(&bench, name, limits).await;
        assert_eq!(store.capacity(&partition).await, Ok(expected));
    }
}

#[tokio::test]
async fn messages_in_flight_count_for_the_capacity() {
    let bench = Bench::start().await;
    let limits = RouteLimits { messages: Some(10), ..RouteLimits::default() };
    let (store, partition) = limited(&bench, "a", limits).await;
    for n in 0..10 {
        assert_eq!(store.capacity(&partition).await, Ok(PendingCapacity::Free), "{n}");
        let message = small_message(id(&format!("m{n}")));
        store.schedule(&partition, &[message]).await.expect("scheduled");
        if n % 2 == 0 {
            let claimed = store.claim(&partition, claim_request(1, Duration::from_mins(1))).await.expect("claimed");
            assert_eq!(claimed.messages.len(), 1);
        }
    }
    assert_eq!(store.capacity(&partition).await, Ok(PendingCapacity::Full));
}

async fn take(bench: &Bench, scene: &str, batch: &[ExternalEntry]) -> Vec<MoveOutcome> {
    let (store, place): (&RedisStore, ExternalPlace) = (&bench.store, place(scene));
    outcomes(store.take(&partition(), &place, MAX_PAYLOAD, batch).await.expect("the server answers"))
}
