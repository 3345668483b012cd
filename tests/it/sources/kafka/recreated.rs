//! A topic that is deleted and created again.

use serde_json::Value;

use super::{arrived, delayed, into_list, produce, status, until};
use crate::support::{RedisServer, answer, http, kafka, punctual::Punctual};

fn configuration(redis: &str, brokers: &str, topic: &str) -> Value {
    let mut configuration = into_list(redis, brokers, topic);
    configuration["sources"]["in"]["options"]["topic.metadata.refresh.interval.ms"] = 500.into();
    configuration
}

async fn until_delivered(redis: &RedisServer, punctual: &Punctual, numbers: std::ops::Range<u64>) {
    until(&format!("{numbers:?} arrive: {}", punctual.log()), async || {
        let arrived = arrived(redis).await;
        numbers.clone().all(|number| arrived.contains_key(&number))
    })
    .await;
    until("all is committed", async || status(punctual).await["depth"] == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_a_topic_that_was_created_again_are_delivered_while_old_ids_are_remembered() {
    let Some(broker) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    kafka::create_topic(&broker, &topic, 1, &[]).await;
    let redis = RedisServer::start().await;
    let punctual = Punctual::start(&configuration(&redis.url(), &broker, &topic).to_string()).await;
    produce(&broker, &topic, (0..20).map(|n| delayed(n, "1ms"))).await;
    until_delivered(&redis, &punctual, 0..20).await;
    kafka::delete_topic(&broker, &topic).await;
    kafka::create_topic(&broker, &topic, 1, &[]).await;
    produce(&broker, &topic, (100..110).map(|n| delayed(n, "1ms"))).await;
    until_delivered(&redis, &punctual, 100..110).await;
    assert!(arrived(&redis).await.values().all(|count| *count == 1));
    let (log, metrics) = (punctual.log(), answer(http::client().get(punctual.url("/metrics"))).await.text);
    let warned: Vec<_> = log.lines().filter(|line| line.contains("offsets of a partition began again")).collect();
    let place = format!("topic=\"{topic}\" partition=0");
    assert!(warned.len() == 1 && warned[0].contains(&place), "{log}");
    assert!(metrics.contains("punctual_source_offset_resets_total{source=\"in\"} 1"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_a_topic_that_was_created_again_during_a_stop_are_delivered() {
    let Some(broker) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    kafka::create_topic(&broker, &topic, 1, &[]).await;
    let redis = RedisServer::start().await;
    let mut punctual = Punctual::start(&configuration(&redis.url(), &broker, &topic).to_string()).await;
    produce(&broker, &topic, (0..20).map(|n| delayed(n, "1ms"))).await;
    until_delivered(&redis, &punctual, 0..20).await;
    punctual.terminate().await;
    kafka::delete_topic(&broker, &topic).await;
    kafka::create_topic(&broker, &topic, 1, &[]).await;
    produce(&broker, &topic, (100..110).map(|n| delayed(n, "1ms"))).await;
    punctual.restart().await;
    until_delivered(&redis, &punctual, 100..110).await;
    assert!(arrived(&redis).await.values().all(|count| *count == 1));
}
