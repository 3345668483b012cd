//! Everything that can die in between dies.

use std::{collections::HashSet, time::Duration};

use lapin::options::QueueDeleteOptions;
use redis::aio::MultiplexedConnection;
use tokio::time::{Instant, sleep};

use super::{MAX_WAIT, configuration, declare, declare_in, delayed, publish, remembering, until, wait_for};
use crate::support::{RabbitMq, RedisServer, punctual::Punctual, rabbitmq::Got, receiver::wall_clock};

const MESSAGES: usize = 5000;
/// Small, so that taking all lasts longer than it takes to kill a process.
const PREFETCH: usize = 50;

/// Without repetitions.
fn distinct(got: &[(u64, Got)]) -> usize {
    got.iter().map(|(_, got)| &*got.id).collect::<HashSet<_>>().len()
}

/// Messages that wait, and those in flight.
async fn in_redis(connection: &mut MultiplexedConnection) -> (usize, usize) {
    let [pending, unack] = ["pending", "unack"].map(|set| format!("{{punctual:r:0/1}}:{set}"));
    redis::pipe().zcard(pending).zcard(unack).query_async(connection).await.unwrap()
}

/// Waits until a part of what was published is in Redis.
async fn under_way(redis: &RedisServer) {
    let (deadline, mut connection) = (Instant::now() + MAX_WAIT, redis.connection().await);
    while in_redis(&mut connection).await.0 < MESSAGES / 10 {
        assert!(Instant::now() < deadline, "nothing is taken");
        sleep(Duration::from_millis(1)).await;
    }
}

/// All that comes out of `queue`, in the end: when `count` different messages came, those that Redis still holds too.
async fn all_of(
    server: &RabbitMq,
    queue: &str,
    count: usize,
    redis: &RedisServer,
    mut punctual: Punctual,
) -> Vec<(u64, Got)> {
    let mut got = wait_for(server, queue, count).await;
    let (deadline, mut connection) = (Instant::now() + MAX_WAIT, redis.connection().await);
    while in_redis(&mut connection).await != (0, 0) {
        assert!(Instant::now() < deadline, "{:?}", in_redis(&mut connection).await);
        sleep(Duration::from_millis(20)).await;
    }
    let exit = punctual.terminate().await;
    assert_eq!(exit.code, Some(0), "{}", punctual.log());
    assert_eq!(server.depth(&format!("{queue}-in")).await, Some(0), "all is acknowledged");
    got.extend(server.drain(queue).await.into_iter().map(|got| (wall_clock(), got)));
    got
}

/// Messages that came, of `MESSAGES`, though punctual was killed while it took them.
async fn killed_during_ingest(name: &str, settings: &str) -> usize {
    let server = RabbitMq::shared().await;
    server.declare(name, "k").await;
    // It counts how often it gives a message out, in a header.
    declare_in(server, name, "quorum").await;
    let redis = RedisServer::start().await;
    publish(server, name, delayed(MESSAGES, 8000)).await;
    let settings = format!(", prefetch: {PREFETCH}{settings}");
    let configuration = remembering(&configuration(server, name, &redis.url(), &settings));
    let mut punctual = Punctual::spawn(&configuration, &[]);
    under_way(&redis).await;
    punctual.kill().await;
    let taken = in_redis(&mut redis.connection().await).await.0;
    assert!(taken < MESSAGES, "killed in the middle");
    punctual.restart().await;
    let got = all_of(server, name, MESSAGES, &redis, punctual).await;
    println!("{name}: killed with {taken} in Redis, {} came", got.len());
    assert_eq!(distinct(&got), MESSAGES, "none is lost");
    got.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_during_ingest_repeats_at_most_what_was_not_acknowledged() {
    let came = killed_during_ingest("killed-ulid", "").await;
    assert!(came <= MESSAGES + PREFETCH, "{came}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_during_ingest_repeats_nothing_with_the_producers_ids() {
    let came = killed_during_ingest("killed-known", ", id_from: message_id").await;
    assert_eq!(came, MESSAGES);
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_stopped_during_ingest_loses_nothing() {
    let server = RabbitMq::shared().await;
    declare(server, "redis-away").await;
    let mut redis = RedisServer::start().await;
    publish(server, "redis-away", delayed(MESSAGES, 6000)).await;
    let settings = format!(", prefetch: {PREFETCH}, id_from: message_id");
    let configuration = remembering(&configuration(server, "redis-away", &redis.url(), &settings));
    let punctual = Punctual::spawn(&configuration, &[]);
    under_way(&redis).await;
    redis.kill();
    until(&punctual, "/v1/sources", |sources| sources["sources"][0]["state"] == "failing").await;
    sleep(Duration::from_secs(2)).await;
    redis.restart().await;
    let got = all_of(server, "redis-away", MESSAGES, &redis, punctual).await;
    assert_eq!((distinct(&got), got.len()), (MESSAGES, MESSAGES));
}

/// RabbitMQ takes back what is not acknowledged within half an hour, by closing the channel.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_broker_took_back_while_redis_was_down_is_scheduled_once() {
    let server = RabbitMq::troubled().await;
    server.declare("taken-back", "k").await;
    // From 4.3 on classic queues have no such timeout.
    declare_in(&server, "taken-back", "quorum").await;
    let mut redis = RedisServer::start().await;
    server.set_consumer_timeout(1000).await;
    let punctual = Punctual::start(&configuration(&server, "taken-back", &redis.url(), "")).await;
    until(&punctual, "/v1/sources", |sources| sources["sources"][0]["state"] == "running").await;
    // A channel keeps the timeout that it begins with: the next one has time.
    server.set_consumer_timeout(1_800_000).await;
    redis.kill();
    publish(&server, "taken-back", delayed(100, 0)).await;
    let deadline = Instant::now() + MAX_WAIT;
    // The broker's words when it closes the channel, or ours when it ends the consumer alone.
    while !["timed out", "consumer timeout"].iter().any(|text| punctual.log().contains(text)) {
        assert!(Instant::now() < deadline, "it is not noticed: {}", punctual.log());
        sleep(Duration::from_millis(100)).await;
    }
    redis.restart().await;
    let got = all_of(&server, "taken-back", 100, &redis, punctual).await;
    assert_eq!((distinct(&got), got.len()), (100, 100));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_was_deleted_and_is_there_again_is_read_again() {
    let server = RabbitMq::shared().await;
    declare(server, "recreated").await;
    let punctual = Punctual::start(&configuration(server, "recreated", "embedded", "")).await;
    publish(server, "recreated", delayed(10, 0)).await;
    assert_eq!(wait_for(server, "recreated", 10).await.len(), 10);
    let channel = server.channel().await;
    channel.queue_delete("recreated-in".into(), QueueDeleteOptions::default()).await.unwrap();
    let failing = until(&punctual, "/v1/sources", |sources| {
        sources["sources"][0]["last_error"].as_str().is_some_and(|error| error.contains("no queue"))
    })
    .await;
    assert_eq!(failing["sources"][0]["state"], "failing");
    declare_in(server, "recreated", "classic").await;
    publish(server, "recreated", delayed(10, 0)).await;
    assert_eq!(wait_for(server, "recreated", 10).await.len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_was_killed_and_comes_back_is_read_again() {
    let mut server = RabbitMq::troubled().await;
    declare(&server, "broker-killed").await;
    let settings = ", id_from: message_id";
    let punctual = Punctual::start(&configuration(&server, "broker-killed", "embedded", settings)).await;
    publish(&server, "broker-killed", delayed(MESSAGES, 3000)).await;
    server.kill();
    until(&punctual, "/v1/sources", |sources| sources["sources"][0]["state"] == "failing").await;
    server.restart().await;
    let got = wait_for(&server, "broker-killed", MESSAGES).await;
    assert_eq!(distinct(&got), MESSAGES, "none is lost");
}
