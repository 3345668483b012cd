//! Schedules of etf1/kafka-message-scheduler: the last record of a key counts, also when it is read again.

use std::collections::BTreeMap;

use redis::AsyncCommands;
use serde_json::{Value, json};

use super::{Sent, into_list, produce, source, stats, status, until};
use crate::support::{
    RedisServer,
    kafka::{self, Record},
    punctual::Punctual,
    receiver::wall_clock,
};

/// Seconds.
const HOUR: i64 = 3600;

/// A schedule that is due after this number of seconds.
fn schedule(key: &str, value: &str, seconds: i64) -> Sent {
    let epoch = i64::try_from(wall_clock() / 1000).expect("below 2^63") + seconds;
    let headers =
        vec![("scheduler-epoch", epoch.to_string().into_bytes()), ("scheduler-target-topic", b"anywhere".to_vec())];
    Sent { key: Some(key.into()), value: Some(value.into()), headers }
}

fn tombstone(key: &str) -> Sent {
    Sent { key: Some(key.into()), ..Sent::default() }
}

fn numbered(what: &str, version: &str, seconds: i64) -> Vec<Sent> {
    (0..100).map(|n| schedule(&format!("{what} {n}"), &format!("{what} {n} {version}"), seconds)).collect()
}

/// How often each value arrived.
async fn arrived(redis: &RedisServer) -> BTreeMap<String, usize> {
    let jobs: Vec<String> = redis.connection().await.lrange("jobs", 0, -1).await.expect("a list");
    jobs.into_iter().fold(BTreeMap::new(), |mut counts, job| {
        *counts.entry(job).or_default() += 1;
        counts
    })
}

async fn until_pending(punctual: &Punctual, count: u64) {
    until(&format!("{count} wait"), async || {
        let stats = stats(punctual, "jobs").await;
        stats["pending"] == count && stats["unack"] == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_kill_nothing_comes_twice_nor_what_was_cancelled_or_replaced() {
    let Some(broker) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    kafka::create_topic(&broker, &topic, 3, &[]).await;
    let redis = RedisServer::start().await;
    let mut configuration = into_list(&redis.url(), &broker, &topic);
    configuration["routes"]["jobs"]["partitions"] = 2.into();
    let mut killed = Punctual::start(&configuration.to_string()).await;
    let first = [numbered("delivered", "1", -1), numbered("cancelled", "1", 8), numbered("replaced", "1", 8)];
    produce(&broker, &topic, first.concat()).await;
    until("some are delivered", async || arrived(&redis).await.len() == 100).await;
    until_pending(&killed, 200).await;
    let tombstones = (0..100).map(|n| tombstone(&format!("cancelled {n}"))).collect::<Vec<_>>();
    produce(&broker, &topic, [tombstones, numbered("replaced", "2", -1), numbered("kept", "1", 8)].concat()).await;
    until("what was replaced is delivered", async || arrived(&redis).await.len() == 200).await;
    until_pending(&killed, 100).await;
    killed.kill().await;

    // To another group nothing is committed: all of it is read again.
    configuration["sources"]["in"]["group_id"] = format!("{topic} again").into();
    let punctual = Punctual::start(&configuration.to_string()).await;
    until("all is read again", async || {
        let status = status(&punctual).await;
        status["state"] == "running" && status["depth"] == 0 && punctual.log().contains("partitions were assigned")
    })
    .await;
    until_pending(&punctual, 0).await;
    let expected = [("delivered", "1"), ("replaced", "2"), ("kept", "1")].into_iter();
    let expected = expected.flat_map(|(what, version)| (0..100).map(move |n| (format!("{what} {n} {version}"), 1)));
    assert_eq!(arrived(&redis).await, expected.collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_sent_again_after_its_delivery_is_cancelled_and_delivered_anew() {
    let Some(broker) = kafka::shared().await else { return };
    let (topic, target) = (kafka::topic_name(), kafka::topic_name());
    kafka::create_topic(&broker, &topic, 1, &[]).await;
    kafka::create_topic(&broker, &target, 1, &[]).await;
    let redis = RedisServer::start().await;
    let configuration = json!({
        "redis": { "url": redis.url() },
        "sinks": { "out": { "type": "kafka", "brokers": [broker], "topic": target } },
        "routes": { "jobs": { "sink": "out" } },
        "sources": { "in": source(&broker, &topic, "jobs") },
    });
    let punctual = Punctual::start(&configuration.to_string()).await;
    let until_came = async |count: usize| {
        until(&format!("{count} come"), async || kafka::consume(&broker, &target).await.len() == count).await;
    };
    produce(&broker, &topic, [schedule("order-7", "first", -1)]).await;
    until_came(1).await;
    produce(&broker, &topic, [schedule("order-7", "cancelled", HOUR)]).await;
    until_pending(&punctual, 1).await;
    produce(&broker, &topic, [tombstone("order-7")]).await;
    until_pending(&punctual, 0).await;
    produce(&broker, &topic, [schedule("order-7", "last", -1)]).await;
    until_came(2).await;
    let shown = |record: &Record| (record.id().to_owned(), String::from_utf8(record.payload.clone().unwrap()).unwrap());
    let records: Vec<_> = kafka::consume(&broker, &target).await.iter().map(shown).collect();
    assert_eq!(records, ["first", "last"].map(|value| ("order-7".to_owned(), value.to_owned())));
    assert_eq!(stats(&punctual, "jobs").await["pending"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overdue_schedule_whose_tombstone_is_read_with_it_is_not_delivered() {
    let Some(broker) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    kafka::create_topic(&broker, &topic, 1, &[]).await;
    let redis = RedisServer::start().await;
    let mut sent = numbered("cancelled", "1", -60);
    sent.extend(numbered("replaced", "1", -60));
    sent.extend((0..100).map(|n| tombstone(&format!("cancelled {n}"))));
    sent.extend(numbered("replaced", "2", HOUR));
    sent.push(schedule("end", "end", -60));
    produce(&broker, &topic, sent).await;
    let punctual = Punctual::start(&into_list(&redis.url(), &broker, &topic).to_string()).await;
    until("the last one is delivered", async || arrived(&redis).await.contains_key("end")).await;
    assert_eq!(arrived(&redis).await.into_keys().collect::<Vec<_>>(), ["end"]);
    assert_eq!(stats(&punctual, "jobs").await["pending"], Value::from(100));
}
