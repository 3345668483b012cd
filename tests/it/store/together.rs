//! Small calls of several partitions, which share one call of a script.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::join_all;
use punctual::{
    message::{Metadata, NewMessage, OnConflict},
    store::{Claim, ClaimEnd, Partition, Settled, Store, StoreError, redis::RedisStore},
    time::Due,
};
use redis::aio::MultiplexedConnection;
use tokio::time::Instant;

use super::{
    bench::{MAX_PAYLOAD, id, store_of},
    rows::key,
};
use crate::support::{RedisServer, all, claim_request, noise};

const ROUTE: &str = "many";
const PARTITIONS: u16 = 40;

#[tokio::test]
async fn calls_of_many_partitions_share_a_few_and_each_gets_its_own_answer() {
    let (server, store) = start().await;
    let mut raw = server.connection().await;
    schedule(&store, b"small").await;
    let before = calls(&mut raw).await;
    let claims = claim_all(&store).await;
    let settled = join_all(claims.iter().enumerate().map(|(number, claim)| {
        let claim = claim.as_ref().expect("a claim");
        assert_eq!(ids(claim), [format!("m{number}")]);
        settle(&store, number, claim)
    }));
    assert!(settled.await.into_iter().all(|one| one == Ok(vec![Settled::Done])));
    let calls = calls(&mut raw).await - before;
    println!("{calls} calls for {PARTITIONS} claims and {PARTITIONS} settlements");
    assert!(calls <= 12, "{calls} calls");
    assert!(claim_all(&store).await.into_iter().all(|claim| claim.expect("a claim").messages.is_empty()));
}

#[tokio::test]
async fn a_key_of_a_wrong_type_fails_the_calls_of_its_partition_alone() {
    let (server, store) = start().await;
    let mut raw = server.connection().await;
    schedule(&store, b"small").await;
    let broken = key(&partition(7), "unack");
    let () = redis::cmd("SET").arg(&broken).arg("x").query_async(&mut raw).await.expect("the server answers");
    for (number, claim) in claim_all(&store).await.into_iter().enumerate() {
        match claim {
            Err(StoreError::WrongType { text }) => {
                assert!(number == 7 && text.contains(&partition(7).to_string()), "{number}: {text}");
            }
            claim => assert_eq!(ids(&claim.expect("a claim")), [format!("m{number}")]),
        }
    }
    let () = redis::cmd("DEL").arg(&broken).query_async(&mut raw).await.expect("the server answers");
    assert_eq!(ids(&claim_one(&store, partition(7)).await.expect("a claim")), ["m7"]);
}

#[tokio::test]
async fn large_replies_are_left_to_another_call() {
    let (server, store) = start().await;
    let mut raw = server.connection().await;
    schedule(&store, &noise(700_000)).await;
    let before = calls(&mut raw).await;
    let claims = claim_all(&store).await;
    for (number, claim) in claims.iter().enumerate() {
        assert_eq!(ids(claim.as_ref().expect("a claim")), [format!("m{number}")]);
    }
    let calls = calls(&mut raw).await - before;
    println!("{calls} calls for {PARTITIONS} messages of 700 kB");
    assert!(calls >= u64::from(PARTITIONS) / 2, "{calls} calls: three such bodies in a reply");
}

#[tokio::test]
async fn a_server_that_became_a_replica_fails_every_call_that_would_write() {
    let (server, store) = start().await;
    let mut raw = server.connection().await;
    schedule(&store, b"small").await;
    let claims = claim_all(&store).await;
    let other = RedisServer::start().await;
    let port = other.port().to_string();
    let replicate = redis::cmd("REPLICAOF").arg("127.0.0.1").arg(&port).query_async(&mut raw).await;
    let () = replicate.expect("the server answers");
    for (number, claim) in claims.iter().enumerate() {
        let claim = claim.as_ref().expect("a claim");
        let settled = settle(&store, number, claim).await;
        assert!(
            matches!(&settled, Err(StoreError::Unavailable { kind: "readonly" | "io" | "connect", .. })),
            "{settled:?}"
        );
    }
}

#[tokio::test]
async fn many_calls_that_a_silent_server_holds_up_end_within_twice_the_timeout() {
    let (server, store) = start_with(200).await;
    let mut raw = server.connection().await;
    let pause = redis::cmd("CLIENT").arg("PAUSE").arg(60_000).arg("ALL").query_async(&mut raw).await;
    let () = pause.expect("the server answers");
    let began = Instant::now();
    for claim in join_all(Partition::all(&ROUTE.into(), 200).map(|one| claim_one(&store, one))).await {
        assert!(matches!(&claim, Err(StoreError::Unavailable { .. })), "{claim:?}");
    }
    let took = began.elapsed();
    println!("200 claims without an answer ended after {took:?}");
    assert!(took < store.servers().timeout() * 2 + Duration::from_secs(1), "{took:?}");
}

async fn start() -> (RedisServer, Arc<RedisStore>) {
    start_with(PARTITIONS).await
}

async fn start_with(partitions: u16) -> (RedisServer, Arc<RedisStore>) {
    let server = RedisServer::start_with(&["--appendonly", "no"]).await;
    let store = store_of([(ROUTE, partitions)], &server.url(), MAX_PAYLOAD);
    store.register().await.expect("nothing is registered yet");
    (server, Arc::new(store))
}

/// One message in each partition, due now.
async fn schedule(store: &RedisStore, payload: &[u8]) {
    for number in 0..PARTITIONS {
        let message = NewMessage {
            id: id(&format!("m{number}")),
            due: Due::After(0),
            payload: Bytes::from(payload.to_owned()),
            metadata: Metadata::default(),
            on_conflict: OnConflict::default(),
            debounce: None,
            record: None,
        };
        store.schedule(&partition(number), &[message]).await.expect("the server answers");
    }
}

fn partition(place: u16) -> Partition {
    Partition { route: ROUTE.into(), index: place, count: PARTITIONS }
}

async fn claim_one(store: &RedisStore, partition: Partition) -> Result<Claim, StoreError> {
    let mut request = claim_request(500, Duration::from_secs(30));
    request.backlog = false;
    store.claim(&partition, request).await
}

async fn claim_all(store: &RedisStore) -> Vec<Result<Claim, StoreError>> {
    join_all(Partition::all(&ROUTE.into(), PARTITIONS).map(|one| claim_one(store, one))).await
}

async fn settle(store: &RedisStore, number: usize, claim: &Claim) -> Result<Vec<Settled>, StoreError> {
    let leases = claim.messages.iter().map(|one| punctual::store::Lease {
        id: one.id.clone(),
        token: claim.token,
        bytes: one.body.len(),
    });
    let number = u16::try_from(number).expect("a partition");
    store.settle(&partition(number), &all(leases, &ClaimEnd::Ack)).await
}

fn ids(claim: &Claim) -> Vec<String> {
    claim.messages.iter().map(|one| one.id.to_string()).collect()
}

/// Script calls so far.
async fn calls(raw: &mut MultiplexedConnection) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query_async(raw).await.expect("the server answers");
    let of = |line: &str| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?.parse().ok();
    stats.lines().find_map(of).unwrap_or(0)
}
