//! The traces of records: from Kafka over punctual to HTTP.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::json;

use super::{MAX_WAIT, Sent, delayed, produce, source};
use crate::support::{
    RedisServer, kafka,
    punctual::Punctual,
    receiver::Receiver,
    spans::{self, SeenSpan},
};

const RECORDS: u64 = 1000;

/// The context of the record with this number.
fn parent(number: u64) -> (String, String) {
    (format!("{:032x}", 0xabc_0000 + number), format!("{:016x}", 0xdef_0000 + number))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_links_every_record_with_its_request() {
    let Some(broker) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    kafka::create_topic(&broker, &topic, 3, &[]).await;
    let (redis, collector, receiver) = (RedisServer::start().await, Receiver::start(), Receiver::start());
    let configuration = json!({
        "redis": { "url": redis.url() },
        "tracing": { "otlp": { "endpoint": collector.url() } },
        "sinks": { "hook": { "type": "http", "url": receiver.url() } },
        "routes": { "r": { "sink": "hook", "partitions": 2 } },
        "sources": { "in": source(&broker, &topic, "r") },
    });
    let mut punctual = Punctual::start(&configuration.to_string()).await;
    let records = (0..RECORDS).map(|number| {
        let (trace, span) = parent(number);
        let mut record = delayed(number, "200");
        record.headers.push(("traceparent", format!("00-{trace}-{span}-01").into_bytes()));
        record
    });
    produce(&broker, &topic, records).await;
    let requests = receiver.wait_for(1000, MAX_WAIT).await;
    let sends = spans::wait_for(&collector, "send r", 1000, MAX_WAIT).await;
    let creations = spans::wait_for(&collector, "create r", 1000, MAX_WAIT).await;
    assert_eq!((requests.len(), sends.len(), creations.len()), (1000, 1000, 1000));
    let by_id = |spans: &[SeenSpan]| -> BTreeMap<String, SeenSpan> {
        spans.iter().map(|span| (span.id().to_owned(), span.clone())).collect()
    };
    let (sends, creations) = (by_id(&sends), by_id(&creations));
    let mut linked = BTreeSet::new();
    for request in &requests {
        let number: u64 = str::from_utf8(&request.body).expect("text").parse().expect("a number");
        let (creation, send) = (&creations[request.id()], &sends[request.id()]);
        let (trace, span) = parent(number);
        assert_eq!((&creation.trace, &creation.parent), (&trace, &span), "the creation continues the record's trace");
        assert_eq!(creation.attribute("punctual.via"), "in");
        assert_eq!(send.links, [(creation.trace.clone(), creation.span.clone())]);
        assert_eq!(request.header("traceparent"), send.traceparent());
        linked.insert(number);
    }
    assert_eq!(linked.len(), 1000, "1,000 of 1,000");
    assert_eq!(punctual.terminate().await.code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_keeps_its_trace_and_an_invalid_one_is_dropped() {
    let Some(broker) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    kafka::create_topic(&broker, &topic, 1, &[]).await;
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let configuration = json!({
        "redis": { "url": redis.url() },
        "sinks": { "hook": { "type": "http", "url": receiver.url() } },
        "routes": { "r": { "sink": "hook" } },
        "sources": { "in": source(&broker, &topic, "r") },
    });
    let _punctual = Punctual::start(&configuration.to_string()).await;
    let (trace, span) = parent(1);
    let valid = format!("00-{trace}-{span}-00");
    let record = |key: &str, headers: Vec<(&'static str, &str)>| Sent {
        key: Some(key.into()),
        value: Some(key.into()),
        headers: headers.into_iter().map(|(name, value)| (name, value.as_bytes().to_vec())).collect(),
    };
    let records = [
        record("valid", vec![("traceparent", &valid), ("tracestate", "a=1"), ("tracestate", "b=2")]),
        record("case", vec![("TraceParent", &valid)]),
        record("invalid", vec![("traceparent", "no"), ("tracestate", "a=1"), ("x", "1")]),
        record("twice", vec![("traceparent", &valid), ("traceparent", &valid)]),
    ];
    produce(&broker, &topic, records).await;
    let requests = receiver.wait_for(4, Duration::from_secs(30)).await;
    for (key, parent, state) in [
        ("valid", Some(&*valid), Some("a=1,b=2")),
        ("case", Some(&*valid), None),
        ("invalid", None, None),
        ("twice", None, None),
    ] {
        let request = requests.iter().find(|request| request.body == key.as_bytes()).expect("it arrived");
        let header = |name: &str| request.headers.get(name).map(|value| value.to_str().expect("text"));
        assert_eq!((header("traceparent"), header("tracestate")), (parent, state), "{key}");
    }
}
