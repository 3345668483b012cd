//! The Kafka source on a real broker.

mod beginning;
mod exported;
mod faults;
mod formats;
mod program;
mod recreated;
mod reload;
mod schedules;
mod tombstones;
mod traces;
mod transactions;

use std::{collections::BTreeMap, path::Path, process::Stdio, time::Duration};

use rdkafka::{
    ClientConfig,
    message::{Header, OwnedHeaders},
    producer::{BaseProducer, BaseRecord, Producer},
};
use redis::AsyncCommands;
use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt,
    process::Command,
    time::{Instant, sleep, timeout},
};

use crate::support::{RedisServer, answer, http, punctual::Punctual};

/// For all that should have happened long before.
const MAX_WAIT: Duration = Duration::from_secs(40);

/// A record to produce, without a timestamp.
#[derive(Clone, Debug, Default)]
struct Sent {
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(&'static str, Vec<u8>)>,
}

/// With `punctual-delay`, and its number as key and value.
fn delayed(number: u64, delay: &str) -> Sent {
    let text = Some(number.to_string().into_bytes());
    Sent { key: text.clone(), value: text, headers: vec![("punctual-delay", delay.as_bytes().to_vec())] }
}

/// Returns when the broker has all of them.
async fn produce(brokers: &str, topic: &str, records: impl IntoIterator<Item = Sent>) {
    let (brokers, topic, records) = (brokers.to_owned(), topic.to_owned(), records.into_iter().collect::<Vec<_>>());
    let produced = tokio::task::spawn_blocking(move || {
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", brokers).set("enable.idempotence", "true");
        let producer: BaseProducer = settings.create().expect("valid settings");
        for sent in &records {
            let headers = sent
                .headers
                .iter()
                .fold(OwnedHeaders::new(), |headers, (key, value)| headers.insert(Header { key, value: Some(value) }));
            let mut record = BaseRecord::<[u8], [u8]>::to(&topic).headers(headers);
            if let Some(key) = &sent.key {
                record = record.key(key);
            }
            if let Some(value) = &sent.value {
                record = record.payload(value);
            }
            producer.send(record).expect("there is room");
        }
        producer.flush(MAX_WAIT).expect("the broker takes them");
    });
    produced.await.expect("it is produced");
}

/// Kafka's own console producer; a line is `name:value,name:value<TAB>key<TAB>value`, `NULL` is null.
pub async fn console_producer(brokers: &str, topic: &str, lines: &str) {
    let libs = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/kafka/libs");
    let mut producer = Command::new("java")
        .args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"])
        .arg(libs.join("*"))
        .args(["org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", brokers, "--topic", topic])
        .args(["--property", "parse.headers=true", "--property", "parse.key=true", "--property", "null.marker=NULL"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("java is installed");
    producer.stdin.take().expect("piped").write_all(lines.as_bytes()).await.expect("it reads");
    let output = timeout(MAX_WAIT, producer.wait_with_output()).await.expect("it ends").expect("it ended");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("ERROR"), "{errors}");
}

/// From `topic` into the list `jobs` of the same Redis.
fn into_list(redis: &str, brokers: &str, topic: &str) -> Value {
    json!({
        "redis": { "url": redis },
        "sinks": { "jobs": { "type": "redis_list", "key": "jobs" } },
        "routes": { "jobs": { "sink": "jobs" } },
        "sources": { "in": source(brokers, topic, "jobs") },
    })
}

fn source(brokers: &str, topic: &str, route: &str) -> Value {
    json!({
        "type": "kafka", "brokers": [brokers], "topics": [topic], "group_id": topic, "start": "earliest",
        "route": route, "options": { "session.timeout.ms": 6000, "heartbeat.interval.ms": 500 },
    })
}

/// How often each number is in the list `jobs`.
async fn arrived(redis: &RedisServer) -> BTreeMap<u64, usize> {
    let jobs: Vec<String> = redis.connection().await.lrange("jobs", 0, -1).await.expect("a list");
    jobs.iter().fold(BTreeMap::new(), |mut counts, job| {
        *counts.entry(job.parse().expect("a number")).or_default() += 1;
        counts
    })
}

async fn stats(punctual: &Punctual, route: &str) -> Value {
    answer(http::client().get(punctual.url(&format!("/v1/routes/{route}")))).await.json
}

/// The only source in the reply of GET /v1/sources.
async fn status(punctual: &Punctual) -> Value {
    answer(http::client().get(punctual.url("/v1/sources"))).await.json["sources"][0].clone()
}

/// Polls for what is not announced.
async fn until(what: &str, mut look: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + MAX_WAIT;
    while !look().await {
        assert!(Instant::now() < deadline, "not within {MAX_WAIT:?}: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}
