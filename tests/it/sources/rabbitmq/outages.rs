//! Everything that can die in between dies.

use std::{collections::HashSet, time::Duration};

use lapin::options::QueueDeleteOptions;
use tokio::time::{Instant, sleep};

use super::{PATIENCE, configuration, declare, declare_in, delayed, publish, until, wait_for};
use crate::support::{RabbitMq, RedisServer, punctual::Punctual, rabbitmq::Got};

const MESSAGES: usize = 5000;
const PREFETCH: usize = 500;

/// Without repetitions.
fn distinct(got: &[(u64, Got)]) -> usize {
    got.iter().map(|(_, got)| &*got.id).collect::<HashSet<_>>().len()
}

async fn pending(redis: &RedisServer) -> usize {
    redis::cmd("ZCARD").arg("{punctual:r:0}:pending").query_async(&mut redis.connection().await).await.unwrap()
}

/// Waits until a part of what was published is in Redis.
async fn under_way(redis: &RedisServer) {
    let deadline = Instant::now() + PATIENCE;
    while pending(redis).await < MESSAGES / 10 {
        assert!(Instant::now() < deadline, "nothing is taken");
    }
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
    let mut punctual = Punctual::spawn(&configuration(server, name, &redis.url(), &settings), &[]);
    under_way(&redis).await;
    punctual.kill().await;
    let taken = pending(&redis).await;
    assert!(taken < MESSAGES, "killed in the middle");
    punctual.restart().await;
    let got = wait_for(server, name, MESSAGES).await;
    punctual.terminate().await;
    println!("{name}: killed with {taken} in Redis, {} came", got.len() + server.drain(name).await.len());
    assert_eq!(distinct(&got), MESSAGES, "none is lost");
    got.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn punctual_killed_during_ingest_loses_nothing_and_repeats_at_most_what_was_not_acknowledged() {
    let came = killed_during_ingest("killed-ulid", "").await;
    assert!(came <= MESSAGES + PREFETCH, "{came}");
}

#[tokio::test(flavor = "multi_thread")]
async fn punctual_killed_during_ingest_repeats_nothing_with_the_producers_ids() {
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
    let punctual = Punctual::spawn(&configuration(server, "redis-away", &redis.url(), &settings), &[]);
    under_way(&redis).await;
    redis.kill();
    until(&punctual, "/v1/sources", |sources| sources["sources"][0]["state"] == "failing").await;
    sleep(Duration::from_secs(2)).await;
    redis.restart().await;
    let got = wait_for(server, "redis-away", MESSAGES).await;
    assert_eq!((distinct(&got), got.len()), (MESSAGES, MESSAGES));
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
    let told = until(&punctual, "/v1/sources", |sources| {
        sources["sources"][0]["last_error"].as_str().is_some_and(|error| error.contains("no queue"))
    })
    .await;
    assert_eq!(told["sources"][0]["state"], "failing");
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
