//! Messages that were exported as dead letters and imported again.

use lapin::{
    BasicProperties,
    types::{AMQPValue, DecimalValue, FieldTable, LongString},
};
use serde_json::{Value, json};

use super::{arguments, configuration, declare_in, publish, until, wait_for, with_headers};
use crate::support::{RabbitMq, punctual::Punctual, rabbitmq::durable};

/// A header of each type.
fn all_types() -> Vec<(&'static str, AMQPValue)> {
    let table = arguments(&[("a\nb", AMQPValue::Void), ("level", AMQPValue::LongLongInt(i64::MAX))]);
    let array = vec![AMQPValue::FieldTable(table), AMQPValue::Boolean(true), AMQPValue::LongString("x".into())];
    vec![
        ("array", AMQPValue::FieldArray(array.into())),
        ("bool", AMQPValue::Boolean(false)),
        ("bytes", AMQPValue::ByteArray(vec![0, 255].into())),
        ("decimal", AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 314 })),
        ("double", AMQPValue::Double(0.1 + 0.2)),
        ("float", AMQPValue::Float(f32::MIN_POSITIVE)),
        ("int16", AMQPValue::ShortInt(-3)),
        ("int64", AMQPValue::LongLongInt(i64::MIN)),
        ("int8", AMQPValue::ShortShortInt(-128)),
        ("latin", AMQPValue::LongString(LongString::from(vec![0xe9]))),
        ("level", AMQPValue::LongInt(5)),
        ("odd name", AMQPValue::LongString("a\nb".into())),
        ("table", AMQPValue::FieldTable(arguments(&[("n", AMQPValue::LongUInt(u32::MAX))]))),
        ("text", AMQPValue::LongString("é".into())),
        ("time", AMQPValue::Timestamp(1_700_000_000)),
        ("void", AMQPValue::Void),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_exported_and_imported_with_headers_of_every_type_and_all_properties() {
    let (server, name) = (RabbitMq::shared().await, "exported");
    server.declare_exchange(name).await;
    declare_in(server, name, "classic").await;
    let once = "r: { sink: mq, retry: { max_attempts: 1 } }";
    let punctual = Punctual::start(&configuration(server, name, "embedded", "").replace("r: { sink: mq }", once)).await;
    let properties = with_headers(&all_types(), "m 1")
        .with_timestamp(1_700_000_001)
        .with_cluster_id("cluster".into())
        .with_content_type("text/a\nb".into())
        .with_correlation_id("c\n7".into())
        .with_priority(7);
    publish(server, name, vec![(properties.clone(), b"\0body".to_vec())]).await;
    // No queue is bound.
    until(&punctual, "/v1/routes/r", |stats| stats["dead"] == 1).await;
    let exported = punctual.command(&["dead", "export", "r"]).await;
    let shown: Value = serde_json::from_str(&exported.out).expect("one line of JSON");
    let header = |name: &str| shown["headers"].as_array().unwrap().iter().find(|one| one["name"] == name).unwrap();
    assert_eq!(header("level"), &json!({ "name": "level", "type": "int32", "value": 5 }));
    assert_eq!(header("int64")["value"], "-9223372036854775808");
    assert_eq!(header("text"), &json!({ "name": "text", "value": "é" }));

    let purged = punctual.command(&["dead", "purge", "r", "--all", "--yes"]).await;
    assert_eq!(purged.code, Some(0), "{purged:?}");
    server.declare_queue(name, name, "k", durable()).await;
    let imported = punctual.command_with_input(&["import", "r"], exported.out.as_bytes()).await;
    assert_eq!(imported.out, "1 scheduled\n", "{imported:?}");
    let (_, got) = wait_for(server, name, 1).await.remove(0);
    assert_eq!(got.payload, b"\0body");
    assert_eq!(without_own(&got.properties), properties.with_delivery_mode(2));
}

/// As a producer sent it, without the headers of punctual.
fn without_own(properties: &BasicProperties) -> BasicProperties {
    let mut headers = FieldTable::default();
    for (name, value) in properties.headers().as_ref().expect("headers").inner() {
        if !name.as_str().starts_with("punctual-") {
            headers.insert(name.clone(), value.clone());
        }
    }
    properties.clone().with_headers(headers)
}
