//! Every record gets into Redis, and none twice, while brokers, Redis or instances fail.

use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use super::{arrived, delayed, into_list, produce, stats, status, until};
use crate::support::{
    RedisServer,
    kafka::{self, Broker},
    punctual::Punctual,
};

async fn all_arrive(redis: &RedisServer, punctual: &Punctual, count: u64) {
    until(&format!("{count} arrive, and nothing is left"), async || {
        let stats = stats(punctual, "jobs").await;
        stats["pending"] == 0 && stats["unack"] == 0 && arrived(redis).await.len() as u64 >= count
    })
    .await;
    let counts = arrived(redis).await;
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), (0..count).collect::<Vec<_>>());
    let twice = counts.values().filter(|count| **count > 1).count();
    assert_eq!(twice, 0, "what is read again has the id that it had");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_during_ingest_loses_nothing_and_repeats_nothing_delivered() {
    let Some(broker) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    kafka::create_topic(&broker, &topic, 3, &[]).await;
    let redis = RedisServer::start().await;
    let mut punctual = Punctual::start(&into_list(&redis.url(), &broker, &topic).to_string()).await;
    let producing = tokio::spawn({
        let (broker, topic) = (broker.clone(), topic.clone());
        async move {
            for part in 0..30 {
                produce(&broker, &topic, (part * 200..part * 200 + 200).map(|n| delayed(n, "10ms"))).await;
            }
        }
    });
    until("some are delivered", async || arrived(&redis).await.len() > 500).await;
    punctual.kill().await;
    punctual.restart().await;
    producing.await.expect("it produces");
    all_arrive(&redis, &punctual, 6000).await;
    until("all is committed", async || status(&punctual).await["depth"] == 0).await;
    all_arrive(&redis, &punctual, 6000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_is_down_nothing_is_lost_and_the_group_keeps_its_member() {
    let Some(broker) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    kafka::create_topic(&broker, &topic, 3, &[]).await;
    let mut redis = RedisServer::start().await;
    let punctual = Punctual::start(&into_list(&redis.url(), &broker, &topic).to_string()).await;
    produce(&broker, &topic, (0..1000).map(|n| delayed(n, "1s"))).await;
    until("some are taken", async || status(&punctual).await["state"] == "running").await;
    redis.kill();
    produce(&broker, &topic, (1000..6000).map(|n| delayed(n, "1s"))).await;
    until("it is reported", async || status(&punctual).await["state"] == "failing").await;
    // Some ticks with a full backlog, so that partitions are paused. Nothing announces that.
    sleep(Duration::from_secs(4)).await;
    redis.restart().await;
    all_arrive(&redis, &punctual, 6000).await;
    assert_eq!(status(&punctual).await["state"], "running");
    assert!(!punctual.log().contains("partitions were revoked"), "{}", punctual.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebalance_while_redis_is_down_does_not_end_the_reading() {
    let Some(broker) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    kafka::create_topic(&broker, &topic, 3, &[]).await;
    let mut redis = RedisServer::start().await;
    let punctual = Punctual::start(&into_list(&redis.url(), &broker, &topic).to_string()).await;
    produce(&broker, &topic, (0..100).map(|n| delayed(n, "1s"))).await;
    until("they are taken", async || status(&punctual).await["depth"] == 0).await;
    redis.kill();
    produce(&broker, &topic, (100..6000).map(|n| delayed(n, "1s"))).await;
    until("it is reported", async || status(&punctual).await["state"] == "failing").await;
    // Some ticks with a full backlog, so that partitions are paused. Nothing announces that.
    sleep(Duration::from_secs(4)).await;
    until("the depth is reported", async || status(&punctual).await["depth"] == 5900).await;
    kafka::Member::join(&broker, &topic, &topic).await.leave().await;
    until("it has them all again", async || punctual.log().matches("partitions were assigned").count() >= 3).await;
    redis.restart().await;
    all_arrive(&redis, &punctual, 6000).await;
    assert_eq!(status(&punctual).await["state"], "running");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_in_flight_lands_and_is_committed_before_partitions_are_revoked() {
    let Some(broker) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    kafka::create_topic(&broker, &topic, 3, &[]).await;
    let redis = RedisServer::start().await;
    let punctual = Punctual::start(&into_list(&redis.url(), &broker, &topic).to_string()).await;
    until("it has its partitions", async || punctual.log().contains("partitions were assigned")).await;
    // Shorter than a batch may take to land.
    let mut pause = redis::cmd("CLIENT");
    pause.arg("PAUSE").arg(3000).arg("ALL").exec_async(&mut redis.connection().await).await.expect("paused");
    produce(&broker, &topic, (0..300).map(|n| delayed(n, "1h"))).await;
    // It reads nothing that is committed, and commits nothing.
    let other = kafka::Member::join(&broker, &topic, &topic).await;
    let committed = kafka::committed(&broker, &topic, &topic, 3).await;
    assert!(committed.iter().flatten().sum::<i64>() > 0, "{committed:?} of 300: {}", punctual.log());
    other.leave().await;
    until("the rest is taken", async || stats(&punctual, "jobs").await["pending"] == 300).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_topic_is_reported_until_it_is_created() {
    let Some(broker) = kafka::shared().await else { return };
    let (topic, missing) = (kafka::topic_name(), kafka::topic_name());
    kafka::create_topic(&broker, &topic, 1, &[]).await;
    let redis = RedisServer::start().await;
    let mut configuration = into_list(&redis.url(), &broker, &topic);
    let source = &mut configuration["sources"]["in"];
    source["topics"] = vec![topic.clone(), missing.clone()].into();
    source["options"]["topic.metadata.refresh.interval.ms"] = 500.into();
    let punctual = Punctual::start(&configuration.to_string()).await;
    let is_reported = |status: &Value| {
        status["state"] == "failing"
            && status["last_error"].as_str().is_some_and(|error| error.contains("nknown topic"))
    };
    until("it is reported", async || is_reported(&status(&punctual).await)).await;
    produce(&broker, &topic, [delayed(0, "1ms")]).await;
    all_arrive(&redis, &punctual, 1).await;
    assert!(is_reported(&status(&punctual).await), "a record of the other topic changes nothing");
    kafka::create_topic(&broker, &missing, 1, &[]).await;
    until("it is there", async || status(&punctual).await["state"] == "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_instances_share_a_group_over_a_rebalance_and_a_stop() {
    for strategy in ["range,roundrobin", "cooperative-sticky"] {
        let Some(broker) = kafka::shared().await else { return };
        let topic = kafka::topic_name();
        kafka::create_topic(&broker, &topic, 4, &[]).await;
        let redis = RedisServer::start().await;
        let mut configuration = into_list(&redis.url(), &broker, &topic);
        configuration["sources"]["in"]["options"]["partition.assignment.strategy"] = strategy.into();
        let mut first = Punctual::start(&configuration.to_string()).await;
        let producing = tokio::spawn({
            let (broker, topic) = (broker.clone(), topic.clone());
            async move {
                for part in 0..20 {
                    produce(&broker, &topic, (part * 100..part * 100 + 100).map(|n| delayed(n, "2s"))).await;
                    sleep(Duration::from_millis(100)).await;
                }
            }
        });
        until("the first has some", async || stats(&first, "jobs").await["pending"].as_u64() > Some(100)).await;
        let second = Punctual::start(&configuration.to_string()).await;
        until("the second has a share", async || second.log().contains("partitions were assigned")).await;
        until("the first gave some up", async || first.log().contains("partitions were revoked")).await;
        let exit = first.terminate().await;
        assert_eq!(exit.code, Some(0), "{}", first.log());
        producing.await.expect("it produces");
        all_arrive(&redis, &second, 2000).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_killed_is_waited_for() {
    let Some(mut broker) = Broker::start().await else { return };
    kafka::create_topic(&broker.address(), "t", 3, &[]).await;
    let redis = RedisServer::start().await;
    let mut punctual = Punctual::start(&into_list(&redis.url(), &broker.address(), "t").to_string()).await;
    produce(&broker.address(), "t", (0..1000).map(|n| delayed(n, "1s"))).await;
    all_arrive(&redis, &punctual, 1000).await;
    broker.kill();
    until("it is reported", async || status(&punctual).await["state"] == "failing").await;
    broker.restart().await;
    until("it is back", async || status(&punctual).await["state"] == "running").await;
    produce(&broker.address(), "t", (1000..2000).map(|n| delayed(n, "1s"))).await;
    all_arrive(&redis, &punctual, 2000).await;
    broker.kill();
    let exit = punctual.terminate().await;
    assert_eq!(exit.code, Some(0), "it stops without a broker, too: {}", punctual.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_offsets_of_records_that_a_full_route_took_are_committed_while_others_wait() {
    let Some(broker) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    kafka::create_topic(&broker, &topic, 1, &[]).await;
    let redis = RedisServer::start().await;
    let mut configuration = into_list(&redis.url(), &broker, &topic);
    configuration["routes"]["jobs"]["limits"]["messages"] = 10.into();
    produce(&broker, &topic, (0..50).map(|n| delayed(n, "1h"))).await;
    let punctual = Punctual::start(&configuration.to_string()).await;
    until("ten are committed", async || kafka::committed(&broker, &topic, &topic, 1).await == [Some(10)]).await;
    assert_eq!(stats(&punctual, "jobs").await["pending"], 10);
    assert_eq!(status(&punctual).await["depth"], 40);
    assert_eq!(punctual.log().matches("cannot take messages").count(), 1, "{}", punctual.log());
}
