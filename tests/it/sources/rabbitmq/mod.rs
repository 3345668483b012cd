//! From a queue of RabbitMQ, through the whole program, into another.

mod exported;
mod holding;
mod outages;
mod program;
mod refusals;
mod reload;
mod returns;
mod traces;

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::StreamExt;
use lapin::{
    BasicProperties,
    options::{BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldTable},
};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{
    RabbitMq, http,
    punctual::Punctual,
    rabbitmq::{Got, durable},
    receiver::wall_clock,
};

/// Maximum wait for any event, on a busy machine.
const MAX_WAIT: Duration = Duration::from_mins(1);

/// A Python with the client, which `tests/run.sh` installs. `None`, and said so, where it is missing.
fn python() -> Option<PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/clients/amqp/bin/python");
    if python.exists() {
        return Some(python);
    }
    assert!(env::var("CI").as_deref() != Ok("true"), "no {}: tests/run.sh makes it", python.display());
    eprintln!("skipped: there is no {}", python.display());
    None
}

/// A source that reads queue `{name}-in` with these settings, and a sink to exchange and queue `{name}`, on key `k`.
fn configuration(server: &RabbitMq, name: &str, redis: &str, settings: &str) -> String {
    let url = format!("amqp://127.0.0.1:{}/%2f", server.port());
    format!(
        "redis: {{ url: '{redis}' }}\n\
         sinks:\n  mq: {{ type: rabbitmq, url: '{url}', exchange: {name} }}\n\
         routes:\n  r: {{ sink: mq }}\n\
         sources:\n  in: {{ type: rabbitmq, url: '{url}', queue: {name}-in, route: r{settings} }}\n"
    )
}

/// With a route that knows for ten minutes what it delivered.
fn remembering(configuration: &str) -> String {
    configuration.replace("r: { sink: mq }", "r: { sink: mq, remember: { for: 10m, max: 100000 } }")
}

/// The queue to read and the way out, under key `k`.
async fn declare(server: &RabbitMq, name: &str) {
    server.declare(name, "k").await;
    declare_in(server, name, "classic").await;
}

/// The queue to read, of this `x-queue-type`, behind a direct exchange of its name.
async fn declare_in(server: &RabbitMq, name: &str, kind: &str) {
    declare_with(server, name, arguments(&[("x-queue-type", AMQPValue::LongString(kind.into()))])).await;
}

async fn declare_with(server: &RabbitMq, name: &str, arguments: FieldTable) {
    let name = format!("{name}-in");
    server.declare_exchange(&name).await;
    server.declare_queue_with(&name, &name, "k", durable(), arguments).await;
}

fn arguments(entries: &[(&str, AMQPValue)]) -> FieldTable {
    let mut arguments = FieldTable::default();
    for (name, value) in entries {
        arguments.insert((*name).into(), value.clone());
    }
    arguments
}

/// Publishes to exchange `{name}-in`, persistent, all confirmed.
async fn publish(server: &RabbitMq, name: &str, messages: Vec<(BasicProperties, Vec<u8>)>) {
    let channel = server.channel().await;
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let (exchange, options) = (format!("{name}-in"), BasicPublishOptions::default());
    for (properties, payload) in messages {
        let exchange = exchange.as_str().into();
        channel.basic_publish(exchange, "k".into(), options, &payload, properties.with_delivery_mode(2)).await.unwrap();
    }
    channel.wait_for_confirms().await.unwrap();
}

/// With ids `m0`.. and this `x-delay` in milliseconds.
fn delayed(count: usize, delay: i32) -> Vec<(BasicProperties, Vec<u8>)> {
    let one = |n| (with_headers(&[("x-delay", AMQPValue::LongInt(delay))], &format!("m{n}")), format!("{n}").into());
    (0..count).map(one).collect()
}

fn with_headers(entries: &[(&str, AMQPValue)], message_id: &str) -> BasicProperties {
    BasicProperties::default().with_headers(arguments(entries)).with_message_id(message_id.into())
}

/// Drains `queue` until `count` different messages came; with the time of each, epoch milliseconds.
async fn wait_for(server: &RabbitMq, queue: &str, count: usize) -> Vec<(u64, Got)> {
    let (deadline, mut all, mut ids) = (Instant::now() + MAX_WAIT, Vec::new(), BTreeMap::new());
    loop {
        for got in server.drain(queue).await {
            *ids.entry(got.id.clone()).or_insert(0) += 1;
            all.push((wall_clock(), got));
        }
        if ids.len() >= count {
            return all;
        }
        assert!(Instant::now() < deadline, "{} of {count} arrived", ids.len());
        sleep(Duration::from_millis(20)).await;
    }
}

/// As a consumer gets them: `count` messages, with the time of each, epoch milliseconds.
async fn consume(server: &RabbitMq, queue: &str, count: usize) -> Vec<(u64, Got)> {
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let channel = server.channel().await;
    let consumer = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await.unwrap();
    let got = consumer.take(count).map(|message| {
        let message = message.unwrap();
        let id = message.properties.message_id().as_ref().unwrap().to_string();
        (wall_clock(), Got { id, properties: message.properties, payload: message.data })
    });
    timeout(MAX_WAIT, got.collect()).await.expect("all arrive")
}

fn header(got: &Got, name: &str) -> AMQPValue {
    got.properties.headers().as_ref().unwrap().inner()[name].clone()
}

async fn get(punctual: &Punctual, path: &str) -> serde_json::Value {
    let answer = http::client().get(punctual.url(path)).send().await.expect("it answers");
    serde_json::from_str(&answer.text().await.unwrap()).expect("JSON")
}

/// Waits until what `path` answers is as wanted.
async fn until(punctual: &Punctual, path: &str, wanted: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    let deadline = Instant::now() + MAX_WAIT;
    loop {
        let answer = get(punctual, path).await;
        if wanted(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "{path}: {answer}\n{}", punctual.log());
        sleep(Duration::from_millis(20)).await;
    }
}
