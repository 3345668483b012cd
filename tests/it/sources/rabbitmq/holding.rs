//! Messages that were taken and are not in Redis yet.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use lapin::{options::QueueDeleteOptions, types::AMQPValue};
use punctual::{
    api,
    config::{GrowingDelay, Period, Real, Whole},
    connector::rabbitmq::{DelayFrom, IdFrom, RabbitMqSourceSettings, source::RabbitMqSource},
    message::{Limit, RouteLimits},
    queue::{Bulk, Purge, Queue},
    source::{Intake, Source, SourceHealth, SourceState},
    store::redis::{
        RedisStore, RouteSettings,
        connection::{Connection, RedisEndpoint, client},
    },
    tls::TlsFiles,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{
    MAX_WAIT, arguments, configuration, declare, declare_in, declare_with, delayed, publish,
    returns::{set_full, until_depth},
    until, wait_for,
};
use crate::support::{RabbitMq, RedisServer, punctual::Punctual};

const MESSAGES: usize = 50;
/// In place of minutes.
const HOLD_LIMIT: Duration = Duration::from_secs(1);

async fn queue(redis: &RedisServer, limits: RouteLimits) -> Arc<Queue> {
    let url = redis.url().as_str().into();
    let server = RedisEndpoint { url, username: None, password: None, tls: TlsFiles::default() };
    let connection = Connection::new(client(&server).expect("a valid URL"), MAX_WAIT);
    let settings = RouteSettings { limits, ..RouteSettings::plain("r", 1000) };
    let store = Arc::new(RedisStore::new(Arc::new(connection), "p", [settings]));
    store.register().await.expect("nothing is registered yet");
    Arc::new(Queue::new(store, &BTreeMap::new(), false))
}

fn settings(server: &RabbitMq, queue: &str) -> RabbitMqSourceSettings {
    RabbitMqSourceSettings {
        route: "r".into(),
        url: server.config("").url,
        username: None,
        password: None,
        tls: TlsFiles::default(),
        queue: queue.into(),
        prefetch: Whole(1000),
        id_from: IdFrom::Ulid,
        delay_from: DelayFrom::Headers,
        backoff: GrowingDelay {
            initial: Period(MAX_WAIT),
            factor: Real(1.0),
            max: Period(MAX_WAIT),
            jitter: Real(0.0),
        },
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_redis_refuses_for_too_long_is_returned_and_taken_again_later() {
    let (server, redis) = (RabbitMq::shared().await, RedisServer::start().await);
    declare_in(server, "held", "quorum").await;
    let config = settings(server, "held-in");
    let source = RabbitMqSource::new(&config, api::ulids(), 1).expect("a valid URL").with_hold_limit(HOLD_LIMIT);
    let (queue, status, (stop, stopping)) =
        (queue(&redis, RouteLimits::default()).await, Arc::<SourceHealth>::default(), watch::channel(false));
    let intake = Intake::new(queue.clone(), "in", "r".into(), status.clone(), stopping.clone());
    let running = tokio::spawn(async move { source.run(intake, stopping).await });
    let deadline = Instant::now() + MAX_WAIT;
    let until = async |what: &str, done: &dyn Fn() -> bool| {
        while !done() {
            assert!(Instant::now() < deadline, "{what}: {:?}", status.get());
            sleep(Duration::from_millis(10)).await;
        }
    };
    until("it consumes", &|| status.get().0 == SourceState::Running).await;
    set_full(&redis, true).await;
    publish(server, "held", delayed(MESSAGES, 3_600_000)).await;
    let begun = Instant::now();
    until_depth(server, "held-in", 0).await;
    until_depth(server, "held-in", MESSAGES).await;
    assert!(begun.elapsed() >= HOLD_LIMIT / 2, "{:?}", begun.elapsed());
    until("it waits", &|| status.get().0 == SourceState::Failing).await;
    assert_eq!(server.depth("held-in").await, Some(MESSAGES.try_into().unwrap()), "none is taken while Redis is full");
    set_full(&redis, false).await;
    until("it consumes again", &|| status.get().0 == SourceState::Running).await;
    until_depth(server, "held-in", 0).await;
    stop.send_replace(true);
    timeout(MAX_WAIT, running).await.expect("it stops").expect("no panic");
    assert_eq!(server.depth("held-in").await, Some(0), "all were acknowledged");
    assert_eq!(queue.stats("r").await.expect("numbers").pending, MESSAGES as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_replica_confirmed_is_not_acknowledged() {
    let (server, redis) = (RabbitMq::shared().await, RedisServer::start().await);
    let port = redis.port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]).await;
    declare(server, "unconfirmed").await;
    let durability = [("PUNCTUAL__REDIS__DURABILITY__REPLICAS", "1")];
    let mut punctual = Punctual::start_with(&configuration(server, "unconfirmed", &redis.url(), ""), &durability).await;
    until(&punctual, "/v1/sources", |sources| sources["sources"][0]["state"] == "running").await;
    let pid = Pid::from_raw(replica.pid().try_into().expect("a process id")).expect("not zero");
    kill_process(pid, Signal::STOP).expect("it is ours");
    publish(server, "unconfirmed", delayed(MESSAGES, 3_600_000)).await;
    until_depth(server, "unconfirmed-in", 0).await;
    until(&punctual, "/v1/sources", |sources| {
        sources["sources"][0]["last_error"].as_str().is_some_and(|error| error.contains("0 of 1 replicas"))
    })
    .await;
    // The broker returns what was not acknowledged.
    punctual.kill().await;
    until_depth(server, "unconfirmed-in", MESSAGES).await;
}

/// The broker has them no more.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_taken_from_a_deleted_queue_is_scheduled_once_redis_accepts() {
    let (server, redis) = (RabbitMq::shared().await, RedisServer::start().await);
    declare(server, "deleted-while-held").await;
    let punctual = Punctual::start(&configuration(server, "deleted-while-held", &redis.url(), "")).await;
    until(&punctual, "/v1/sources", |sources| sources["sources"][0]["state"] == "running").await;
    set_full(&redis, true).await;
    publish(server, "deleted-while-held", delayed(MESSAGES, 0)).await;
    until_depth(server, "deleted-while-held-in", 0).await;
    let channel = server.channel().await;
    channel.queue_delete("deleted-while-held-in".into(), QueueDeleteOptions::default()).await.unwrap();
    set_full(&redis, false).await;
    assert_eq!(wait_for(server, "deleted-while-held", MESSAGES).await.len(), MESSAGES);
    until(&punctual, "/v1/sources", |sources| {
        sources["sources"][0]["last_error"]
            .as_str()
            .is_some_and(|error| error.contains("no queue 'deleted-while-held-in'"))
    })
    .await;
    assert!(punctual.log().contains("the queue was deleted"), "{}", punctual.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_full_route_refuses_waits_and_comes_in_as_the_route_empties() {
    const MOST: u64 = 10;
    let (server, redis) = (RabbitMq::shared().await, RedisServer::start().await);
    declare(server, "limited").await;
    let config = settings(server, "limited-in");
    let source = Arc::new(RabbitMqSource::new(&config, api::ulids(), 1).expect("a valid URL"));
    let limits = RouteLimits { messages: Some(MOST), ..RouteLimits::default() };
    let (queue, status, (stop, stopping)) =
        (queue(&redis, limits).await, Arc::<SourceHealth>::default(), watch::channel(false));
    let intake = Intake::new(queue.clone(), "in", "r".into(), status.clone(), stopping.clone());
    let running = tokio::spawn({
        let source = source.clone();
        async move { source.run(intake, stopping).await }
    });
    publish(server, "limited", delayed(MESSAGES, 3_600_000)).await;
    let deadline = Instant::now() + MAX_WAIT;
    while source.depth().await != Some(MESSAGES as u64 - MOST) {
        assert!(Instant::now() < deadline, "{:?} wait", source.depth().await);
        sleep(Duration::from_millis(20)).await;
    }
    let (mut purged, mut waited) = (0, false);
    while purged < MESSAGES as u64 {
        assert!(Instant::now() < deadline, "{purged}: {:?}", status.get());
        let pending = queue.stats("r").await.expect("numbers").pending;
        assert!(pending <= MOST, "{pending}");
        waited |= status.get() == (SourceState::Failing, Some(Limit::Messages.explain().to_owned()));
        if pending == MOST {
            let (mut part, deadline) = (Bulk::default(), Instant::now() + Duration::from_mins(1));
            queue
                .purge_pending(
                    "r",
                    Purge { ids: None, before: None, limit: MOST, dry_run: false, by: None },
                    deadline,
                    &mut part,
                )
                .await
                .expect("purged");
            purged += part.count;
        }
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!((purged, waited), (MESSAGES as u64, true));
    until_depth(server, "limited-in", 0).await;
    assert_eq!(source.depth().await, Some(0));
    stop.send_replace(true);
    timeout(MAX_WAIT, running).await.expect("it stops").expect("no panic");
    assert_eq!(server.depth("limited-in").await, Some(0), "all were acknowledged");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_a_full_route_took_are_not_returned_with_those_it_refused() {
    // The second batch of 20 is taken in part.
    const MOST: usize = 30;
    let (server, redis) = (RabbitMq::shared().await, RedisServer::start().await);
    server.declare("partly-held", "k").await;
    // The broker drops a message at its second return.
    let quorum =
        [("x-queue-type", AMQPValue::LongString("quorum".into())), ("x-delivery-limit", AMQPValue::LongInt(1))];
    declare_with(server, "partly-held", arguments(&quorum)).await;
    let config = RabbitMqSourceSettings { prefetch: Whole(20), ..settings(server, "partly-held-in") };
    let source = RabbitMqSource::new(&config, api::ulids(), 1).expect("a valid URL").with_hold_limit(HOLD_LIMIT);
    let limits = RouteLimits { messages: Some(MOST as u64), ..RouteLimits::default() };
    let (queue, (stop, stopping)) = (queue(&redis, limits).await, watch::channel(false));
    let intake = Intake::new(queue.clone(), "in", "r".into(), Arc::default(), stopping.clone());
    publish(server, "partly-held", delayed(MESSAGES, 3_600_000)).await;
    let running = tokio::spawn(async move { source.run(intake, stopping).await });
    let deadline = Instant::now() + MAX_WAIT;
    while queue.stats("r").await.expect("numbers").pending < MOST as u64 {
        assert!(Instant::now() < deadline);
        sleep(Duration::from_millis(10)).await;
    }
    loop {
        let depth = server.depth("partly-held-in").await.expect("it exists") as usize;
        assert!(depth <= MESSAGES - MOST, "{depth} were returned");
        if depth == MESSAGES - MOST {
            break;
        }
        assert!(Instant::now() < deadline, "{depth} are ready");
        sleep(Duration::from_millis(10)).await;
    }
    // While the route is full, none is taken again.
    let end = Instant::now() + 3 * HOLD_LIMIT;
    while Instant::now() < end {
        assert_eq!(server.depth("partly-held-in").await, Some(u32::try_from(MESSAGES - MOST).unwrap()), "taken again");
        sleep(Duration::from_millis(20)).await;
    }
    // With room for a few, a few are taken. A second return would drop a message.
    let mut purged = 0;
    while purged < MESSAGES as u64 {
        assert!(Instant::now() < deadline, "{purged}");
        let mut part = Bulk::default();
        queue
            .purge_pending(
                "r",
                Purge { ids: None, before: None, limit: 3, dry_run: false, by: None },
                deadline,
                &mut part,
            )
            .await
            .expect("purged");
        purged += part.count;
        sleep(Duration::from_millis(20)).await;
    }
    until_depth(server, "partly-held-in", 0).await;
    stop.send_replace(true);
    timeout(MAX_WAIT, running).await.expect("it stops").expect("no panic");
    let left = (server.depth("partly-held-in").await, queue.stats("r").await.expect("numbers").pending);
    assert_eq!((purged, left), (MESSAGES as u64, (Some(0), 0)), "each was stored once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_route_goes_on_taking_up_to_its_limit() {
    const MOST: usize = 10;
    let (server, redis) = (RabbitMq::shared().await, RedisServer::start().await);
    declare(server, "paused-route").await;
    let config = settings(server, "paused-route-in");
    let source = RabbitMqSource::new(&config, api::ulids(), 1).expect("a valid URL");
    let limits = RouteLimits { messages: Some(MOST as u64), ..RouteLimits::default() };
    let (queue, status, (stop, stopping)) =
        (queue(&redis, limits).await, Arc::<SourceHealth>::default(), watch::channel(false));
    queue.pause("r", "test", "").await.expect("paused");
    let intake = Intake::new(queue.clone(), "in", "r".into(), status.clone(), stopping.clone());
    let running = tokio::spawn(async move { source.run(intake, stopping).await });
    publish(server, "paused-route", delayed(MESSAGES, 0)).await;
    let deadline = Instant::now() + MAX_WAIT;
    while status.get() != (SourceState::Failing, Some(Limit::Messages.explain().to_owned())) {
        assert!(Instant::now() < deadline, "{:?}", status.get());
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(queue.stats("r").await.expect("numbers").pending, MOST as u64);
    stop.send_replace(true);
    timeout(MAX_WAIT, running).await.expect("it stops").expect("no panic");
    until_depth(server, "paused-route-in", MESSAGES - MOST).await;
}
