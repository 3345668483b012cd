//! The whole way: through the API of the real program into Kafka. Numbers that depend on the machine are printed
//! (`cargo test -- --nocapture`) and held to loose bounds.

use std::{process::Stdio, time::Duration};

use serde_json::json;
use tokio::{process::Command, time::sleep};

use super::Topic;
use crate::{
    program::{alone, eventually},
    support::{
        RedisServer,
        kafka::{self, Broker, Record},
        pipeline::{Arrived, drained, percentiles, schedule, served_all_the_while, verify},
        punctual::Punctual,
        receiver::{Receiver, wall_clock},
        scale::{rounds, seconds},
    },
};

/// A debug build keeps this beside all the other tests; the printed number is the one that counts.
const LATENESS_P99_MILLIS: u64 = 1000;
/// The most messages of a route that may be in flight, by default.
const IN_FLIGHT: usize = 1000;
/// After the last is due.
const MAX_WAIT: Duration = Duration::from_mins(1);

async fn pipeline(redis: &RedisServer, broker: &str, topic: &str, other: &str, in_flight: usize) -> Punctual {
    let configuration = json!({
        "redis": { "url": redis.url() },
        "sinks": {
            "orders": { "type": "kafka", "brokers": [broker], "topic": topic, "timeout": "4s" },
            "hook": { "type": "http", "url": other },
        },
        "routes": { "orders": { "sink": "orders", "max_in_flight": in_flight }, "other": { "sink": "hook" } },
    });
    Punctual::start(&configuration.to_string()).await
}

fn arrived(record: &Record) -> Arrived {
    let header = |name| record.header(name).to_owned();
    let number = |name| record.header(name).parse::<u64>().expect("a number");
    let users = record.headers.iter().filter(|(name, _)| name.starts_with("X-"));
    assert_eq!(record.headers.len(), users.clone().count() + 5, "{:?}", record.headers);
    Arrived {
        id: header("punctual-id"),
        route: header("punctual-route"),
        attempt: u32::try_from(number("punctual-attempt")).expect("small"),
        due: number("punctual-due"),
        at: u64::try_from(record.timestamp).expect("after 1970"),
        key: String::from_utf8(record.key.clone().expect("a key")).expect("UTF-8"),
        content_type: header("content-type"),
        headers: users.cloned().collect(),
        payload: record.payload.clone().expect("not a tombstone"),
    }
}

async fn all_arrived(broker: &str, topic: &str) -> Vec<Arrived> {
    kafka::consume(broker, topic).await.iter().map(arrived).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_arrive_once_on_time_and_complete_as_kafkas_consumer_counts() {
    // More than a route has in flight; in the plain run at half the rate, which a busy machine keeps too.
    let (count, spread) = rounds((2000, 4), (10_000, 10));
    let spread = Duration::from_secs(spread);
    let _alone = alone().await;
    // The broker's time, when it has the record.
    let Some(topic) = Topic::create(3, &[("message.timestamp.type", "LogAppendTime")]).await else { return };
    let (redis, other) = (RedisServer::start().await, Receiver::start());
    let punctual = pipeline(&redis, &topic.broker, &topic.name, &other.url(), IN_FLIGHT).await;
    let first = schedule(&punctual, "orders", count, spread).await;
    drained(&punctual, "orders", spread + MAX_WAIT).await;

    let arrived = all_arrived(&topic.broker, &topic.name).await;
    assert_eq!(verify(&arrived, "orders", first, count, spread), 0, "each once");
    let (p50, p99) = percentiles(arrived.iter().map(Arrived::lateness));
    println!("kafka: {count} messages, lateness p50 {p50} ms, p99 {p99} ms");
    assert!(p99 < LATENESS_P99_MILLIS, "{p99} ms");
    if kafka::installed() {
        let counted = count_by_console_consumer(&topic.broker, &topic.name).await;
        println!("kafka: its console consumer says: {counted}");
        assert!(counted.contains(&format!("Processed a total of {count} messages")), "{counted}");
    }
}

/// The last line of Kafka's own console consumer, which ends when no record has come for 5 s.
async fn count_by_console_consumer(broker: &str, topic: &str) -> String {
    let mut command = Command::from(kafka::tool("org.apache.kafka.tools.consumer.ConsoleConsumer"));
    command.args(["--bootstrap-server", broker, "--topic", topic, "--from-beginning", "--timeout-ms", "5000"]);
    let output = command.stdout(Stdio::null()).output().await.expect("java is installed");
    String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_stopped_and_then_killed_costs_no_message_and_no_attempt() {
    /// After the first is due.
    const STOPPED_AFTER_MILLIS: u64 = 3000;
    // At one rate. The plain outage, too, lasts longer than the sink's timeout and the default backoff.
    let (count, spread, in_flight) = rounds((3000, 12, 500), (10_000, 40, IN_FLIGHT));
    let (spread, outage) = (Duration::from_secs(spread), seconds(6, 30));
    let Some(mut broker) = Broker::start().await else { return };
    kafka::create_topic(&broker.address(), "t", 3, &[]).await;
    let (redis, other) = (RedisServer::start().await, Receiver::start());
    let punctual = pipeline(&redis, &broker.address(), "t", &other.url(), in_flight).await;
    schedule(&punctual, "other", count, spread).await;
    let first = schedule(&punctual, "orders", count, spread).await;
    sleep(Duration::from_millis((first + STOPPED_AFTER_MILLIS).saturating_sub(wall_clock()))).await;
    let down = wall_clock();
    broker.stop().await;
    sleep(outage).await;
    broker.restart().await;
    // Once some of the backlog has arrived, and before all of it.
    let address = broker.address();
    let before = eventually("the count is known", MAX_WAIT, async || kafka::count(&address, "t").await).await;
    eventually("it delivers again", MAX_WAIT, async || {
        kafka::count(&address, "t").await.filter(|count| *count > before)
    })
    .await;
    broker.kill();
    let back = wall_clock();
    broker.restart().await;
    drained(&punctual, "orders", spread + MAX_WAIT).await;
    drained(&punctual, "other", MAX_WAIT).await;

    let arrived = all_arrived(&broker.address(), "t").await;
    let duplicates = verify(&arrived, "orders", first, count, spread);
    println!("kafka: {before} of {count} before it was back from {outage:?}, killed then: {duplicates} duplicates");
    assert!(duplicates <= 2 * in_flight, "{duplicates} duplicates");
    let (meanwhile, calm) = served_all_the_while(&other.requests(), count, down..back);
    println!("kafka: lateness of the other route, p50 and p99: {meanwhile:?} ms while it was down, else {calm:?} ms");
}
