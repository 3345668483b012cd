//! An operator changes who has which slots.

use super::{OLD, REPLICA, Run};
use crate::{
    program::{
        failover::load::{Replies, SMALL},
        heavy,
    },
    support::cluster::FailOver,
};

/// Another primary, which gets slots of the route.
const OTHER: usize = 1;
/// Slots without keys that move before and after that of a partition.
const AROUND: u16 = 8;

impl Run {
    /// Moves the affected partitions to the primary at `to`. How many milliseconds later all of them deliver.
    async fn moved(&self, to: usize) -> u64 {
        for slot in self.affected.iter().map(|one| one.slot) {
            self.redis.move_slots(slot - AROUND..=slot + AROUND, to).await;
            assert_eq!(self.redis.primary_of(slot).await, to);
        }
        self.delivers().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fail_over_that_the_primary_agrees_to_loses_nothing() {
    let _turn = heavy().await;
    for replies in Replies::runs() {
        let run = Run::begin(replies, SMALL).await;
        run.redis.fail_over(REPLICA, FailOver::Agreed).await;
        let delivered = run.recovered().await;
        run.rejoined().await;
        let account = run.finish("agreed", &[delivered]).await;
        assert_eq!(account.lost, 0, "{account:?}");
        account.few_duplicates();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn a_forced_fail_over_repeats_only_what_the_replica_had_not_settled() {
    let _turn = heavy().await;
    for replies in Replies::runs() {
        let run = Run::begin(replies, SMALL).await;
        run.redis.fail_over(REPLICA, FailOver::Forced).await;
        let unsettled = run.redis.promoted_has(REPLICA, &run.tags()).await;
        let delivered = run.recovered().await;
        run.rejoined().await;
        let account = run.finish("forced", &[delivered]).await;
        println!("cluster: forced: the replica had {unsettled} unsettled messages when it was promoted");
        // The old primary goes on until another node informs it. Messages that it settles in that time are still on the
        // new one.
        assert!(account.duplicates <= unsettled, "{account:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn slots_of_a_busy_route_move_to_another_primary_to_an_added_one_and_back() {
    let _turn = heavy().await;
    for replies in Replies::runs() {
        let mut run = Run::begin(replies, SMALL).await;
        let mut delivered = Vec::new();
        for to in [OTHER, OLD] {
            delivered.push(run.moved(to).await);
        }
        let added = run.redis.add_primary().await;
        for to in [added, OLD] {
            delivered.push(run.moved(to).await);
        }
        // They still answer, and know no slot.
        let removed = run.redis.remove_added().await;
        delivered.push(run.delivers().await);
        drop(removed);
        run.rejoined().await;
        delivered.push(run.delivers().await);
        let account = run.finish("slots moved, also to an added primary", &delivered).await;
        assert_eq!(account.lost, 0, "{account:?}");
        account.few_duplicates();
    }
}
