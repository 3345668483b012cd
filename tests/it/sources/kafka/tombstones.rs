//! Records without a value.

use serde_json::json;

use super::{Sent, delayed, produce, source, until};
use crate::support::{RedisServer, answer, http, kafka, punctual::Punctual};

#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_with_a_due_time_follows_its_record_and_one_that_cancels_nothing_is_counted() {
    let without_due_time = Sent { key: Some(b"7".to_vec()), ..Sent::default() };
    let records = [delayed(7, "1s"), Sent { value: None, ..delayed(7, "1010") }, without_due_time];
    let Some((seen, metrics)) = through("cancel", records, 2).await else { return };
    assert_eq!(seen, [Some(b"7".to_vec()), None]);
    assert!(metrics.contains("punctual_source_skipped_total{source=\"in\"} 1"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_is_passed_on_in_its_place_where_records_are_plain() {
    let plain =
        |value: Option<&str>| Sent { key: Some(b"7".to_vec()), value: value.map(Into::into), ..Sent::default() };
    let records = [plain(Some("created")), plain(None), plain(Some("again")), plain(None)];
    let Some((seen, metrics)) = through("forward", records, 4).await else { return };
    let (created, again) = (Some(b"created".to_vec()), Some(b"again".to_vec()));
    assert_eq!(seen, [created, None, again, None]);
    assert!(metrics.contains("punctual_source_skipped_total{source=\"in\"} 0"), "{metrics}");
}

/// Sends `records`, all of key 7, through a source with these `tombstones` into another topic. Returns the `count` values
/// that arrive, in their order, and the metrics. `None`: there is no broker.
async fn through<const N: usize>(
    tombstones: &str,
    records: [Sent; N],
    count: usize,
) -> Option<(Vec<Option<Vec<u8>>>, String)> {
    let broker = kafka::shared().await?;
    let (topic, target) = (kafka::topic_name(), kafka::topic_name());
    kafka::create_topic(&broker, &topic, 1, &[]).await;
    kafka::create_topic(&broker, &target, 1, &[]).await;
    let redis = RedisServer::start().await;
    let mut in_source = source(&broker, &topic, "r");
    in_source["tombstones"] = json!(tombstones);
    let configuration = json!({
        "redis": { "url": redis.url() },
        "sinks": { "out": { "type": "kafka", "brokers": [broker], "topic": target } },
        "routes": { "r": { "sink": "out" } },
        "sources": { "in": in_source },
    });
    let punctual = Punctual::start(&configuration.to_string()).await;
    produce(&broker, &topic, records).await;
    until("all are delivered", async || kafka::consume(&broker, &target).await.len() == count).await;
    let records = kafka::consume(&broker, &target).await;
    assert!(records.iter().all(|record| record.key.as_deref() == Some(b"7")), "{records:?}");
    let metrics = answer(http::client().get(punctual.url("/metrics"))).await.text;
    Some((records.into_iter().map(|record| record.payload).collect(), metrics))
}
