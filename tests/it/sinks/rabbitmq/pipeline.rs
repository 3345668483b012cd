//! The whole way: through the API of the real program into RabbitMQ. Numbers that depend on the machine are printed
//! (`cargo test -- --nocapture`) and held to loose bounds.

use std::time::Duration;

use futures::StreamExt;
use lapin::{
    BasicProperties, ExchangeKind,
    options::{BasicConsumeOptions, ExchangeDeclareOptions, QueueBindOptions},
    types::{AMQPValue, FieldTable},
};
use serde_json::json;
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    program::{alone, eventually},
    support::{
        RabbitMq, RedisServer,
        pipeline::{Arrived, drained, percentiles, schedule, served_all_the_while, verify},
        punctual::Punctual,
        rabbitmq::durable,
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
/// Without another message the consumer takes it for the end.
const SILENCE: Duration = Duration::from_secs(3);

async fn pipeline(redis: &RedisServer, broker: &RabbitMq, exchange: &str, other: &str, in_flight: usize) -> Punctual {
    let url = format!("amqp://127.0.0.1:{}/%2f", broker.port());
    let configuration = json!({
        "redis": { "url": redis.url() },
        "sinks": {
            "orders": { "type": "rabbitmq", "url": url, "exchange": exchange, "timeout": "4s" },
            "hook": { "type": "http", "url": other },
        },
        "routes": { "orders": { "sink": "orders", "max_in_flight": in_flight }, "other": { "sink": "hook" } },
    });
    Punctual::start(&configuration.to_string()).await
}

/// A queue that takes every routing key, behind an exchange of the same name.
async fn declare(broker: &RabbitMq, name: &str) {
    let (channel, none) = (broker.channel().await, FieldTable::default());
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(name.into(), ExchangeKind::Fanout, options, none.clone()).await.expect("an exchange");
    channel.queue_declare(name.into(), durable(), none.clone()).await.expect("a queue");
    channel
        .queue_bind(name.into(), name.into(), "".into(), QueueBindOptions::default(), none)
        .await
        .expect("a binding");
}

/// Takes what comes to the queue until nothing more has come for `SILENCE` after there were `count`.
async fn consume(broker: &RabbitMq, queue: &str, count: u64) -> JoinHandle<Vec<Arrived>> {
    let connection = broker.connection().await;
    let channel = connection.create_channel().await.expect("a channel");
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let consuming = channel.basic_consume(queue.into(), "test".into(), options, FieldTable::default());
    let mut messages = consuming.await.expect("a queue");
    tokio::spawn(async move {
        let mut all = Vec::new();
        loop {
            let max_wait = if (all.len() as u64) < count { 2 * MAX_WAIT } else { SILENCE };
            let Ok(next) = timeout(max_wait, messages.next()).await else { break };
            let (at, message) = (wall_clock(), next.expect("it goes on").expect("a message"));
            all.push(arrived(at, message.routing_key.as_str(), &message.properties, message.data));
        }
        drop(connection);
        all
    })
}

fn arrived(at: u64, key: &str, properties: &BasicProperties, payload: Vec<u8>) -> Arrived {
    let headers = properties.headers().as_ref().expect("headers").inner();
    let text = |value: &AMQPValue| match value {
        AMQPValue::LongString(text) => text.to_string(),
        other => panic!("{other:?}"),
    };
    let number = |name: &str| match headers[name] {
        AMQPValue::LongLongInt(number) => u64::try_from(number).expect("positive"),
        ref other => panic!("{name}: {other:?}"),
    };
    let users = headers.iter().filter(|(name, _)| name.as_str().starts_with("X-"));
    assert_eq!(headers.len(), users.clone().count() + 4, "{headers:?}");
    assert_eq!(*properties.delivery_mode(), Some(2), "persistent");
    let id = properties.message_id().as_ref().expect("an id").to_string();
    assert_eq!(text(&headers["punctual-id"]), id);
    Arrived {
        id,
        route: text(&headers["punctual-route"]),
        attempt: u32::try_from(number("punctual-attempt")).expect("small"),
        due: number("punctual-due"),
        at,
        key: key.to_owned(),
        content_type: properties.content_type().as_ref().expect("a type").to_string(),
        headers: users.map(|(name, value)| (name.to_string(), text(value))).collect(),
        payload,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_arrive_once_on_time_and_complete() {
    // More than a route has in flight; in the plain run at half the rate, which a busy machine keeps too.
    let (count, spread) = rounds((2000, 4), (10_000, 10));
    let spread = Duration::from_secs(spread);
    let _alone = alone().await;
    let broker = RabbitMq::shared().await;
    declare(broker, "ten-thousand").await;
    let (redis, other) = (RedisServer::start().await, Receiver::start());
    let punctual = pipeline(&redis, broker, "ten-thousand", &other.url(), IN_FLIGHT).await;
    let consuming = consume(broker, "ten-thousand", count).await;
    let first = schedule(&punctual, "orders", count, spread).await;
    drained(&punctual, "orders", spread + MAX_WAIT).await;
    let arrived = consuming.await.expect("it reads");
    assert_eq!(verify(&arrived, "orders", first, count, spread), 0, "each once");
    let (p50, p99) = percentiles(arrived.iter().map(Arrived::lateness));
    println!("rabbitmq: {count} messages, lateness p50 {p50} ms, p99 {p99} ms");
    assert!(p99 < LATENESS_P99_MILLIS, "{p99} ms");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_stopped_and_then_killed_costs_no_message_and_no_attempt() {
    /// After the first is due.
    const STOPPED_AFTER_MILLIS: u64 = 3000;
    // At one rate. The plain outage, too, lasts longer than the sink's timeout and the default backoff.
    let (count, spread, in_flight) = rounds((3000, 12, 500), (10_000, 40, IN_FLIGHT));
    let (spread, outage) = (Duration::from_secs(spread), seconds(6, 30));
    let mut broker = RabbitMq::troubled().await;
    declare(&broker, "outage").await;
    let (redis, other) = (RedisServer::start().await, Receiver::start());
    let punctual = pipeline(&redis, &broker, "outage", &other.url(), in_flight).await;
    schedule(&punctual, "other", count, spread).await;
    let first = schedule(&punctual, "orders", count, spread).await;
    sleep(Duration::from_millis((first + STOPPED_AFTER_MILLIS).saturating_sub(wall_clock()))).await;
    let down = wall_clock();
    broker.stop().await;
    sleep(outage).await;
    broker.restart().await;
    // Once some of the backlog has arrived, and before all of it.
    let before = eventually("the depth is known", MAX_WAIT, async || broker.depth("outage").await).await;
    eventually("it delivers again", MAX_WAIT, async || broker.depth("outage").await.filter(|count| *count > before))
        .await;
    broker.kill();
    let back = wall_clock();
    broker.restart().await;
    drained(&punctual, "orders", spread + MAX_WAIT).await;
    drained(&punctual, "other", MAX_WAIT).await;

    let arrived = consume(&broker, "outage", count).await.await.expect("it reads");
    let duplicates = verify(&arrived, "orders", first, count, spread);
    println!("rabbitmq: {before} of {count} before it was back from {outage:?}, killed then: {duplicates} duplicates");
    assert!(duplicates <= 2 * in_flight, "{duplicates} duplicates");
    let (meanwhile, calm) = served_all_the_while(&other.requests(), count, down..back);
    println!(
        "rabbitmq: lateness of the other route, p50 and p99: {meanwhile:?} ms while it was down, else {calm:?} ms"
    );
}
