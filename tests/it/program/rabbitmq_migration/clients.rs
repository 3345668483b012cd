//! Unchanged producers in other languages. Each publishes every message a second time past all that delays, so that
//! what arrives can be compared with what a consumer would have got.

use std::{
    collections::{BTreeMap, HashMap},
    env,
    path::PathBuf,
};

use lapin::{ExchangeKind, message::Delivery, types::AMQPValue};
use tokio::process::Command;

use super::{Migrated, client};
use crate::support::rabbitmq::durable;

const COUNT: usize = 1000;
/// Headers that punctual adds.
const ADDED: [&str; 4] = ["punctual-id", "punctual-route", "punctual-attempt", "punctual-due"];

struct Producer {
    name: &'static str,
    exchange: &'static str,
    queue: &'static str,
    command: Command,
}

/// Producers with a language that `tests/run.sh` has installed. Missing ones are named.
fn producers(port: u16, amqp_1_0: bool) -> Vec<Producer> {
    let port = port.to_string();
    let (python, java, node) = (
        client("target/clients/amqp/bin/python"),
        client("target/clients/java/libs"),
        client("target/clients/node/node_modules"),
    );
    let mut all = Vec::new();
    let mut add = |name, (exchange, queue), needs: PathBuf, program: &str, arguments: Vec<String>| {
        if !needs.exists() {
            assert!(env::var("CI").as_deref() != Ok("true"), "no {}: tests/run.sh makes it", needs.display());
            eprintln!("skipped: there is no {}", needs.display());
            return;
        }
        let mut command = Command::new(program);
        command.args(arguments).env("NODE_PATH", client("target/clients/node/node_modules")).kill_on_drop(true);
        all.push(Producer { name, exchange, queue, command });
    };
    let script = |path| client(path).display().to_string();
    let tail = |exchange: &str, key: &str, prefix: &str| {
        [&*port, exchange, key, &COUNT.to_string(), prefix].map(ToOwned::to_owned).to_vec()
    };
    let words = |first: Vec<String>, tail: Vec<String>| [first, tail].concat();
    let interpreter = python.display().to_string();
    let arguments = words(vec![script("tests/clients/amqp/delayed.py")], tail("orders", "paid", "pika-"));
    add("pika", ("orders", "orders.paid"), python, &interpreter, arguments);
    let classes = format!("{0}:{0}/*", java.display());
    let arguments = words(vec!["-cp".into(), classes, "Publish".into()], tail("events", "shop.eu", "java-"));
    add("java", ("events", "events.eu"), java, "java", arguments);
    let arguments = words(vec![script("tests/clients/node/amqp.js")], tail("mails", "any", "node-"));
    add("node", ("mails", "mails.out"), node.clone(), "node", arguments);
    if amqp_1_0 {
        let tail = tail("/exchanges/orders/new", "/exchanges/control/new", "one-");
        let arguments = words(vec![script("tests/clients/node/amqp10.js")], tail);
        add("one", ("orders", "orders.all"), node, "node", arguments);
    }
    all
}

fn id(delivery: &Delivery) -> String {
    delivery.properties.message_id().as_ref().expect("an id").to_string()
}

fn headers(delivery: &Delivery) -> BTreeMap<String, AMQPValue> {
    let headers = delivery.properties.headers().as_ref().expect("headers").inner();
    headers.iter().map(|(name, value)| (name.to_string(), value.clone())).collect()
}

fn number(headers: &BTreeMap<String, AMQPValue>, name: &str) -> i64 {
    match headers[name] {
        AMQPValue::LongLongInt(number) => number,
        AMQPValue::LongInt(number) => number.into(),
        AMQPValue::ShortInt(number) => number.into(),
        ref other => panic!("{name}: {other:?}"),
    }
}

/// AMQP 1.0 from RabbitMQ 4 on: before, its annotations do not reach a consumer of 0-9-1 as headers.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn a_thousand_messages_of_each_unchanged_producer_arrive_once_never_early_and_whole() {
    let migrated = Migrated::shared().await;
    let broker = &migrated.broker;
    broker.declare_exchange_of(ExchangeKind::Fanout, "control").await;
    broker.declare_queue("control", "control", "", durable()).await;
    let mut producers = producers(broker.port(), broker.version().await >= (4, 0));
    let punctual = migrated.punctual().await;
    let running = producers.iter_mut().map(async |producer| {
        let output = producer.command.output().await.expect("it starts");
        assert!(output.status.success(), "{}: {}", producer.name, String::from_utf8_lossy(&output.stderr));
    });
    futures::future::join_all(running).await;
    let control = migrated.consume("control", COUNT * producers.len()).await;
    let control: HashMap<String, Delivery> = control.into_iter().map(|(_, it)| (id(&it), it)).collect();
    assert_eq!(control.len(), COUNT * producers.len());
    // Messages of the first producer are in both orders.all and orders.paid.
    let mut seen = HashMap::new();
    for queue in ["orders.paid", "events.eu", "mails.out", "orders.all"] {
        let of_queue = |it: &&Producer| it.queue == queue || (queue == "orders.all" && it.exchange == "orders");
        for (arrived, delivery) in migrated.consume(queue, COUNT * producers.iter().filter(of_queue).count()).await {
            compare(&delivery, &control[&id(&delivery)], arrived);
            *seen.entry((queue, id(&delivery))).or_insert(0) += 1;
        }
    }
    for producer in &producers {
        for n in 0..COUNT {
            let times = seen.get(&(producer.queue, format!("{}-{n}", producer.name)));
            assert_eq!(times, Some(&1), "{} {n}\n{}", producer.name, punctual.log());
        }
    }
    for queue in ["orders.paid", "events.eu", "mails.out", "orders.all", "unrouted"] {
        assert_eq!(broker.drain(queue).await.len(), 0, "nothing else came to {queue}");
    }
}

/// A delivery with its copy that was never delayed.
fn compare(delivery: &Delivery, copy: &Delivery, arrived: u64) {
    let id = id(delivery);
    let mut got = headers(delivery);
    let (sent, delay, due) = (number(&got, "sent"), number(&got, "delay"), number(&got, "punctual-due"));
    assert!(due >= sent + delay, "{id}: due {} ms after it was sent, with a delay of {delay} ms", due - sent);
    assert!(arrived.cast_signed() >= due, "{id}: {} ms early", due - arrived.cast_signed());
    for name in ADDED {
        assert!(got.remove(name).is_some(), "{id}: no {name}");
    }
    let mut wanted = headers(copy);
    if id.starts_with("one-") {
        // The producer makes the two messages of a pair in sequence, so their times differ.
        got.remove("sent");
        wanted.remove("sent");
    }
    assert_eq!(got, wanted, "{id}");
    assert_eq!(delivery.data, copy.data, "{id}");
    let without = |it: &Delivery| it.properties.clone().with_headers(lapin::types::FieldTable::default());
    assert_eq!(without(delivery), without(copy), "{id}");
    assert_eq!(delivery.routing_key, copy.routing_key, "{id}");
}
