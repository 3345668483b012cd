//! The real program while a part of a broker fails: a queue, a routing key, a message.

use std::{collections::BTreeMap, time::Duration};

use futures::StreamExt;
use lapin::{
    ExchangeKind,
    options::BasicConsumeOptions,
    types::{AMQPValue, FieldTable},
};
use serde_json::{Value, json};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::partial::CHANNEL_ERROR;
use crate::{
    program::{client::Client, heavy, partial::post},
    support::{RabbitMq, RedisServer, punctual::Punctual, rabbitmq::durable, receiver::wall_clock, scale::rounds},
};

/// Until all is delivered after the trouble.
const MAX_WAIT: Duration = Duration::from_secs(90);
/// Without another message the consumer takes it for the end.
const SILENCE: Duration = Duration::from_secs(3);

/// How often a message arrived, and how late the first copy, in ms.
type Arrivals = BTreeMap<String, (usize, u64)>;

/// The route `r` to an exchange, as this user, which has its name as password.
async fn pipeline(redis: &RedisServer, broker: &RabbitMq, user: &str, exchange: Value) -> Punctual {
    let mut sink = json!({
        "type": "rabbitmq", "url": format!("amqp://127.0.0.1:{}/%2f", broker.port()), "username": user, "password": user,
    });
    sink.as_object_mut().expect("an object").extend(exchange.as_object().expect("an object").clone());
    let configuration = json!({
        "redis": { "url": redis.url() },
        "sinks": { "mq": sink },
        "routes": { "r": { "sink": "mq" } },
    });
    Punctual::start(&configuration.to_string()).await
}

/// Takes what comes to the queue until nothing more has come for `SILENCE` after the sender half was dropped.
async fn consume(broker: &RabbitMq, queue: &str) -> (tokio::sync::oneshot::Sender<()>, JoinHandle<Arrivals>) {
    let connection = broker.connection().await;
    let channel = connection.create_channel().await.expect("a channel");
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let consuming = channel.basic_consume(queue.into(), "test".into(), options, FieldTable::default());
    let mut messages = consuming.await.expect("a queue");
    let (ending, mut end) = tokio::sync::oneshot::channel::<()>();
    let reading = tokio::spawn(async move {
        let mut arrivals = Arrivals::new();
        loop {
            let Ok(next) = timeout(SILENCE, messages.next()).await else {
                match end.try_recv() {
                    Err(tokio::sync::oneshot::error::TryRecvError::Empty) => continue,
                    _ => break,
                }
            };
            let (at, message) = (wall_clock(), next.expect("it goes on").expect("a message"));
            let headers = message.properties.headers().as_ref().expect("headers").inner();
            let number = |name: &str| match headers[name] {
                AMQPValue::LongLongInt(number) => u64::try_from(number).expect("positive"),
                ref other => panic!("{name}: {other:?}"),
            };
            assert_eq!(number("punctual-attempt"), 1, "no attempt was burnt");
            let id = message.properties.message_id().as_ref().expect("an id").to_string();
            let lateness = at.saturating_sub(number("punctual-due"));
            arrivals.entry(id).or_insert((0, lateness)).0 += 1;
        }
        drop(connection);
        arrivals
    });
    (ending, reading)
}

fn in_time(arrivals: &Arrivals) -> usize {
    arrivals.values().filter(|(_, lateness)| *lateness <= 2000).count()
}

fn most_copies(arrivals: &Arrivals) -> usize {
    arrivals.values().map(|(copies, _)| *copies).max().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn while_one_queue_confirms_nothing_the_other_is_served_once_and_in_time() {
    const RATE: u64 = 100;
    /// One message in this number goes to the queue that hangs.
    const HUNG_EVERY: u64 = 50;
    // Some times as long as a confirm is waited for.
    let (length, max_wait) = rounds((8, "2s"), (30, "10s"));
    let _turn = heavy().await;
    let broker = RabbitMq::shared().await;
    broker.declare("program-two", "good").await;
    broker.declare_queue("program-two-hung", "program-two", "hung", durable()).await;
    let redis = RedisServer::start().await;
    let punctual = pipeline(&redis, broker, "guest", json!({ "exchange": "program-two", "timeout": max_wait })).await;
    let client = Client::of(&punctual);
    let (ending, good) = consume(broker, "program-two").await;
    broker.suspend_queue("program-two-hung").await;
    let key = |n: u64| if n % HUNG_EVERY == 7 { "hung" } else { "good" };
    let start = post(&client, RATE * length, RATE, |n| json!({ "key": key(n) })).await;
    sleep(Duration::from_millis((start + length * 1000).saturating_sub(wall_clock()))).await;
    let delivered = client.metrics().await.sum("punctual_messages_delivered_total", &[]);
    broker.resume_queue("program-two-hung").await;
    let stats = client.drained("r", MAX_WAIT).await;
    drop(ending);
    let arrivals = good.await.expect("it reads");
    let expected = RATE * length - RATE * length / HUNG_EVERY;
    println!(
        "rabbitmq: one of two queues hung for {length} s: {delivered} acknowledged meanwhile; of {expected} for the other \
         {} arrived, {} within 2 s, at most {} copies",
        arrivals.len(),
        in_time(&arrivals),
        most_copies(&arrivals)
    );
    assert_eq!((arrivals.len() as u64, &stats["dead"]), (expected, &json!(0)), "{stats}");
    assert_eq!(most_copies(&arrivals), 1, "each once");
    assert!(in_time(&arrivals) as u64 * 100 >= expected * 97, "{} of {expected}", in_time(&arrivals));
    let hung = broker.drain("program-two-hung").await;
    println!("rabbitmq: {} copies of {} in the queue that hung", hung.len(), RATE * length / HUNG_EVERY);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn a_forbidden_routing_key_makes_its_own_messages_dead_and_no_others() {
    const RATE: u64 = 100;
    const SECONDS: u64 = 5;
    /// One message in this number is forbidden.
    const BAD_EVERY: u64 = 100;
    let _turn = heavy().await;
    let broker = RabbitMq::shared().await;
    broker.add_user("program-user", "program-topic.*", "").await;
    let variants = [
        ("program-topic", json!({ "exchange": "program-topic" })),
        ("program-topic-too", json!({ "exchange": "{header:X-Exchange}", "allow": ["program-topic*/*"] })),
    ];
    for (exchange, settings) in variants {
        broker.declare_exchange_of(ExchangeKind::Topic, exchange).await;
        broker.declare_queue(exchange, exchange, "#", durable()).await;
        broker.permit_topics("program-user", exchange, "^good").await;
        let redis = RedisServer::start().await;
        let punctual = pipeline(&redis, broker, "program-user", settings).await;
        let client = Client::of(&punctual);
        let (ending, reading) = consume(broker, exchange).await;
        let is_bad = |n: u64| n % BAD_EVERY == 42;
        post(
            &client,
            RATE * SECONDS,
            RATE,
            |n| json!({ "key": if is_bad(n) { "bad.one" } else { "good.one" }, "headers": { "X-Exchange": exchange } }),
        )
        .await;
        let stats = client.drained("r", MAX_WAIT).await;
        drop(ending);
        let arrivals = reading.await.expect("it reads");
        let (bad, good) = (RATE * SECONDS / BAD_EVERY, RATE * SECONDS - RATE * SECONDS / BAD_EVERY);
        let copies: usize = arrivals.values().map(|(copies, _)| copies).sum();
        println!(
            "rabbitmq: {bad} forbidden among {good} to `{exchange}`: {} arrived, {} within 2 s, {copies} copies, {} dead",
            arrivals.len(),
            in_time(&arrivals),
            stats["dead"]
        );
        assert_eq!((arrivals.len() as u64, &stats["dead"]), (good, &json!(bad)), "{stats}");
        assert!(most_copies(&arrivals) <= 2, "{} copies", most_copies(&arrivals));
        assert!(in_time(&arrivals) as u64 * 100 >= good * 97, "{} of {good}", in_time(&arrivals));
        let dead = client.call("GET", "/v1/routes/r/messages/m42", "").await.json;
        assert_eq!(dead["state"], "dead", "{dead}");
        let error = dead["last_error"].as_str().expect("a text");
        assert!(error.starts_with("rejected: ") && error.contains("topic 'bad.one'"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_too_large_is_dead_and_each_other_arrives_at_most_twice() {
    const COUNT: u64 = 256;
    const BROKEN: u64 = 200;
    let broker = RabbitMq::small().await;
    broker.declare("program-large", "k").await;
    let redis = RedisServer::start().await;
    let punctual = pipeline(&redis, broker, "guest", json!({ "exchange": "program-large" })).await;
    let client = Client::of(&punctual);
    let (ending, reading) = consume(broker, "program-large").await;
    // All due in the same millisecond.
    post(&client, COUNT, 1_000_000, |n| match n {
        BROKEN => json!({ "key": "k", "payload": "x".repeat(10_001) }),
        _ => json!({ "key": "k" }),
    })
    .await;
    let stats = client.drained("r", MAX_WAIT).await;
    drop(ending);
    let arrivals = reading.await.expect("it reads");
    let copies: usize = arrivals.values().map(|(copies, _)| copies).sum();
    println!("rabbitmq: one too large among {} good: {copies} copies, {} dead", arrivals.len(), stats["dead"]);
    assert_eq!((arrivals.len() as u64, &stats["dead"]), (COUNT - 1, &json!(1)), "{stats}");
    // Each connection that was lost with the channel cost one more.
    let lost = punctual.log().matches(CHANNEL_ERROR).count();
    assert!(most_copies(&arrivals) <= 2 + lost, "{} copies, {lost} connections lost", most_copies(&arrivals));
    let dead = client.call("GET", &format!("/v1/routes/r/messages/m{BROKEN}"), "").await.json;
    assert!(dead["last_error"].as_str().expect("a text").starts_with("rejected: "), "{dead}");
}
