//! A success that replicas have confirmed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use punctual::{
    message::{Metadata, NewMessage, OnConflict},
    queue::Queue,
    store::{
        Cancelled, Partition, ScheduleStatus, Store, StoreError,
        redis::{Durability, RedisStore, RouteSettings, connection::Connection},
    },
    time::{Due, UnixMillis},
};
use redis::aio::MultiplexedConnection;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use super::{
    bench::{Bench, id},
    rows::key,
    scene,
};
use crate::support::{RedisServer, claim_request};

const WAIT: Duration = Duration::from_millis(300);
const MAX_WAIT: Duration = Duration::from_secs(20);

/// A master, and a replica that is in step with it.
struct Pair {
    master: RedisServer,
    replica: RedisServer,
}

impl Pair {
    async fn start() -> Self {
        let master = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]).await;
        let port = master.port().to_string();
        let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]).await;
        let pair = Self { master, replica };
        let store = pair.store(1);
        store.register().await.expect("registered");
        let deadline = Instant::now() + MAX_WAIT;
        while let Err(error) = store.check_durable().await {
            assert!(Instant::now() < deadline, "{error}");
            sleep(Duration::from_millis(20)).await;
        }
        pair
    }

    /// As of one instance.
    fn store(&self, replicas: u64) -> RedisStore {
        self.store_that_waits(replicas, WAIT)
    }

    /// For replicas, at most this time.
    fn store_that_waits(&self, replicas: u64, timeout: Duration) -> RedisStore {
        let client = redis::Client::open(self.master.url()).expect("a valid URL");
        let connection = || Arc::new(Connection::new(client.clone(), MAX_WAIT));
        let limits = punctual::message::RouteLimits::default();
        let route = RouteSettings { limits, ..RouteSettings::plain("r", 100) };
        RedisStore::new(connection(), "p", [route]).confirming_over(connection(), Durability { replicas, timeout })
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.replica.pid().try_into().expect("a process id")).expect("not zero");
        kill_process(pid, signal).expect("it is ours");
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
    }
}

fn partition() -> Partition {
    Partition { route: "r".into(), index: 0, count: 1 }
}

fn message(name: &str) -> NewMessage {
    NewMessage {
        id: id(name),
        due: Due::At(UnixMillis::default()),
        on_conflict: OnConflict::Keep,
        metadata: Metadata::default(),
        payload: "x".into(),
        debounce: None,
        record: None,
    }
}

async fn schedule(store: &RedisStore, name: &str) -> Result<ScheduleStatus, StoreError> {
    store.schedule(&partition(), &[message(name)]).await.map(|answers| answers[0].status)
}

fn is_unconfirmed<T: std::fmt::Debug>(result: Result<T, StoreError>) -> bool {
    let error = result.expect_err("not confirmed");
    let StoreError::Unavailable { kind: "noreplicas", text } = &error else { panic!("{error}") };
    text.contains("0 of 1 replicas") && text.contains("unknown, repeat it with the same id")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_replica_confirmed_is_no_success_on_any_instance() {
    let pair = Pair::start().await;
    let (one, other) = (pair.store(1), pair.store(1));
    assert_eq!(schedule(&one, "before").await, Ok(ScheduleStatus::Scheduled));
    let metadata = Metadata { group: Some("g".into()), ..Metadata::default() };
    let grouped = NewMessage { metadata, ..message("grouped") };
    one.schedule(&partition(), &[grouped]).await.expect("scheduled");
    pair.signal(Signal::STOP);
    assert!(is_unconfirmed(schedule(&one, "m").await));
    // It wrote nothing itself: all that it wrote has been confirmed.
    assert!(is_unconfirmed(schedule(&other, "m").await));
    assert!(is_unconfirmed(other.cancel(&partition(), &id("before").into()).await));
    assert!(is_unconfirmed(other.cancel_group(&partition(), "g", None, 10, None).await));
    assert!(is_unconfirmed(other.cancel_group(&partition(), "g", None, 10, None).await), "it wrote nothing itself");
    assert!(is_unconfirmed(other.purge_pending(&partition(), Some(&[id("m")]), 10, false, None).await));
    assert!(is_unconfirmed(other.purge_pending(&partition(), None, 10, false, None).await));
    assert!(other.purge_pending(&partition(), None, 10, true, None).await.is_ok(), "it changes nothing");
    assert!(is_unconfirmed(other.reschedule(&partition(), &id("unknown"), Some(Due::NOW)).await));
    assert!(is_unconfirmed(one.pause(&partition(), "ops", "why").await));
    assert!(is_unconfirmed(other.pause(&partition(), "ops", "why").await), "it wrote nothing itself");
    assert!(is_unconfirmed(other.resume(&partition()).await));
    assert!(is_unconfirmed(one.pause_flow(&partition(), "f", "ops", "why").await));
    assert!(is_unconfirmed(other.resume_flow(&partition(), "f").await));
    let invalid = [(message("invalid"), "no number".to_owned())];
    assert!(is_unconfirmed(pair.store(1).bury(&partition(), punctual::store::Death::INVALID, &invalid).await));
    assert!(pair.store(0).check_durable().await.is_ok(), "0 replicas are always there");

    pair.signal(Signal::CONT);
    let deadline = Instant::now() + MAX_WAIT;
    let status = loop {
        match schedule(&other, "m").await {
            Ok(status) => break status,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    };
    assert!(matches!(status, ScheduleStatus::Scheduled | ScheduleStatus::Exists(_)), "{status:?}");
    let said = one.guarantee().await.expect("an answer");
    assert_eq!(
        said.expect("a replica"),
        "1 replica, all waited for: a fail-over to one of them loses nothing that got a 2xx"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_acts_at_once_while_other_calls_wait_for_replicas() {
    let pair = Pair::start().await;
    let store = Arc::new(pair.store_that_waits(1, MAX_WAIT / 2));
    pair.signal(Signal::STOP);
    let scheduling = tokio::spawn({
        let store = store.clone();
        async move { schedule(&store, "m").await }
    });
    while store.claim(&partition(), claim_request(1, MAX_WAIT)).await.expect("claimed").messages.is_empty() {}
    let pausing = tokio::spawn({
        let store = store.clone();
        async move { store.pause(&partition(), "ops", "why").await }
    });
    let mut raw = pair.master.connection().await;
    let paused = key(&partition(), "paused");
    while !redis::cmd("EXISTS").arg(&paused).query_async::<bool>(&mut raw).await.expect("an answer") {}
    assert!(!scheduling.is_finished() && !pausing.is_finished(), "both wait for the replica");
    pair.signal(Signal::CONT);
    assert_eq!(scheduling.await.expect("no panic"), Ok(ScheduleStatus::Scheduled));
    assert_eq!(pausing.await.expect("no panic"), Ok(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_replicas_is_shared_and_holds_up_no_claim() {
    let pair = Pair::start().await;
    let store = Arc::new(pair.store(1));
    pair.signal(Signal::STOP);
    let started = Instant::now();
    let calls: Vec<_> = (0..20)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { schedule(&store, &format!("m{n}")).await })
        })
        .collect();
    let mut claimed = 0;
    while claimed == 0 {
        claimed = store.claim(&partition(), claim_request(100, MAX_WAIT)).await.expect("claimed").messages.len();
    }
    let claimed_after = started.elapsed();
    for call in calls {
        assert!(is_unconfirmed(call.await.expect("no panic")));
    }
    let confirmed_after = started.elapsed();
    println!("durability: claimed after {claimed_after:?}, 20 calls answered after {confirmed_after:?}");
    assert!(claimed_after < WAIT / 2, "{claimed_after:?}");
    // One wait for the first call, one for those during it, one for the calls that those held up.
    assert!(confirmed_after < 4 * WAIT, "{confirmed_after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_is_not_repeated_when_a_partition_closes_before_its_confirmation() {
    let pair = Pair::start().await;
    let store = Arc::new(pair.store_that_waits(1, MAX_WAIT / 2));
    let queue = Queue::new(store.clone(), &BTreeMap::new(), false);
    let names: Vec<_> = (0..5).map(|n| id(&format!("m{n}"))).collect();
    let messages: Vec<_> = names.iter().map(|name| message(name.as_str())).collect();
    store.schedule(&partition(), &messages).await.expect("scheduled");
    let (mut raw, mut other) = (pair.master.connection().await, pair.master.connection().await);
    redis::cmd("CLIENT").arg(&["PAUSE", "20000", "WRITE"]).exec_async(&mut raw).await.expect("paused");
    // Calls that change something, and as many that do not: these send a fence. All are sent, and executed, together.
    let cancelling = tokio::spawn(async move {
        let unknown = id("unknown").into();
        let calls = names.into_iter().map(async |name| {
            let (name, partition) = (name.into(), partition());
            futures::join!(queue.cancel("r", &name), store.cancel(&partition, &unknown))
        });
        futures::future::join_all(calls).await
    });
    held_clients(&mut raw, 1).await;
    // Held clients go on in their order, and before commands that arrive later: the partition is closed before any fence.
    let route = key(&partition(), "route");
    let closing = tokio::spawn(async move { redis::cmd("DEL").arg(&route).query_async::<u64>(&mut other).await });
    held_clients(&mut raw, 2).await;
    redis::cmd("CLIENT").arg("UNPAUSE").exec_async(&mut raw).await.expect("goes on");
    assert_eq!(closing.await.expect("no panic").expect("an answer"), 1);
    for (cancelled, other) in cancelling.await.expect("no panic") {
        println!("durability: {cancelled:?}, and {other:?}");
        assert!(!matches!(cancelled, Ok(Cancelled::NotFound)), "it was executed twice");
    }
}

/// Waits until `count` clients are blocked.
async fn held_clients(raw: &mut MultiplexedConnection, count: usize) {
    let deadline = Instant::now() + MAX_WAIT;
    loop {
        let clients: String = redis::cmd("CLIENT").arg("LIST").query_async(raw).await.expect("an answer");
        if clients.lines().filter(|client| client.contains(" flags=b ")).count() >= count {
            return;
        }
        assert!(Instant::now() < deadline, "{clients}");
    }
}

#[tokio::test]
async fn a_fence_opens_no_partition() {
    let mut bench = Bench::start().await;
    let partition = scene::partition();
    let route = key(&partition, "route");
    assert_eq!(bench.store.fence(&partition).await, Ok(()));
    redis::cmd("DEL").arg(&route).exec_async(&mut bench.raw).await.expect("deleted");
    assert_eq!(bench.store.fence(&partition).await, Ok(()));
    let exists: bool = redis::cmd("EXISTS").arg(&route).query_async(&mut bench.raw).await.expect("an answer");
    assert!(!exists);
}
