//! A route that is moved to another number of partitions.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::join_all;
use punctual::{
    message::{Metadata, NewMessage, OnConflict, State},
    queue::{Bulk, GroupAction, GroupWork, Purge, Queue},
    store::{
        Cancelled, ClaimEnd, DeadAction, DeadWork, Expiry, Filter, Found, Lease, Partition, PendingAction, PendingWork,
        Rescheduled, ScheduleStatus, Selection, Settled, Settlement, Spread, Store, StoreError,
        memory::MemoryPartition,
        redis::{RedisStore, RegistrationError},
    },
    time::Due,
};

use tokio::time::sleep;

use super::{
    bench::{Bench, MAX_PAYLOAD, id, later, store_of},
    rows::{key, read},
    scene::{ROUTE, partition},
};
use crate::support::claim_request;

fn message(text: &str, on_conflict: OnConflict) -> NewMessage {
    NewMessage {
        id: id(text),
        due: Due::After(3_600_000),
        payload: Bytes::from_static(b"x"),
        metadata: Metadata::default(),
        on_conflict,
        debounce: None,
        record: None,
    }
}

/// Moves until nothing remains.
async fn move_all(store: &RedisStore) -> u64 {
    let mut count = 0;
    loop {
        let moved = store.move_some(ROUTE).await.expect("the server answers");
        count += moved.count;
        if moved.is_done {
            return count;
        }
        if moved.count == 0 {
            // Another one moved what this one saw, or has it in flight.
            sleep(Duration::from_millis(10)).await;
        }
    }
}

/// The content of all `partitions` together, without the claims.
async fn held(bench: &mut Bench, partitions: u16) -> MemoryPartition {
    let mut all = MemoryPartition::default();
    for partition in Partition::all(&ROUTE.into(), partitions) {
        let rows = read(&mut bench.raw, &partition).await;
        assert_eq!(rows.bytes, rows.held_bytes(), "{partition}");
        all.bytes += rows.bytes;
        for (all, rows) in
            [(&mut all.pending, &rows.pending), (&mut all.unack, &rows.unack), (&mut all.dead, &rows.dead)]
        {
            for (id, score) in rows.iter() {
                assert_eq!(id_partition(id, partitions), partition.index);
                all.insert(id, score);
            }
        }
        all.bodies.extend(rows.bodies);
        all.attempts.extend(rows.attempts);
        all.errors.extend(rows.errors);
        all.remembered.extend(rows.remembered);
        all.records.extend(rows.records);
    }
    all
}

fn id_partition(text: &str, partitions: u16) -> u16 {
    id(text).partition(partitions)
}

/// A producer looks up the number, and calls produce.lua with a key of a new partition.
#[tokio::test]
async fn the_new_partitions_are_open_as_soon_as_their_number_is_known() {
    let mut bench = Bench::start().await;
    bench.set("begin to move").await;
    let call = bench.record("begin to move", "repartition").await;
    bench.set("begin to move").await;
    bench.run_failing(&call, 0).await.expect("the move begins");
    for partition in Partition::all(&ROUTE.into(), 2) {
        let mut command = redis::cmd("GET");
        let open: Option<String> =
            command.arg(key(&partition, "route")).query_async(&mut bench.raw).await.expect("the server answers");
        let begin = format!("1m 2 {} {MAX_PAYLOAD} ", partition.index);
        assert!(open.as_ref().is_some_and(|text| text.starts_with(&begin)), "{partition}: {open:?}");
    }
}

#[tokio::test]
async fn a_route_moves_with_all_that_it_holds_and_back() {
    let mut bench = Bench::start().await;
    bench.set("get").await;
    let url = bench.server.url();
    // No lease ends, and nothing is in flight, but for what the next test has.
    for text in ["held", "held-failed", "held-crashed", "held-both", "held-anew", "expired", "expired-often"] {
        let mut pipe = redis::pipe();
        pipe.zrem(key(&partition(), "unack"), text).hdel(key(&partition(), "messages"), text);
        pipe.hdel(key(&partition(), "attempts"), text).hdel(key(&partition(), "errors"), text);
        pipe.hdel(key(&partition(), "records"), text);
        pipe.exec_async(&mut bench.raw).await.expect("the server answers");
    }
    // The route forwards nothing.
    redis::cmd("DEL").arg(key(&partition(), "outbox")).exec_async(&mut bench.raw).await.expect("the server answers");
    let rows = bench.rows(&partition()).await;
    let () = redis::cmd("SET")
        .arg(key(&partition(), "bytes"))
        .arg(rows.held_bytes())
        .query_async(&mut bench.raw)
        .await
        .expect("the server answers");
    let before = held(&mut bench, 1).await;
    for partitions in [2, 256, 3, 1] {
        let store = store_of([(ROUTE, partitions)], &url, MAX_PAYLOAD);
        if partitions == 1 {
            let refused = store.register().await.expect_err("it was replaced");
            assert!(matches!(refused, RegistrationError::Outdated { .. }), "{refused}");
            store.choose_partitions(ROUTE, partitions).await.expect("on purpose");
        }
        store.register().await.expect("it begins");
        assert!(store.is_registered().await.expect("an answer"));
        let moved = move_all(&store).await;
        println!("{moved} ids moved to {partitions} partitions");
        assert!(store.is_registered().await.expect("an answer"), "the move is over");
        assert_eq!(held(&mut bench, partitions).await, before);
        let keys: Vec<String> =
            redis::cmd("KEYS").arg("{p:one:*}:[^r]*").query_async(&mut bench.raw).await.expect("the server answers");
        let stays = |key: &&String| !key.contains(&format!("/{partitions}}}"));
        assert_eq!(keys.iter().filter(stays).collect::<Vec<_>>(), Vec::<&String>::new());
    }
}

/// A message without a payload, which is below any limit.
async fn production_is_refused(bench: &mut Bench, place: &Partition, text: &str) {
    let production = NewMessage { payload: Bytes::new(), ..message(text, OnConflict::Keep) };
    let refused = bench.try_produce(place, &production).await.expect_err("it is moved");
    assert!(refused.detail().is_some_and(|text| text.starts_with("wrong-partition ")), "{refused}");
}

#[tokio::test]
async fn while_a_route_is_moved_each_call_finds_each_id_and_no_id_is_live_twice() {
    let mut bench = Bench::start().await;
    bench.set("get").await;
    let old = bench.store.clone();
    let new = Arc::new(store_of([(ROUTE, 2)], &bench.server.url(), MAX_PAYLOAD));
    new.register().await.expect("it begins");
    let queue = Queue::new(new.clone(), &BTreeMap::new(), false);

    // The former partition is closed to those that know of it only.
    let closed =
        |error: StoreError| assert!(matches!(error, StoreError::Unavailable { kind: "unregistered", .. }), "{error}");
    let at = partition();
    closed(old.schedule(&at, &[message("later", OnConflict::Keep)]).await.expect_err("closed"));
    closed(old.cancel(&at, &id("later").into()).await.expect_err("closed"));
    closed(old.reschedule(&at, &id("later"), Some(Due::NOW)).await.expect_err("closed"));
    closed(old.get(&at, &id("later")).await.expect_err("closed"));
    closed(old.pause(&at, "ops", "").await.expect_err("closed"));
    // Both ids belong to the former partition, one also to the new one with its index.
    let same_index = (0..100).map(|n| format!("p{n}")).find(|text| id(text).partition(2) == at.index).expect("a half");
    for text in ["later", &same_index] {
        production_is_refused(&mut bench, &at, text).await;
        production_is_refused(&mut bench, &at.among(2, &id(text)), text).await;
    }

    for (text, state) in [("later", State::Pending), ("held", State::Unack), ("dead", State::Dead)] {
        let Some(Found::Live { snapshot, .. }) = queue.get(ROUTE, &id(text)).await.expect("an answer") else {
            panic!("`{text}` is not found");
        };
        assert_eq!(snapshot.state, state);
    }
    assert!(matches!(queue.get(ROUTE, &id("ended")).await.expect("an answer"), Some(Found::Ended { .. })));
    let stats = queue.stats(ROUTE).await.expect("numbers");
    assert_eq!((stats.pending, stats.unack, stats.dead, stats.moving.expect("it moves").left), (5, 7, 3, 15));

    let batch = ["later", "held", "fresh", "dead", "failed"];
    let scheduled = |on_conflict| batch.map(|text| message(text, on_conflict)).to_vec();
    let statuses = async |on_conflict| -> Vec<ScheduleStatus> {
        let answers = queue.schedule(ROUTE, "api", scheduled(on_conflict)).await.expect("answers");
        answers.into_iter().map(|one| one.status).collect()
    };
    let exists = ScheduleStatus::Exists;
    let kept = [State::Pending, State::Unack, State::Dead, State::Dead, State::Pending].map(exists);
    let mut kept = kept.to_vec();
    kept[2] = ScheduleStatus::Scheduled;
    assert_eq!(statuses(OnConflict::Keep).await, kept);
    let replaced = [
        ScheduleStatus::Replaced,
        ScheduleStatus::InFlight,
        ScheduleStatus::Replaced,
        ScheduleStatus::Revived,
        ScheduleStatus::Replaced,
    ];
    assert_eq!(statuses(OnConflict::Replace).await, replaced);
    assert_eq!(queue.reschedule(ROUTE, &id("held-failed"), Some(Due::NOW)).await, Ok(Rescheduled::InFlight));
    assert!(matches!(queue.reschedule(ROUTE, &id("due"), Some(Due::After(1000))).await, Ok(Rescheduled::Done(_))));
    assert_eq!(queue.cancel(ROUTE, &id("held").into()).await, Ok(Cancelled::InFlight));
    assert_eq!(queue.cancel(ROUTE, &id("suspect").into()).await, Ok(Cancelled::Cancelled));
    let mut bulk = Bulk::default();
    let ids = Selection::Ids { ids: vec![id("dead-crashed")], until: None };
    let work = DeadWork {
        action: DeadAction::Redrive(Expiry::Drop),
        spread: Spread::default(),
        selection: &ids,
        limit: 10,
        dry_run: false,
        deadline: later(),
    };
    queue.act_on_dead(ROUTE, &work, None, &mut bulk).await.expect("done");
    assert_eq!(bulk.count, 1);
    let mut purged = Bulk::default();
    queue
        .purge_pending(
            ROUTE,
            Purge { ids: Some(&[id("failed")]), before: None, limit: 10, dry_run: false, by: None },
            later(),
            &mut purged,
        )
        .await
        .expect("done");
    assert_eq!(purged.count, 1);

    // A message in flight ends where it was claimed. One that its instance left there is recovered, then moved.
    let held_until = super::content::HELD_UNTIL - 1;
    let lease = |text: &str| Lease { id: id(text), token: punctual::store::Token(held_until), bytes: 0 };
    let ends =
        [("held", ClaimEnd::Ack), ("held-failed", ClaimEnd::Release { at: punctual::time::UnixMillis::default() })];
    let settlements = ends.map(|(text, end)| Settlement::new(lease(text), end));
    assert_eq!(old.settle(&at, &settlements).await, Ok(vec![Settled::Done; 2]));
    assert_eq!(new.recover(&at).await.expect("recovered").expired, 2);
    let mut steps = 0;
    while new.move_some(ROUTE).await.expect("an answer").count > 0 {
        steps += 1;
    }
    println!("moved in {steps} steps");
    let moving = queue.stats(ROUTE).await.expect("numbers").moving.expect("three are in flight");
    assert_eq!(moving.left, 3);
    let rest = ["held-crashed", "held-both", "held-anew"].map(|text| Settlement::new(lease(text), ClaimEnd::Ack));
    assert_eq!(old.settle(&at, &rest).await, Ok(vec![Settled::Done; 3]));
    move_all(&new).await;
    assert_eq!(queue.stats(ROUTE).await.expect("numbers").moving, None);
    assert_eq!(held(&mut bench, 1).await, MemoryPartition::default());

    production_is_refused(&mut bench, &at, &same_index).await;
    // Open for all that know the number.
    let place = at.among(2, &id("later"));
    let (found, _) = bench.try_produce(&place, &message("later", OnConflict::Keep)).await.expect("taken");
    assert_eq!(found, "exists");
}

#[tokio::test]
async fn an_instance_with_the_former_number_gives_no_answer_about_messages_that_were_moved() {
    let bench = Bench::start().await;
    let url = bench.server.url();
    let queue = |store: RedisStore| Queue::new(Arc::new(store), &BTreeMap::new(), false);
    let old = queue(store_of([(ROUTE, 1), ("to", 1)], &url, MAX_PAYLOAD));
    old.prepare().await.expect("it is known");
    let metadata = Metadata { group: Some("g".into()), ..Metadata::default() };
    let grouped = NewMessage { metadata, ..message("one", OnConflict::Keep) };
    old.schedule(ROUTE, "api", vec![grouped]).await.expect("scheduled");
    let store = store_of([(ROUTE, 2)], &url, MAX_PAYLOAD);
    store.register().await.expect("it begins");
    assert_eq!(move_all(&store).await, 1);

    let mut work = GroupWork::default();
    let cancelled = old.change_group(ROUTE, "g", GroupAction::Cancel, None, later(), &mut work).await;
    let all = Selection::Where(Filter::default());
    let pending = PendingWork {
        action: PendingAction::Cancel,
        selection: &all,
        before: None,
        limit: 10,
        dry_run: false,
        deadline: later(),
        by: None,
    };
    let (mut bulk, mut refused) = (Bulk::default(), Vec::new());
    let purged = old.change_pending(ROUTE, &pending, None, &mut bulk, &mut refused).await;
    let deletion = DeadWork {
        action: DeadAction::Purge,
        spread: Spread::default(),
        selection: &all,
        limit: 10,
        dry_run: false,
        deadline: later(),
    };
    let dead = old.act_on_dead(ROUTE, &deletion, None, &mut bulk).await;
    let redrive = DeadWork { action: DeadAction::Redrive(Expiry::Drop), ..deletion };
    let redriven = old.redrive_to(ROUTE, "to", &redrive, None, &mut bulk, &mut Vec::new()).await;
    for answer in [cancelled, purged, dead, redriven] {
        let text = answer.expect_err("it looked at other partitions").to_string();
        assert!(text.contains("which replaced the 1 of this configuration"), "{text}");
    }

    let new = queue(store);
    let mut work = GroupWork::default();
    new.change_group(ROUTE, "g", GroupAction::Cancel, None, later(), &mut work).await.expect("done");
    assert_eq!(work.count, 1);
}

#[tokio::test]
async fn several_that_schedule_while_it_is_moved_agree_on_each_id() {
    const IDS: usize = 2000;
    let mut bench = Bench::start().await;
    bench.clear().await;
    let url = bench.server.url();
    let named = |n: usize| message(&format!("m{n}"), OnConflict::Keep);
    for n in (0..IDS / 2).step_by(100) {
        bench.store.schedule(&partition(), &(n..n + 100).map(named).collect::<Vec<_>>()).await.expect("scheduled");
    }
    let stores = [(); 3].map(|()| Arc::new(store_of([(ROUTE, 5)], &url, MAX_PAYLOAD)));
    stores[0].register().await.expect("it begins");
    for store in &stores[1..] {
        store.register().await.expect("it is known");
    }
    // Each schedules all ids, while all of them move.
    let all = stores.iter().map(async |store| {
        let queue = Queue::new(store.clone(), &BTreeMap::new(), false);
        let schedule = async {
            let mut new = 0;
            for n in (0..IDS).step_by(50) {
                let answers = queue.schedule(ROUTE, "api", (n..n + 50).map(named).collect()).await.expect("answers");
                new += answers.iter().filter(|one| one.status == ScheduleStatus::Scheduled).count();
            }
            new
        };
        let (new, moved) = tokio::join!(schedule, move_all(store));
        println!("{new} new, {moved} moved");
        new
    });
    let new: usize = join_all(all).await.into_iter().sum();
    assert_eq!(new, IDS / 2, "each other one was live already");
    let held = held(&mut bench, 5).await;
    assert_eq!((held.pending.len(), held.bodies.len()), (IDS, IDS));
    assert_eq!(self::held(&mut bench, 1).await, MemoryPartition::default());
}

#[tokio::test]
async fn a_paused_route_stays_paused_and_a_second_move_waits_for_the_first() {
    let mut bench = Bench::start().await;
    bench.clear().await;
    let url = bench.server.url();
    bench.store.schedule(&partition(), &[message("one", OnConflict::Keep)]).await.expect("scheduled");
    bench.store.pause(&partition(), "ops", "a note").await.expect("paused");
    let two = store_of([(ROUTE, 2)], &url, MAX_PAYLOAD);
    two.register().await.expect("it begins");
    for one in Partition::all(&ROUTE.into(), 2) {
        let claim = two.claim(&one, claim_request(10, Duration::from_secs(1))).await.expect("a claim");
        assert!(claim.paused, "{one}");
    }
    for (other, reason) in [(1, "which replaced the 1 of this configuration"), (3, "until it is done")] {
        let store = store_of([(ROUTE, other)], &url, MAX_PAYLOAD);
        let refused = store.register().await.expect_err("one is under way").to_string();
        assert!(refused.contains(reason), "{refused}");
    }
    assert_eq!(move_all(&two).await, 1);
    store_of([(ROUTE, 3)], &url, MAX_PAYLOAD).register().await.expect("the next begins");
}

#[tokio::test]
async fn a_redis_with_older_data_gets_the_newest_number_again_whatever_was_registered_there() {
    let bench = Bench::start().await;
    let url = bench.server.url();
    let numbers = [1, 4, 1];
    let mut raw = bench.server.connection().await;
    let mut snapshots: Vec<String> = Vec::new();
    let store = store_of([(ROUTE, 1)], &url, MAX_PAYLOAD);
    store.register().await.expect("it is known");
    let other = store_of([(ROUTE, 4)], &url, MAX_PAYLOAD);
    for number in numbers {
        let one = if number == 1 { &store } else { &other };
        one.choose_partitions(ROUTE, number).await.expect("an answer");
        one.register().await.expect("it is the newest");
        snapshots.push(redis::cmd("HGET").arg(&["p:routes", ROUTE]).query_async(&mut raw).await.expect("a route"));
    }
    for snapshot in &snapshots {
        let () = redis::cmd("HSET").arg(&["p:routes", ROUTE, snapshot]).query_async(&mut raw).await.expect("restored");
        store.register().await.expect("it is the newest");
        assert!(store.is_registered().await.expect("an answer"));
        let refused = other.register().await.expect_err("it was replaced");
        assert!(matches!(refused, RegistrationError::Outdated { stored: 1, .. }), "{refused}");
    }
}
