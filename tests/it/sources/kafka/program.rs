//! Kafka's console producer, through punctual, into Kafka.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use serde_json::{Value, json};

use super::{console_producer, source, stats, until};
use crate::support::{
    RedisServer,
    kafka::{self, Record},
    punctual::Punctual,
    receiver::wall_clock,
};

/// Until the last one is written, at a debug build's pace beside other tests.
const LATE_MILLIS: i64 = 2000;

async fn start(redis: &RedisServer, broker: &str, topic: &str, target: &str, allow: Value) -> Punctual {
    let mut sink = json!({ "type": "kafka", "brokers": [broker], "topic": target });
    if !allow.is_null() {
        sink["allow"] = allow;
    }
    let configuration = json!({
        "redis": { "url": redis.url() },
        "sinks": { "out": sink },
        "routes": { "r": { "sink": "out" } },
        "sources": { "in": source(broker, topic, "r") },
    });
    Punctual::start(&configuration.to_string()).await
}

async fn drained(punctual: &Punctual, broker: &str, topic: &str, count: i64) -> Vec<Record> {
    until("all are delivered", async || {
        let stats = stats(punctual, "r").await;
        stats["pending"] == 0 && stats["unack"] == 0 && kafka::count(broker, topic).await >= Some(count)
    })
    .await;
    assert_eq!(stats(punctual, "r").await["dead"], 0);
    kafka::consume(broker, topic).await
}

fn text(bytes: Option<&Vec<u8>>) -> &str {
    str::from_utf8(bytes.expect("some")).expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_a_key_keep_their_order_in_an_ordered_flow() {
    const KEYS: usize = 20;
    const RECORDS: usize = 15;
    let Some(broker) = kafka::shared().await.filter(|_| kafka::installed()) else { return };
    let (topic, target) = (kafka::topic_name(), kafka::topic_name());
    kafka::create_topic(&broker, &topic, 3, &[]).await;
    kafka::create_topic(&broker, &target, 3, &[]).await;
    let redis = RedisServer::start().await;
    let configuration = json!({
        "redis": { "url": redis.url() },
        "sinks": { "out": { "type": "kafka", "brokers": [broker], "topic": target } },
        "routes": { "r": { "sink": "out", "flow": { "key": "{key}", "ordered": true } } },
        "sources": { "in": source(&broker, &topic, "r") },
    });
    let punctual = Punctual::start(&configuration.to_string()).await;
    let _other = Punctual::start(&configuration.to_string()).await;
    let mut lines = String::new();
    for n in 0..KEYS * RECORDS {
        writeln!(lines, "punctual-delay:500\tkey {}\t{}", n % KEYS, n / KEYS).expect("a string takes all");
    }
    console_producer(&broker, &topic, &lines).await;
    let records = drained(&punctual, &broker, &target, i64::try_from(KEYS * RECORDS).expect("few")).await;
    let mut by_key: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for record in &records {
        let number = text(record.payload.as_ref()).parse().expect("a number");
        by_key.entry(text(record.key.as_ref())).or_default().push(number);
    }
    assert_eq!(by_key.len(), KEYS);
    for (key, numbers) in by_key {
        assert_eq!(numbers, (0..RECORDS).collect::<Vec<_>>(), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_the_console_producer_arrive_once_on_time_with_their_headers() {
    let Some(broker) = kafka::shared().await.filter(|_| kafka::installed()) else { return };
    let (topic, target) = (kafka::topic_name(), kafka::topic_name());
    kafka::create_topic(&broker, &topic, 3, &[]).await;
    kafka::create_topic(&broker, &target, 3, &[("message.timestamp.type", "LogAppendTime")]).await;
    let redis = RedisServer::start().await;
    let punctual = start(&redis, &broker, &topic, &target, Value::Null).await;
    let lines = (0..1000).fold(String::new(), |mut lines, n| {
        writeln!(lines, "punctual-delay:{},X-Number:{n}\tkey {n}\tvalue {n}", 3000 + n).expect("a string takes all");
        lines
    });
    console_producer(&broker, &topic, &lines).await;
    let records = drained(&punctual, &broker, &target, 1000).await;

    let sent = kafka::consume(&broker, &topic).await;
    let sent: BTreeMap<&str, &Record> = sent.iter().map(|record| (record.header("X-Number"), record)).collect();
    assert_eq!((records.len(), sent.len()), (1000, 1000), "each once");
    let mut seen = BTreeSet::new();
    for record in &records {
        let (number, due) = (record.header("X-Number"), record.header("punctual-due").parse::<i64>().unwrap());
        let delay: i64 = 3000 + number.parse::<i64>().unwrap();
        assert_eq!(due, sent[number].timestamp + delay, "it counts from the record's timestamp");
        assert!((0..LATE_MILLIS).contains(&(record.timestamp - due)), "{number}: {} ms late", record.timestamp - due);
        assert_eq!(
            (text(record.key.as_ref()), text(record.payload.as_ref())),
            (&*format!("key {number}"), &*format!("value {number}"))
        );
        assert!(record.id().starts_with(&format!("{topic}:{}:", sent[number].partition)), "{}", record.id());
        let names: Vec<&str> = record.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["X-Number", "punctual-id", "punctual-route", "punctual-attempt", "punctual-due"]);
        assert!(seen.insert(number), "{number} twice");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_leave_as_their_scheduler_sent_them_and_tombstones_cancel() {
    let Some(broker) = kafka::shared().await.filter(|_| kafka::installed()) else { return };
    let (topic, target) = (kafka::topic_name(), kafka::topic_name());
    kafka::create_topic(&broker, &topic, 3, &[("cleanup.policy", "compact")]).await;
    kafka::create_topic(&broker, &target, 3, &[("message.timestamp.type", "LogAppendTime")]).await;
    let redis = RedisServer::start().await;
    let target_of = "{header:scheduler-target-topic}";
    let punctual = start(&redis, &broker, &topic, target_of, json!(["punctual-test-*"])).await;
    // The producer's JVM takes its time to start.
    let epoch = wall_clock() / 1000 + 30;
    let mut lines = String::new();
    let mut schedule = |n: u64, version: u64| {
        let headers = format!(
            "scheduler-epoch:{},scheduler-target-topic:{target},scheduler-target-key:key {n},X-Number:{n}",
            epoch + n % 3
        );
        writeln!(lines, "{headers}\tschedule {n}\tversion {version}").expect("a string takes all");
    };
    (0..1000).for_each(|n| schedule(n, 1));
    (100..200).for_each(|n| schedule(n, 2));
    for n in 0..100 {
        writeln!(lines, "X-Why:cancelled\tschedule {n}\tNULL").expect("a string takes all");
    }
    console_producer(&broker, &topic, &lines).await;
    let records = drained(&punctual, &broker, &target, 900).await;

    assert_eq!(records.len(), 900, "each once, and none of the cancelled");
    let mut seen = BTreeSet::new();
    for record in &records {
        let number: u64 = record.header("X-Number").parse().unwrap();
        assert!(number >= 100 && seen.insert(number), "{number}");
        let version = if number < 200 { "version 2" } else { "version 1" };
        assert_eq!((text(record.key.as_ref()), text(record.payload.as_ref())), (&*format!("key {number}"), version));
        assert_eq!(record.id(), format!("schedule {number}"));
        assert_eq!(record.header("scheduler-key"), format!("schedule {number}"));
        assert_eq!(record.header("scheduler-topic"), topic);
        let seconds: u64 = record.header("scheduler-timestamp").parse().unwrap();
        assert!((epoch - 60..epoch).contains(&seconds), "{seconds}");
        assert!(
            !record.headers.iter().any(|(name, _)| name.starts_with("scheduler-target") || name == "scheduler-epoch")
        );
        let late = record.timestamp - i64::try_from((epoch + number % 3) * 1000).unwrap();
        assert!((0..LATE_MILLIS).contains(&late), "{number}: {late} ms late");
    }
}
