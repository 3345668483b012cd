//! A primary fails, and a replica takes its place.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::{Instant, sleep};

use super::{OLD, PARTITIONS, Partition, REPLICA, Run};
use crate::{
    program::{
        client::Client,
        failover::load::{LAG, LARGE, Replies, SMALL, configuration},
        heavy,
    },
    support::{cluster::ClusterRedis, punctual::Punctual, receiver::Receiver, scale},
};

const MAX_WAIT: Duration = Duration::from_secs(30);
/// Milliseconds: longer than it takes to end a primary and an instance.
const DUE_IN: u64 = 4000;
/// A part of a log line.
const IN_PART: &str = "is delivered meanwhile";

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_primary_is_replaced_by_its_replica() {
    let _turn = heavy().await;
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
    let _turn = heavy().await;
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
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn a_primary_that_is_cut_off_is_left_although_it_answers() {
    let _turn = heavy().await;
    for replies in Replies::runs() {
        let mut run = Run::begin_on(ClusterRedis::start_apart(&[], &[]).await, replies, SMALL).await;
        run.redis.cut_off(OLD);
        let delivered = run.recovered().await;
        // Still a primary by itself, until another node tells it.
        run.redis.rejoin(OLD);
        run.rejoined().await;
        let account = run.finish("cut off", &[delivered]).await;
        match replies {
            Replies::Durable => assert!(account.refused > 0, "{account:?}"),
            // It took messages that no replica has.
            Replies::OfMaster => assert!(account.lost > 0, "{account:?}"),
        }
        account.few_duplicates();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn a_replica_of_a_cluster_that_lagged_and_was_promoted_has_all_that_it_confirmed() {
    let _turn = heavy().await;
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
            // Duplicates are messages that were in flight while the replica lagged.
            Replies::Durable => account.few_duplicates(),
            // It did lag.
            Replies::OfMaster => assert!(account.lost > 0, "{account:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_starts_without_one_primary_delivers_what_the_others_have() {
    let _turn = heavy().await;
    let (mut redis, receiver) = (ClusterRedis::start().await, Receiver::start());
    for place in 0..redis.count() {
        let mut connection = redis.server(place).connection().await;
        let set = redis::cmd("CONFIG").arg(&["SET", "cluster-require-full-coverage", "no"]).to_owned();
        set.exec_async(&mut connection).await.expect("a server of now");
    }
    let partitions = Partition::of_web(&redis).await;
    let of = |redis: String| configuration(&redis, &format!(", partitions: {PARTITIONS}"), &receiver);
    let configuration = of(redis.setting());
    let mut punctual = Punctual::start(&configuration).await;
    let client = Client::of(&punctual);
    for partition in &partitions {
        let id = partition.an_id("m");
        client.schedule("web", &format!(r#"{{"id":"{id}","delay":{DUE_IN},"payload":""}}"#)).await;
    }
    punctual.terminate().await;
    assert_eq!(receiver.count(), 0, "it took too long");
    redis.kill(REPLICA);
    redis.kill(OLD);

    let mut punctual = Punctual::spawn(&configuration, &[]);
    let mut unregistered = Punctual::spawn(&of(format!("{}, key_prefix: other", redis.setting())), &[]);
    let others = partitions.iter().filter(|one| one.primary != OLD).count();
    // Their claims must not take the capacity of the others.
    assert!(partitions.len() - others > 1, "{partitions:?}");
    receiver.wait_for(others, MAX_WAIT).await;
    assert!(receiver.requests().iter().all(|one| partitions.iter().any(|p| p.has(one.id()) && p.primary != OLD)));
    let client = Client::of(&punctual);
    assert_eq!(client.readiness().await.status, 503);
    let partition = partitions.iter().find(|one| one.primary != OLD).expect("one of six");
    client.schedule("web", &format!(r#"{{"id":"{}","payload":""}}"#, partition.an_id("n"))).await;
    receiver.wait_for(others + 1, MAX_WAIT).await;
    assert!(punctual.log().contains(IN_PART), "{}", punctual.log());
    assert!(!unregistered.log().contains(IN_PART), "{}", unregistered.log());

    redis.restart(OLD).await;
    let back = Instant::now();
    receiver.wait_for(partitions.len() + 1, MAX_WAIT).await;
    println!("cluster: delivered {:?} after the primary was back", back.elapsed());
    punctual.ready().await;
    unregistered.ready().await;
    client.drained("web", MAX_WAIT).await;
    let ids: BTreeSet<_> = receiver.requests().iter().map(|one| one.id().to_owned()).collect();
    assert_eq!((ids.len(), receiver.count()), (partitions.len() + 1, partitions.len() + 1));
}
