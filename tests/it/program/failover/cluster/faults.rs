//! A primary fails, and a replica takes its place.

use std::time::Duration;

use tokio::time::sleep;

use super::{OLD, PARTITIONS, Partition, REPLICA, Run};
use crate::{
    program::{
        alone,
        client::Client,
        failover::load::{LAG, LARGE, Replies, SMALL, configuration},
    },
    support::{cluster::ClusterRedis, punctual::Punctual, receiver::Receiver, scale},
};

const PATIENCE: Duration = Duration::from_secs(30);
/// Milliseconds: longer than it takes to end a primary and an instance.
const DUE_IN: u64 = 4000;

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_primary_is_replaced_by_its_replica() {
    let _alone = alone().await;
    for replies in Replies::runs() {
        let mut run = Run::begin(replies, SMALL).await;
        run.redis.kill(OLD);
        let delivered = run.recovered().await;
        // It comes back with its data, and follows: what it holds was delivered by the other one.
        run.redis.restart(OLD).await;
        run.rejoined().await;
        let account = run.finish("killed", &[delivered]).await;
        assert!(account.refused > 0, "{account:?}");
        account.few_duplicates();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_was_frozen_is_left_and_does_no_harm_when_it_goes_on() {
    let _alone = alone().await;
    for replies in Replies::runs() {
        let mut run = Run::begin(replies, SMALL).await;
        run.redis.freeze(OLD);
        let delivered = run.recovered().await;
        // Still a primary by itself, until another node tells it.
        run.redis.resume(OLD);
        run.rejoined().await;
        let account = run.finish("frozen", &[delivered]).await;
        assert!(account.refused > 0, "{account:?}");
        account.few_duplicates();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_of_a_cluster_that_lagged_and_was_promoted_has_all_that_it_confirmed() {
    let _alone = alone().await;
    for replies in Replies::runs() {
        let mut run = Run::begin(replies, LARGE).await;
        run.redis.freeze(REPLICA);
        sleep(scale::rounds(LAG / 2, LAG)).await;
        run.redis.kill(OLD);
        run.redis.resume(REPLICA);
        let delivered = run.recovered().await;
        if scale::full() {
            run.redis.restart(OLD).await;
            run.rejoined().await;
        }
        let account = run.finish("lagging", &[delivered]).await;
        match replies {
            // What was in flight while it lagged.
            Replies::Durable => account.few_duplicates(),
            // It did lag.
            Replies::OfMaster => assert!(account.lost > 0, "{account:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_starts_without_one_primary_delivers_what_the_others_have() {
    let _alone = alone().await;
    let (mut redis, receiver) = (ClusterRedis::start().await, Receiver::start());
    for place in 0..redis.count() {
        let mut connection = redis.server(place).connection().await;
        let set = redis::cmd("CONFIG").arg(&["SET", "cluster-require-full-coverage", "no"]).to_owned();
        set.exec_async(&mut connection).await.expect("a server of now");
    }
    let partitions = Partition::of_web(&redis).await;
    let configuration = configuration(&redis.setting(), &format!(", partitions: {PARTITIONS}"), &receiver);
    let mut punctual = Punctual::start(&configuration).await;
    let client = Client::of(&punctual);
    for partition in &partitions {
        let id = partition.an_id("m");
        client.schedule("web", &format!(r#"{{"id":"{id}","delay":{DUE_IN},"payload":""}}"#)).await;
    }
    let with_routes = redis.primary_of(redis.slot("punctual:routes").await).await;
    let gone = redis.primaries().await.into_iter().find(|one| *one != with_routes).expect("one of three");
    let replica = redis.replica_of(gone).await;
    punctual.terminate().await;
    redis.kill(replica);
    redis.kill(gone);
    let punctual = Punctual::spawn(&configuration, &[]);
    let others = partitions.iter().filter(|one| one.primary != gone).count();
    receiver.wait_for(others, PATIENCE).await;
    assert!(receiver.requests().iter().all(|one| partitions.iter().any(|p| p.has(one.id()) && p.primary != gone)));
    assert_eq!(Client::of(&punctual).readiness().await.status, 503);
    redis.restart(gone).await;
    receiver.wait_for(partitions.len(), PATIENCE).await;
}
