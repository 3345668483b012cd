//! The largest calls and replies.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use punctual::{
    message::{
        DeadReason, Ending, HistoryLimits, LogRecord, MessageId, Metadata, NewMessage, OnConflict, Remember, State,
    },
    queue::Queue,
    store::{
        BulkProgress, Claim, ClaimEnd, ClaimRequest, DeadAction, DeadWork, Expiry, Filter, Found, Lease, Partition,
        Rescheduled, ScheduleStatus, Selection, Sent, Settled, Settlement, Spread, Store, StoreError, Token, Transfer,
        Transferred,
        redis::{MAX_BATCH, RedisStore, RouteSettings, connection::classify},
    },
    time::{Due, MAX_DELAY_MILLIS, UnixMillis},
};
use redis::Value;

use super::{
    arguments::all_dead,
    bench::{Bench, MAX_PAYLOAD, id, later},
    rows::{PREFIX, key},
    scene::{ROUTE, partition, whole_page},
};

use crate::support::{all, claim_request, noise};

const MAX_REPLY_BYTES: usize = 8 * 1024 * 1024;

/// How many.
async fn acted_on(store: &RedisStore, action: DeadAction, selection: Selection) -> u64 {
    let work = DeadWork {
        action,
        spread: Spread::default(),
        selection: &selection,
        limit: 2000,
        dry_run: false,
        deadline: later(),
    };
    let mut done = BulkProgress::default();
    store.act_on_dead(&partition(), &work, &mut done).await.expect("the server answers");
    assert!(!done.more);
    done.count
}

/// Each settlement remembers as many as it forgets, and keeps as many ends as it deletes.
fn full_memory() -> RouteSettings {
    RouteSettings {
        remember: Some(Remember { period: Duration::from_hours(1), max: 1000 }),
        history: Some(HistoryLimits { period: Duration::from_hours(1), max: 1000 }),
        ..RouteSettings::plain(ROUTE, MAX_PAYLOAD)
    }
}

#[tokio::test]
async fn every_script_takes_a_thousand_ids() {
    let mut bench = Bench::start().await;
    bench.store = Arc::new(RedisStore::new(bench.store.servers().clone(), PREFIX, [full_memory()]));
    let forget = async |bench: &mut Bench| {
        let memory = key(&partition(), "remembered");
        let script = "redis.call('DEL', KEYS[1]) for n = 1, 1000 do redis.call('ZADD', KEYS[1], n, 'old-' .. n) end";
        let mut call = redis::cmd("EVAL");
        call.arg(script).arg(1).arg(memory).exec_async(&mut bench.raw).await.expect("forgotten");
    };
    let (store, partition) = (bench.store.clone(), partition());
    let claim_all = async |bench: &Bench| {
        let claim = claim(&bench.store).await;
        assert_eq!(claim.messages.len(), MAX_BATCH);
        claim
    };
    let leases = |claim: &Claim| -> Vec<Lease> {
        claim
            .messages
            .iter()
            .map(|one| Lease { id: one.id.clone(), token: claim.token, bytes: one.body.len() })
            .collect()
    };
    let all_done = |settled: Vec<Settled>| {
        assert!(settled.len() == MAX_BATCH && settled.iter().all(|one| *one == Settled::Done));
    };
    let schedule = async |conflict, status| {
        let answers = store.schedule(&partition, &batch(MAX_BATCH, 10, conflict)).await.expect("scheduled");
        assert!(answers.len() == MAX_BATCH && answers.iter().all(|one| one.status == status));
    };
    schedule(OnConflict::Keep, ScheduleStatus::Scheduled).await;
    schedule(OnConflict::Replace, ScheduleStatus::Replaced).await;
    schedule(OnConflict::Keep, ScheduleStatus::Exists(State::Pending)).await;

    let error = "x".repeat(1000);
    let retried = ClaimEnd::Retry { delay: Duration::ZERO, error: error.clone(), hold: None };
    let buried = ClaimEnd::Bury { reason: DeadReason::Rejected, error };
    let released = ClaimEnd::Release { at: UnixMillis::default() };
    let deferred = ClaimEnd::Defer { pause: Duration::ZERO, sent: Sent::Yes { hold: None } };
    for end in [&retried, &released, &deferred] {
        let leases = leases(&claim_all(&bench).await);
        all_done(store.settle(&partition, &all(leases, end)).await.unwrap());
    }

    let bury = async || {
        let leases = leases(&claim_all(&bench).await);
        all_done(store.settle(&partition, &all(leases, &buried)).await.unwrap());
    };
    bury().await;
    let ids: Vec<MessageId> = batch(MAX_BATCH, 0, OnConflict::Keep).into_iter().map(|message| message.id).collect();
    assert_eq!(
        acted_on(&store, DeadAction::Redrive(Expiry::Drop), Selection::Ids { ids: ids.clone(), until: None }).await,
        1000
    );
    bury().await;
    assert_eq!(acted_on(&store, DeadAction::Redrive(Expiry::Drop), all_dead()).await, 1000);
    bury().await;
    schedule(OnConflict::Replace, ScheduleStatus::Revived).await;
    bury().await;
    assert_eq!(acted_on(&store, DeadAction::Purge, Selection::Ids { ids: ids.clone(), until: None }).await, 1000);
    schedule(OnConflict::Keep, ScheduleStatus::Scheduled).await;
    bury().await;
    assert_eq!(acted_on(&store, DeadAction::Purge, all_dead()).await, 1000);

    schedule(OnConflict::Keep, ScheduleStatus::Scheduled).await;
    forget(&mut bench).await;
    let claimed = leases(&claim_all(&bench).await);
    all_done(store.settle(&partition, &all(claimed, &ClaimEnd::Ack)).await.unwrap());
    schedule(OnConflict::Keep, ScheduleStatus::Ended(Ending::Delivered)).await;
    forget(&mut bench).await;
    schedule(OnConflict::Keep, ScheduleStatus::Scheduled).await;
    let ends = [ClaimEnd::Ack, retried, buried.clone(), released, deferred];
    let settlement = |(lease, end): (Lease, &ClaimEnd)| Settlement::new(lease, end.clone());
    let claimed = leases(&claim_all(&bench).await);
    let mixed: Vec<_> = claimed.into_iter().zip(ends.iter().cycle()).map(settlement).collect();
    all_done(store.settle(&partition, &mixed).await.unwrap());
    let rows = bench.rows(&partition).await;
    assert_eq!((rows.pending.len(), rows.dead.len(), rows.remembered.len()), (600, 200, 200));
    assert_eq!(acted_on(&store, DeadAction::Purge, all_dead()).await, 200);
    forget(&mut bench).await;
    // Those that wait stay.
    store.schedule(&partition, &batch(MAX_BATCH, 10, OnConflict::Keep)).await.expect("scheduled");
    for lists in [1, MAX_BATCH] {
        let transfer = |(n, lease)| Transfer {
            record: None,
            lease,
            list: format!("list-{}", n % lists).into(),
            value: Bytes::from_static(b"value"),
        };
        let claimed = leases(&claim_all(&bench).await);
        let transfers: Vec<_> = claimed.into_iter().enumerate().map(transfer).collect();
        let done = store.transfer(&partition, &transfers).await.unwrap();
        assert!(done.len() == MAX_BATCH && done.iter().all(|one| *one == Transferred::Done));
        forget(&mut bench).await;
        schedule(OnConflict::Keep, ScheduleStatus::Scheduled).await;
    }
    bench.rows(&partition).await.check_invariants();
}

#[tokio::test]
async fn a_thousand_leases_suspects_or_lost_bodies_are_handled_at_once() {
    let mut bench = Bench::start().await;
    let (store, partition) = (bench.store.clone(), partition());
    let messages = batch(MAX_BATCH, 10, OnConflict::Keep);
    store.schedule(&partition, &messages).await.expect("scheduled");
    let ids: Vec<MessageId> = messages.into_iter().map(|message| message.id).collect();
    // Claimed, and claimed again after the lease ended. Two crashes later nothing but suspects is due.
    let passed = async |bench: &mut Bench, token: u64| while bench.micros().await <= token {};
    for _ in 0..2 {
        let request = ClaimRequest { lease: Duration::from_millis(1), ..everything() };
        let first = store.claim(&partition, request).await.unwrap();
        passed(&mut bench, first.token.0).await;
        let renewed = store.claim(&partition, request).await.unwrap();
        assert_eq!((first.messages.len(), renewed.messages.len()), (MAX_BATCH, MAX_BATCH));
        assert!(renewed.token > first.token);
        passed(&mut bench, renewed.token.0).await;
        assert_eq!(store.recover(&partition).await.unwrap().expired, 1000);
    }
    let deferred = claim(&store).await;
    assert_eq!((deferred.messages.len(), deferred.suspects), (0, 1000));
    let stale = ids.iter().map(|id| Lease { id: id.clone(), token: Token(1), bytes: 0 });
    let settled = store.settle(&partition, &all(stale, &ClaimEnd::Ack)).await.unwrap();
    assert!(settled.len() == MAX_BATCH && settled.iter().all(|one| *one == Settled::Stale));
    for id in &ids {
        assert!(matches!(store.reschedule(&partition, id, Some(Due::NOW)).await, Ok(Rescheduled::Done(_))));
    }
    assert_eq!(
        store.list(&partition, &whole_page(State::Pending, MAX_BATCH, &Filter::default())).await.unwrap().listed.len(),
        MAX_BATCH
    );

    // Every body lost at once.
    let () = redis::cmd("DEL").arg(key(&partition, "messages")).query_async(&mut bench.raw).await.expect("deleted");
    let orphans = claim(&bench.store).await;
    assert_eq!((orphans.messages.len(), orphans.orphans.count), (0, 1000));
    bench.rows(&partition).await.check_invariants();
}

#[tokio::test]
async fn remembered_ids_beyond_a_smaller_bound_are_evicted_under_full_load() {
    let mut bench = Bench::start().await;
    let fill = "for n = 1, 5000 do redis.call('ZADD', KEYS[1], ARGV[1], 'old-' .. n) \
                redis.call('HSET', KEYS[2], 'old-' .. n, '1 1 t:0') end";
    let now = bench.micros().await / 1000;
    let [remembered, records] = ["remembered", "records"].map(|name| key(&partition(), name));
    redis::cmd("EVAL")
        .arg(fill)
        .arg(2)
        .arg(&[&remembered, &records])
        .arg(now)
        .exec_async(&mut bench.raw)
        .await
        .expect("filled");
    let store = |remember| {
        let settings = RouteSettings { remember, ..RouteSettings::plain(ROUTE, MAX_PAYLOAD) };
        RedisStore::new(bench.store.servers().clone(), PREFIX, [settings])
    };
    let stores = [store(Some(Remember { period: Duration::from_hours(1), max: 1000 })), store(None)];
    // Each time 1000 come in, and the second store forgets.
    for (round, (store, left)) in (0_u64..).zip([(0, 4000), (0, 3000), (0, 2000), (0, 1000), (0, 1000), (1, 0)]) {
        let store = &stores[store];
        let record = LogRecord { place: "t:0".into(), offset: round, timestamp: 1 };
        let anew = |one: NewMessage| {
            let (id, record) = (id(&format!("{round}-{}", &one.id.as_str()[120..])), Some(record.clone()));
            NewMessage { id, record, ..one }
        };
        let batch: Vec<_> = batch(MAX_BATCH, 1, OnConflict::Keep).into_iter().map(anew).collect();
        store.schedule(&partition(), &batch).await.expect("scheduled");
        let claim = claim(store).await;
        let leases: Vec<Lease> = claim
            .messages
            .iter()
            .map(|one| Lease { id: one.id.clone(), token: claim.token, bytes: one.body.len() })
            .collect();
        store.settle(&partition(), &all(leases, &ClaimEnd::Ack)).await.expect("acknowledged");
        let rows = bench.rows(&partition()).await;
        rows.check_invariants();
        assert_eq!((rows.remembered.len(), rows.records.len()), (left, left));
    }
}

#[tokio::test]
async fn no_reply_is_larger_than_eight_mebibytes() {
    let mut bench = Bench::start().await;
    // Many small bodies fill a reply with what goes with them, few large ones with themselves.
    for (count, payload) in [(1000, 8300), (20, MAX_PAYLOAD)] {
        bench.clear().await;
        for part in batch(count, payload, OnConflict::Keep).chunks(3 * 1024 * 1024 / payload) {
            bench.store.schedule(&partition(), part).await.expect("scheduled");
        }
        let mut errors = redis::pipe();
        for message in batch(count, 0, OnConflict::Keep) {
            errors.hset(key(&partition(), "errors"), message.id.as_str(), "x".repeat(650)).ignore();
        }
        errors.exec_async(&mut bench.raw).await.expect("written");
        for script in ["list", "claim"] {
            let mut lines = bench.monitor().await;
            if script == "list" {
                bench
                    .store
                    .list(&partition(), &whole_page(State::Pending, MAX_BATCH, &Filter::default()))
                    .await
                    .expect("a list");
            } else {
                // A claim from another route: everything stays pending.
                let other = Partition { route: "three".into(), index: 0, count: 3 };
                bench.store.claim(&other, everything()).await.expect("a claim");
            }
            let mut recorded = bench.last_call(&mut lines, script).await;
            for key in &mut recorded.keys {
                *key = key.replace("three:0/3", &format!("{ROUTE}:0/1"));
            }
            let mut call = redis::cmd("EVAL");
            call.arg(&recorded.code);
            call.arg(recorded.keys.len()).arg(&recorded.keys);
            for argument in &recorded.arguments {
                call.arg(&argument[..]);
            }
            let reply: Value = call.query_async(&mut bench.raw).await.expect("a reply");
            let size = size(&reply);
            assert!((MAX_REPLY_BYTES / 2..=MAX_REPLY_BYTES).contains(&size), "{script}, {count}: {size} bytes");
        }
    }
}

#[tokio::test]
async fn a_batch_in_place_of_large_messages_is_split_down_to_single_ones() {
    // Messages of 1 MiB wait. Small ones replace them, or only ask for them.
    const LARGE: usize = 11;
    let mut bench = Bench::start().await;
    let large = batch(LARGE, MAX_PAYLOAD, OnConflict::Keep);
    for part in large.chunks(3) {
        bench.store.schedule(&partition(), part).await.expect("scheduled");
    }
    let answers = async |conflict, bench: &Bench| {
        let small = batch(100, 1, conflict);
        let answers = bench.store.schedule(&partition(), &small).await.expect("scheduled");
        assert!(answers.iter().zip(&small).all(|(answer, message)| answer.id == message.id), "in order");
        answers.into_iter().map(|answer| answer.status).collect::<Vec<_>>()
    };
    let expected = |first, rest| [vec![first; LARGE], vec![rest; 100 - LARGE]].concat();
    assert_eq!(
        answers(OnConflict::Replace, &bench).await,
        expected(ScheduleStatus::Replaced, ScheduleStatus::Scheduled)
    );
    assert_eq!(answers(OnConflict::Keep, &bench).await, vec![ScheduleStatus::Exists(State::Pending); 100]);
    bench.rows(&partition()).await.check_invariants();

    // As the script itself sees it: refused as long as there are several, done with a single one.
    for part in large.chunks(3) {
        let replace = |message: &NewMessage| NewMessage { on_conflict: OnConflict::Replace, ..message.clone() };
        let part: Vec<_> = part.iter().map(replace).collect();
        bench.store.schedule(&partition(), &part).await.expect("replaced");
    }
    let one = batch(1, MAX_PAYLOAD, OnConflict::Replace);
    let mut lines = bench.monitor().await;
    bench.store.schedule(&partition(), &one).await.expect("replaced");
    let recorded = bench.last_call(&mut lines, "schedule").await;
    let call = |count: usize, max_bytes: &str| {
        let mut call = redis::cmd("EVAL");
        call.arg(&recorded.code).arg(recorded.keys.len()).arg(&recorded.keys);
        call.arg(&recorded.arguments[0]).arg(max_bytes).arg(&recorded.arguments[2..5]);
        call.arg("replace").arg(count).arg(0);
        for message in batch(count, 1, OnConflict::Replace) {
            call.arg(message.id.as_str()).arg("+0").arg("tail");
        }
        call
    };
    let before = bench.dump().await;
    let refused = call(2, "1048576").query_async::<Value>(&mut bench.raw).await.expect_err("two are too many");
    assert!(matches!(classify(&refused), StoreError::Refused { slug, .. } if slug == "split"), "{refused}");
    assert_eq!(bench.dump().await, before, "nothing was written");
    call(1, "1").query_async::<Value>(&mut bench.raw).await.expect("a single one always goes");
}

#[tokio::test]
async fn the_longest_delay_can_be_read_and_a_longer_one_is_refused() {
    let bench = Bench::start().await;
    let with = |due| NewMessage { due, ..batch(1, 1, OnConflict::Keep).remove(0) };
    let queue: &Queue = &bench.queue;
    for delay in [MAX_DELAY_MILLIS + 1, u64::MAX] {
        assert!(queue.schedule(ROUTE, "api", vec![with(Due::After(delay))]).await.is_err(), "{delay}");
        assert!(queue.reschedule(ROUTE, &with(Due::NOW).id, Some(Due::After(delay))).await.is_err(), "{delay}");
    }
    assert_eq!(bench.store.stats(&partition()).await.unwrap().pending, 0);
    let answers = queue.schedule(ROUTE, "api", vec![with(Due::After(MAX_DELAY_MILLIS))]).await.expect("scheduled");
    let Some(Found::Live { snapshot: found, .. }) = queue.get(ROUTE, &answers[0].id).await.unwrap() else {
        panic!("it is not there")
    };
    assert_eq!(found.message.expect("readable").due, answers[0].due);
}

#[tokio::test]
async fn an_error_is_kept_up_to_640_bytes_and_no_character_is_cut() {
    let bench = Bench::start().await;
    let message = batch(1, 1, OnConflict::Keep).remove(0);
    bench.queue.schedule(ROUTE, "api", vec![message.clone()]).await.expect("scheduled");
    let last_error = async || bench.live(ROUTE, message.id.as_str()).await.expect("it is there").last_error;
    // 3 bytes each: 640 lies within one.
    let error = "€".repeat(400);
    let lease = async || {
        let claim = claim(&bench.store).await;
        Lease { id: message.id.clone(), token: claim.token, bytes: claim.messages[0].body.len() }
    };
    let retried = ClaimEnd::Retry { delay: Duration::ZERO, error: error.clone(), hold: None };
    bench.store.settle(&partition(), &all([lease().await], &retried)).await.expect("repeated later");
    assert_eq!(last_error().await, Some("€".repeat(213)));
    let buried = ClaimEnd::Bury { reason: DeadReason::Rejected, error };
    bench.store.settle(&partition(), &all([lease().await], &buried)).await.expect("buried");
    assert_eq!(last_error().await, Some(format!("rejected: {}", "€".repeat(213))));
}

async fn claim(store: &RedisStore) -> Claim {
    store.claim(&partition(), everything()).await.expect("a claim")
}

fn everything() -> ClaimRequest {
    claim_request(1000, Duration::from_hours(1))
}

/// Ids of the greatest length, due at once.
fn batch(count: usize, payload: usize, on_conflict: OnConflict) -> Vec<NewMessage> {
    (0..count)
        .map(|n| NewMessage {
            id: id(&format!("{n:0128}")),
            due: Due::At(UnixMillis::default()),
            payload: noise(payload).into(),
            metadata: Metadata::default(),
            on_conflict,
            debounce: None,
            record: None,
        })
        .collect()
}

/// As it goes over the wire.
fn size(reply: &Value) -> usize {
    match reply {
        Value::BulkString(bytes) => bytes.len() + bytes.len().to_string().len() + 5,
        Value::Int(number) => number.to_string().len() + 3,
        Value::Array(values) => values.len().to_string().len() + 3 + values.iter().map(size).sum::<usize>(),
        other => panic!("{other:?}"),
    }
}
