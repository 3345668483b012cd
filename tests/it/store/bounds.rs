//! The largest calls and replies.

use std::time::Duration;

use bytes::Bytes;
use punctual::{
    connection::classify,
    message::{MessageId, Metadata, NewMessage, OnConflict, State},
    outcome::DeadReason,
    port::{
        Burial, Claim, ClaimMode, ClaimRequest, Lease, Partition, Release, Retry, Settled, Store, StoreError, Transfer,
        Transferred,
    },
    queue::{Queue, Status},
    store::redis::{MAX_BATCH, RedisStore},
    time::{Due, UnixMillis},
};
use redis::Value;

use super::{
    bench::{Bench, MAX_PAYLOAD, id},
    record::scripts,
    rows::key,
    scene::{ROUTE, partition},
};

const MAX_REPLY_BYTES: usize = 8 * 1024 * 1024;

#[tokio::test]
async fn every_script_takes_a_thousand_ids() {
    let mut bench = Bench::start().await;
    let (store, partition) = (bench.store.clone(), partition());
    let claim_all = async || {
        let claim = claim(&bench.store).await;
        assert_eq!(claim.messages.len(), MAX_BATCH);
        claim
    };
    let leases = |claim: &Claim| -> Vec<Lease> {
        claim.messages.iter().map(|one| Lease { id: one.id.clone(), token: claim.token }).collect()
    };
    let all_done = |settled: Vec<Settled>| {
        assert!(settled.len() == MAX_BATCH && settled.iter().all(|one| *one == Settled::Done));
    };
    let schedule = async |conflict, status| {
        let answers = store.schedule(&partition, &batch(MAX_BATCH, 10, conflict)).await.expect("scheduled");
        assert!(answers.len() == MAX_BATCH && answers.iter().all(|one| one.status == status));
    };
    schedule(OnConflict::Keep, Status::Scheduled).await;
    schedule(OnConflict::Replace, Status::Replaced).await;
    schedule(OnConflict::Keep, Status::Exists(State::Pending)).await;

    let retry = |lease| Retry { lease, delay: Duration::ZERO, error: "x".repeat(1000) };
    all_done(
        store.retry(&partition, &leases(&claim_all().await).into_iter().map(retry).collect::<Vec<_>>()).await.unwrap(),
    );
    let release = |lease| Release { lease, not_before: UnixMillis::default() };
    let claim_to_release = leases(&claim_all().await);
    all_done(store.release(&partition, &claim_to_release.into_iter().map(release).collect::<Vec<_>>()).await.unwrap());

    let bury = async || {
        let burial = |lease| Burial { lease, reason: DeadReason::Rejected, error: "x".repeat(1000) };
        let burials: Vec<_> = leases(&claim_all().await).into_iter().map(burial).collect();
        all_done(store.bury(&partition, &burials).await.unwrap());
    };
    bury().await;
    let ids: Vec<MessageId> = batch(MAX_BATCH, 0, OnConflict::Keep).into_iter().map(|message| message.id).collect();
    assert_eq!(store.redrive(&partition, Some(&ids)).await, Ok(1000));
    bury().await;
    assert_eq!(store.redrive(&partition, None).await, Ok(1000));
    bury().await;
    schedule(OnConflict::Replace, Status::Revived).await;
    bury().await;
    assert_eq!(store.purge(&partition, Some(&ids)).await, Ok(1000));
    schedule(OnConflict::Keep, Status::Scheduled).await;
    bury().await;
    assert_eq!(store.purge(&partition, None).await, Ok(1000));

    schedule(OnConflict::Keep, Status::Scheduled).await;
    all_done(store.ack(&partition, &leases(&claim_all().await)).await.unwrap());
    schedule(OnConflict::Keep, Status::Scheduled).await;
    for lists in [1, MAX_BATCH] {
        let transfer = |(n, lease)| Transfer {
            lease,
            list: format!("list-{}", n % lists).into(),
            value: Bytes::from_static(b"value"),
        };
        let claimed = leases(&claim_all().await);
        let transfers: Vec<_> = claimed.into_iter().enumerate().map(transfer).collect();
        let done = store.transfer(&partition, &transfers).await.unwrap();
        assert!(done.len() == MAX_BATCH && done.iter().all(|one| *one == Transferred::Done));
        schedule(OnConflict::Keep, Status::Scheduled).await;
    }

    let request = ClaimRequest { lease: Duration::from_millis(1), ..everything() };
    assert_eq!(store.claim(&partition, request).await.unwrap().messages.len(), MAX_BATCH);
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(store.recover(&partition).await.unwrap().expired, 1000);
    assert_eq!(store.list(&partition, State::Pending, MAX_BATCH, u64::MAX, None).await.unwrap().0.len(), MAX_BATCH);

    // Every body lost at once.
    let () = redis::cmd("DEL").arg(key(ROUTE, 0, "messages")).query_async(&mut bench.raw).await.expect("deleted");
    let claim = claim(&bench.store).await;
    assert_eq!((claim.messages.len(), claim.orphans), (0, 1000));
    bench.rows(&partition).await.check_invariants();
}

#[tokio::test]
async fn no_reply_is_larger_than_eight_mebibytes() {
    let mut bench = Bench::start().await;
    let scripts = scripts();
    // Many small bodies fill a reply with what goes with them, few large ones with themselves.
    for (count, payload) in [(1000, 8300), (20, MAX_PAYLOAD)] {
        bench.clear().await;
        for part in batch(count, payload, OnConflict::Keep).chunks(3 * 1024 * 1024 / payload) {
            bench.store.schedule(&partition(), part).await.expect("scheduled");
        }
        let mut errors = redis::pipe();
        for message in batch(count, 0, OnConflict::Keep) {
            errors.hset(key(ROUTE, 0, "errors"), message.id.as_str(), "x".repeat(510)).ignore();
        }
        errors.exec_async(&mut bench.raw).await.expect("written");
        for script in ["list", "claim"] {
            let mut lines = bench.monitor().await;
            if script == "list" {
                bench.store.list(&partition(), State::Pending, MAX_BATCH, u64::MAX, None).await.expect("a list");
            } else {
                // Of nobody: everything stays pending.
                let nobody = Partition { number: 0, route: "three".into() };
                bench.store.claim(&nobody, everything()).await.expect("a claim");
            }
            let mut recorded = bench.last_call(&mut lines, script).await;
            for key in &mut recorded.keys {
                *key = key.replace("three", ROUTE);
            }
            let mut call = redis::cmd("EVAL");
            call.arg(&scripts[script]);
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
async fn a_batch_in_place_of_large_messages_is_split_and_a_single_one_always_goes() {
    // So many times 1 MiB wait; small ones replace them, or only ask for them.
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
    assert_eq!(answers(OnConflict::Replace, &bench).await, expected(Status::Replaced, Status::Scheduled));
    assert_eq!(answers(OnConflict::Keep, &bench).await, vec![Status::Exists(State::Pending); 100]);
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
        call.arg(&scripts()["schedule"]).arg(recorded.keys.len()).arg(&recorded.keys);
        call.arg(&recorded.arguments[0]).arg(max_bytes).arg(&recorded.arguments[2]);
        for message in batch(count, 1, OnConflict::Replace) {
            call.arg(message.id.as_str()).arg("+0").arg("replace").arg("tail");
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
async fn a_delay_that_no_clock_can_hold_is_refused_and_the_longest_one_can_be_read() {
    let bench = Bench::start().await;
    let with = |due| NewMessage { due, ..batch(1, 1, OnConflict::Keep).remove(0) };
    let queue: &Queue = &bench.queue;
    for delay in [(1 << 52) + 1, u64::MAX] {
        assert!(queue.schedule(ROUTE, "api", vec![with(Due::After(delay))]).await.is_err(), "{delay}");
        assert!(queue.reschedule(ROUTE, &with(Due::NOW).id, Due::After(delay)).await.is_err(), "{delay}");
    }
    assert_eq!(bench.store.stats(&partition()).await.unwrap().pending, 0);
    let answers = queue.schedule(ROUTE, "api", vec![with(Due::After(1 << 52))]).await.expect("scheduled");
    let found = queue.get(ROUTE, &answers[0].id).await.unwrap().expect("it is there");
    assert_eq!(found.message.expect("readable").due, answers[0].due);
}

#[tokio::test]
async fn an_error_is_kept_up_to_500_bytes_and_no_character_is_cut() {
    let bench = Bench::start().await;
    let message = batch(1, 1, OnConflict::Keep).remove(0);
    bench.queue.schedule(ROUTE, "api", vec![message.clone()]).await.expect("scheduled");
    let last_error = async || bench.queue.get(ROUTE, &message.id).await.unwrap().expect("it is there").last_error;
    // 3 bytes each: 500 lies within one.
    let error = "€".repeat(400);
    let lease = async || Lease { id: message.id.clone(), token: claim(&bench.store).await.token };
    let retry = Retry { lease: lease().await, delay: Duration::ZERO, error: error.clone() };
    bench.store.retry(&partition(), &[retry]).await.expect("repeated later");
    assert_eq!(last_error().await, Some("€".repeat(166)));
    let burial = Burial { lease: lease().await, reason: DeadReason::Rejected, error };
    bench.store.bury(&partition(), &[burial]).await.expect("buried");
    assert_eq!(last_error().await, Some(format!("rejected: {}", "€".repeat(166))));
}

async fn claim(store: &RedisStore) -> Claim {
    store.claim(&partition(), everything()).await.expect("a claim")
}

fn everything() -> ClaimRequest {
    ClaimRequest { mode: ClaimMode::Ordinary, limit: 1000, max_bytes: u64::MAX, lease: Duration::from_hours(1) }
}

/// Ids of the greatest length, due at once.
fn batch(count: usize, payload: usize, on_conflict: OnConflict) -> Vec<NewMessage> {
    (0..count)
        .map(|n| NewMessage {
            id: id(&format!("{n:0128}")),
            due: Due::At(UnixMillis::default()),
            payload: vec![0; payload].into(),
            metadata: Metadata::default(),
            on_conflict,
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
