//! Where a group begins, and what it finds there.

use super::{Sent, arrived, delayed, into_list, produce, status, until};
use crate::support::{RedisServer, answer, http, kafka, punctual::Punctual};

/// Due long ago, with its number as key and value.
fn overdue(number: u64) -> Sent {
    Sent { headers: vec![("punctual-deliver-at", b"2020-01-01T00:00:00Z".to_vec())], ..delayed(number, "") }
}

async fn numbers(redis: &RedisServer) -> Vec<u64> {
    arrived(redis).await.into_keys().collect()
}

async fn skipped(punctual: &Punctual) -> u64 {
    let metrics = answer(http::client().get(punctual.url("/metrics"))).await.text;
    let line = metrics.lines().find_map(|line| line.strip_prefix("punctual_source_skipped_total{source=\"in\"} "));
    line.expect("it is counted").parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn latest_means_the_first_start_of_a_group_and_skips_nothing_later() {
    let Some(broker) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    kafka::create_topic(&broker, &topic, 2, &[]).await;
    produce(&broker, &topic, (0..10).map(|n| delayed(n, "1ms"))).await;
    let redis = RedisServer::start().await;
    let mut configuration = into_list(&redis.url(), &broker, &topic);
    configuration["sources"]["in"]["start"] = "latest".into();
    let mut punctual = Punctual::start(&configuration.to_string()).await;
    until("it has begun", async || status(&punctual).await["state"] == "running").await;
    assert_eq!(punctual.terminate().await.code, Some(0), "{}", punctual.log());
    // Nothing was ever read of either partition, nor known of the others.
    kafka::add_partitions(&broker, &topic, 4).await;
    produce(&broker, &topic, (10..110).map(|n| delayed(n, "1ms"))).await;
    punctual.restart().await;
    until("all arrive", async || arrived(&redis).await.len() >= 100).await;
    assert_eq!(numbers(&redis).await, (10..110).collect::<Vec<_>>());
    until("all is committed", async || status(&punctual).await["depth"] == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_created_later_is_read_from_its_first_record() {
    let Some(broker) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    let redis = RedisServer::start().await;
    let mut configuration = into_list(&redis.url(), &broker, &topic);
    let source = &mut configuration["sources"]["in"];
    source["start"] = "latest".into();
    source["max_overdue"] = "1h".into();
    source["options"]["topic.metadata.refresh.interval.ms"] = 500.into();
    let punctual = Punctual::start(&configuration.to_string()).await;
    let missing = async || {
        let error = status(&punctual).await["last_error"].to_string();
        error.contains("nknown topic")
    };
    until("the missing topic is reported", missing).await;
    // It finds the topic only when there is something in it.
    punctual.suspend();
    kafka::create_topic(&broker, &topic, 2, &[]).await;
    produce(&broker, &topic, (0..50).map(|n| delayed(n, "1ms")).chain([overdue(50)])).await;
    punctual.resume();
    until("all arrive", async || arrived(&redis).await.len() >= 51).await;
    assert_eq!(numbers(&redis).await, (0..51).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_outage_beyond_retention_what_is_left_is_read() {
    let Some(broker) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    kafka::create_topic(&broker, &topic, 1, &[]).await;
    let redis = RedisServer::start().await;
    let mut configuration = into_list(&redis.url(), &broker, &topic);
    configuration["sources"]["in"]["start"] = "latest".into();
    let mut punctual = Punctual::start(&configuration.to_string()).await;
    until("it has begun", async || status(&punctual).await["state"] == "running").await;
    produce(&broker, &topic, (0..10).map(|n| delayed(n, "1ms"))).await;
    until("they arrive", async || arrived(&redis).await.len() >= 10).await;
    assert_eq!(punctual.terminate().await.code, Some(0), "{}", punctual.log());
    produce(&broker, &topic, (10..30).map(|n| delayed(n, "1ms"))).await;
    kafka::delete_records(&broker, &topic, 20).await;
    punctual.restart().await;
    until("the rest arrives", async || arrived(&redis).await.len() >= 20).await;
    assert_eq!(numbers(&redis).await, (0..10).chain(20..30).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_skips_what_is_too_long_overdue_and_nothing_later() {
    let Some(broker) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    kafka::create_topic(&broker, &topic, 1, &[]).await;
    produce(&broker, &topic, (0..5).map(overdue).chain([delayed(5, "1ms")])).await;
    let redis = RedisServer::start().await;
    let mut configuration = into_list(&redis.url(), &broker, &topic);
    configuration["sources"]["in"]["max_overdue"] = "1h".into();
    let mut punctual = Punctual::start(&configuration.to_string()).await;
    until("what is fresh arrives", async || numbers(&redis).await == [5]).await;
    assert_eq!(skipped(&punctual).await, 5);
    produce(&broker, &topic, [overdue(6)]).await;
    until("what came later arrives", async || numbers(&redis).await == [5, 6]).await;
    assert_eq!(punctual.terminate().await.code, Some(0), "{}", punctual.log());
    produce(&broker, &topic, [overdue(7)]).await;
    punctual.restart().await;
    until("what came meanwhile arrives", async || numbers(&redis).await == [5, 6, 7]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_read_goes_on_after_a_restart() {
    let Some(broker) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    kafka::create_topic(&broker, &topic, 1, &[]).await;
    produce(&broker, &topic, (0..6).map(overdue)).await;
    // As it is after two of four.
    kafka::commit(&broker, &topic, &topic, (2, "first read ends at 4")).await;
    let redis = RedisServer::start().await;
    let mut configuration = into_list(&redis.url(), &broker, &topic);
    configuration["sources"]["in"]["max_overdue"] = "1h".into();
    let punctual = Punctual::start(&configuration.to_string()).await;
    until("what came later arrives", async || arrived(&redis).await.len() >= 2).await;
    assert_eq!(numbers(&redis).await, [4, 5]);
    assert_eq!(skipped(&punctual).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_group_begins_is_decided_for_all_partitions_of_all_members() {
    let Some(broker) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    kafka::create_topic(&broker, &topic, 4, &[]).await;
    produce(&broker, &topic, (0..20).map(|n| delayed(n, "1ms"))).await;
    let member = kafka::Member::join(&broker, &topic, &topic).await;
    let redis = RedisServer::start().await;
    let mut configuration = into_list(&redis.url(), &broker, &topic);
    configuration["sources"]["in"]["start"] = "latest".into();
    let punctual = Punctual::start(&configuration.to_string()).await;
    until("it has begun", async || status(&punctual).await["state"] == "running").await;
    member.leave().await;
    produce(&broker, &topic, (20..120).map(|n| delayed(n, "1ms"))).await;
    until("all arrive", async || arrived(&redis).await.len() >= 100).await;
    assert_eq!(numbers(&redis).await, (20..120).collect::<Vec<_>>());
    assert!(punctual.log().matches("partitions were assigned").count() >= 2, "{}", punctual.log());
}
