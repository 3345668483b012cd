//! A primary fails, and a replica takes its place.

use tokio::time::sleep;

use super::{OLD, REPLICA, Run};
use crate::{
    program::{
        alone,
        failover::load::{LAG, LARGE, Replies, SMALL},
    },
    support::scale,
};

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
