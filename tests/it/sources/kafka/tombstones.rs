//! Records without a value.

use serde_json::json;

use super::{Sent, delayed, produce, source, until};
use crate::support::{RedisServer, answer, http, kafka, punctual::Punctual};

#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_with_a_due_time_follows_its_record_and_one_that_cancels_nothing_is_counted() {
    let Some(broker) = kafka::shared().await else { return };
    let (topic, target) = (kafka::topic_name(), kafka::topic_name());
    kafka::create_topic(&broker, &topic, 1, &[]).await;
    kafka::create_topic(&broker, &target, 1, &[]).await;
    let redis = RedisServer::start().await;
    let configuration = json!({
        "redis": { "url": redis.url() },
        "sinks": { "out": { "type": "kafka", "brokers": [broker], "topic": target } },
        "routes": { "r": { "sink": "out" } },
        "sources": { "in": source(&broker, &topic, "r") },
    });
    let punctual = Punctual::start(&configuration.to_string()).await;
    let without_due_time = Sent { key: Some(b"7".to_vec()), ..Sent::default() };
    produce(&broker, &topic, [delayed(7, "1s"), Sent { value: None, ..delayed(7, "1010") }, without_due_time]).await;
    until("both are delivered", async || kafka::consume(&broker, &target).await.len() == 2).await;
    let records = kafka::consume(&broker, &target).await;
    let seen: Vec<_> = records.iter().map(|record| (record.key.as_deref(), record.payload.as_deref())).collect();
    assert_eq!(seen, [(Some(&b"7"[..]), Some(&b"7"[..])), (Some(&b"7"[..]), None)]);
    let metrics = answer(http::client().get(punctual.url("/metrics"))).await.text;
    assert!(metrics.contains("punctual_source_skipped_total{source=\"in\"} 1"), "{metrics}");
}
