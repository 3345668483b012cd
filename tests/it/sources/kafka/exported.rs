//! Records that were exported as dead letters and imported again.

use rdkafka::{
    ClientConfig,
    message::{Header, OwnedHeaders},
    producer::{BaseProducer, BaseRecord, Producer},
};
use serde_json::{Value, json};

use super::{MAX_WAIT, source, stats, until};
use crate::support::{RedisServer, kafka, punctual::Punctual};

const HEADERS: [(&str, Option<&[u8]>); 9] = [
    ("z", Some(b"1")),
    ("a", Some(b"2")),
    ("z", Some(b"3")),
    ("bytes", Some(b"\xff\0")),
    ("null", None),
    ("empty", Some(b"")),
    ("two words", Some(b"a\nb")),
    ("null", None),
    ("B", Some(b"text")),
];

async fn produce(brokers: &str, topic: &str) {
    let (brokers, topic) = (brokers.to_owned(), topic.to_owned());
    let produced = tokio::task::spawn_blocking(move || {
        let producer: BaseProducer = ClientConfig::new().set("bootstrap.servers", brokers).create().expect("settings");
        let headers =
            HEADERS.into_iter().fold(OwnedHeaders::new(), |all, (key, value)| all.insert(Header { key, value }));
        let record = BaseRecord::<[u8], [u8]>::to(&topic).headers(headers).key(b"\xff\0").payload(b"value");
        producer.send(record).expect("there is room");
        producer.flush(MAX_WAIT).expect("the broker takes it");
    });
    produced.await.expect("it is produced");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_exported_and_imported_with_its_key_and_its_headers_in_their_order() {
    let Some(broker) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    let target = format!("{topic}-r");
    kafka::create_topic(&broker, &topic, 1, &[]).await;
    let redis = RedisServer::start().await;
    let configuration = json!({
        "redis": { "url": redis.url() },
        "sinks": { "out": {
            "type": "kafka", "brokers": [broker], "topic": format!("{topic}-{{route}}"), "allow": [format!("{topic}-*")],
        } },
        "routes": { "r": { "sink": "out", "retry": { "max_attempts": 1 } } },
        "sources": { "in": source(&broker, &topic, "r") },
    });
    let mut punctual = Punctual::start(&configuration.to_string()).await;
    produce(&broker, &topic).await;
    until("it is dead, as there is no topic", async || stats(&punctual, "r").await["dead"] == 1).await;
    let exported = punctual.command(&["dead", "export", "r"]).await;
    let shown: Value = serde_json::from_str(&exported.out).expect("one line of JSON");
    assert_eq!((&shown["key"], &shown["key_base64"]), (&Value::Null, &json!("/wA=")));
    assert_eq!(shown["headers"][0], json!({ "name": "z", "type": "string", "value": "1" }));
    assert_eq!(shown["headers"][1], json!({ "name": "a", "value": "2" }));
    assert_eq!(shown["headers"][3], json!({ "name": "bytes", "type": "bytes", "value": "/wA=" }));
    assert_eq!(shown["headers"][4], json!({ "name": "null", "type": "null", "value": null }));

    let purged = punctual.command(&["dead", "purge", "r", "--all", "--yes"]).await;
    assert_eq!(purged.code, Some(0), "{purged:?}");
    // A producer that found no topic asks for it again only after a while.
    assert_eq!(punctual.terminate().await.code, Some(0));
    kafka::create_topic(&broker, &target, 1, &[]).await;
    let punctual = Punctual::start(&configuration.to_string()).await;
    let imported = punctual.command_with_input(&["import", "r"], exported.out.as_bytes()).await;
    assert_eq!(imported.out, "1 scheduled\n", "{imported:?}");
    until("it is delivered", async || !kafka::consume(&broker, &target).await.is_empty()).await;
    let records = kafka::consume(&broker, &target).await;
    assert_eq!(records[0].key.as_deref(), Some(&b"\xff\0"[..]));
    let mut seen = records[0].any_headers.clone();
    seen.retain(|(name, _)| !name.starts_with("punctual-"));
    assert_eq!(seen, HEADERS.map(|(name, value)| (name.to_owned(), value.map(<[u8]>::to_vec))));
}
