//! The whole way: through the API of the real program into Kafka. Numbers that depend on the machine are printed
//! (`cargo test -- --nocapture`) and held to loose bounds.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

use super::Topic;
use crate::support::{
    RedisServer, answer, http,
    kafka::{self, Broker, Record},
    punctual::Punctual,
    receiver::wall_clock,
};

/// Due from now on, and so far ahead that all are scheduled by then.
const AHEAD_MILLIS: u64 = 2000;
/// Messages of one call, the most that the API takes.
const ARRAY: u64 = 1000;
/// A debug build keeps this beside all the other tests; the printed number is the one to look at.
const LATENESS_P99_MILLIS: i64 = 1000;
/// One at a time: they would disturb each other's time.
static ALONE: Mutex<()> = Mutex::const_new(());
/// After the last is due.
const PATIENCE: Duration = Duration::from_mins(1);

async fn pipeline(redis: &RedisServer, broker: &str, topic: &str) -> Punctual {
    let (redis, timeout) = (redis.url(), "4s");
    let configuration = json!({
        "redis": { "url": redis },
        "sinks": {
            "orders": { "type": "kafka", "brokers": [broker], "topic": topic, "timeout": timeout },
            "jobs": { "type": "redis_list", "key": "jobs", "format": "envelope" },
        },
        "routes": { "orders": { "sink": "orders" }, "jobs": { "sink": "jobs" } },
    });
    Punctual::start(&configuration.to_string()).await
}

fn payload(number: u64) -> String {
    format!("payload of {number}, é \u{1f426}")
}

/// `count` messages, the same number in every millisecond of `spread`. Returns when the first is due, epoch ms.
async fn schedule(punctual: &Punctual, route: &str, count: u64, spread: Duration) -> u64 {
    let first = wall_clock() + AHEAD_MILLIS;
    let due = |number| first + number * u64::try_from(spread.as_millis()).expect("short") / count;
    let message = |number| {
        json!({
            "id": format!("m{number}"), "deliver_at": due(number), "payload": payload(number), "key": format!("k{number}"),
            "content_type": "text/plain", "headers": { "X-Number": number.to_string() },
        })
    };
    for from in (0..count).step_by(usize::try_from(ARRAY).expect("small")) {
        let array: Vec<Value> = (from..count.min(from + ARRAY)).map(message).collect();
        let request = http::client()
            .post(punctual.url(&format!("/v1/routes/{route}/messages")))
            .body(Value::from(array).to_string());
        let answer = answer(request).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    first
}

/// Waits until the route holds nothing but the dead, and shows it.
async fn drained(punctual: &Punctual, route: &str, patience: Duration) -> Value {
    let deadline = Instant::now() + patience;
    loop {
        let stats = answer(http::client().get(punctual.url(&format!("/v1/routes/{route}")))).await.json;
        if stats["pending"] == 0 && stats["unack"] == 0 {
            return stats;
        }
        assert!(Instant::now() < deadline, "not drained within {patience:?}: {stats}");
        sleep(Duration::from_millis(50)).await;
    }
}

fn number(record: &Record) -> u64 {
    record.header("X-Number").parse().expect("a number")
}

fn due(record: &Record) -> i64 {
    record.header("punctual-due").parse().expect("a time")
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_messages_arrive_once_on_time_and_complete() {
    const COUNT: u64 = 10_000;
    const SPREAD: Duration = Duration::from_secs(10);
    let _alone = ALONE.lock().await;
    // The broker's time, when it has the record.
    let Some(topic) = Topic::create(3, &[("message.timestamp.type", "LogAppendTime")]).await else { return };
    let redis = RedisServer::start().await;
    let punctual = pipeline(&redis, &topic.broker, &topic.name).await;
    let first = schedule(&punctual, "orders", COUNT, SPREAD).await;
    let stats = drained(&punctual, "orders", SPREAD + PATIENCE).await;
    assert_eq!(stats["dead"], 0);

    let records = topic.records().await;
    let numbers: BTreeSet<u64> = records.iter().map(number).collect();
    assert_eq!((records.len(), numbers.len()), (10_000, 10_000), "each once");
    let mut lateness = Vec::new();
    for record in &records {
        let n = number(record);
        assert_eq!(record.id(), format!("m{n}"));
        assert_eq!(record.payload.as_deref(), Some(payload(n).as_bytes()));
        assert_eq!(record.key.as_deref(), Some(format!("k{n}").as_bytes()));
        assert_eq!((record.header("punctual-route"), record.header("punctual-attempt")), ("orders", "1"));
        assert_eq!(record.header("content-type"), "text/plain");
        assert_eq!(due(record), i64::try_from(first + n).expect("a time"), "one for each millisecond");
        assert!(record.timestamp >= due(record), "{n} came early");
        lateness.push(record.timestamp - due(record));
    }
    lateness.sort_unstable();
    let p99 = lateness[lateness.len() * 99 / 100];
    println!("kafka: 10,000 messages, lateness p50 {} ms, p99 {p99} ms", lateness[lateness.len() / 2]);
    assert!(p99 < LATENESS_P99_MILLIS, "{p99} ms");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_killed_costs_no_message_no_attempt_and_no_other_route() {
    const COUNT: u64 = 3000;
    const SPREAD: Duration = Duration::from_secs(6);
    /// After the first is due.
    const KILLED_AFTER_MILLIS: u64 = 2000;
    /// So many may be on their way when it is killed: the route's `max_in_flight`.
    const IN_FLIGHT: usize = 1000;
    let _alone = ALONE.lock().await;
    let Some(mut broker) = Broker::start().await else { return };
    kafka::create_topic(&broker.address(), "t", 3, &[]).await;
    let redis = RedisServer::start().await;
    let punctual = pipeline(&redis, &broker.address(), "t").await;
    schedule(&punctual, "jobs", COUNT, SPREAD).await;
    let first = schedule(&punctual, "orders", COUNT, SPREAD).await;
    sleep(Duration::from_millis((first + KILLED_AFTER_MILLIS).saturating_sub(wall_clock()))).await;
    broker.kill();
    let stats = drained(&punctual, "jobs", Duration::from_secs(20)).await;
    assert_eq!(stats["dead"], 0, "the list is served all the while");
    let waiting = answer(http::client().get(punctual.url("/v1/routes/orders"))).await.json;
    assert!(waiting["pending"].as_u64() > Some(500), "Kafka is away: {waiting}");

    broker.restart().await;
    let stats = drained(&punctual, "orders", PATIENCE).await;
    assert_eq!(stats["dead"], 0);
    let records = kafka::consume(&broker.address(), "t").await;
    let numbers: BTreeSet<u64> = records.iter().map(number).collect();
    assert_eq!(numbers.len(), 3000, "none is lost");
    let duplicates = records.len() - numbers.len();
    println!("kafka: killed under load, {duplicates} duplicates");
    assert!(duplicates <= IN_FLIGHT, "{duplicates} duplicates");
    for record in &records {
        assert_eq!(record.header("punctual-attempt"), "1", "{}", record.id());
        assert!(record.timestamp >= due(record), "{} came early", record.id());
    }
}
