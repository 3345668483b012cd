//! Fail-overs under load, and what they cost: with durable replies, which all replicas confirm, and without.
//!
//! The plain run has each fault once. With `tests/run.sh --full` each happens three times, also without durable replies, and the
//! old master comes back each time.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::load::{self, Account, BACK_WITHIN, LAG, LARGE, Load, Replies, SMALL, WARM_UP};
use crate::{
    program::{client::Client, eventually, heavy},
    support::{
        punctual::Punctual,
        receiver::{Receiver, wall_clock},
        scale,
        sentinels::WatchedRedis,
    },
};

const MAX_WAIT: Duration = Duration::from_secs(30);
pub fn configuration(redis: &WatchedRedis, more: &str, receiver: &Receiver) -> String {
    load::configuration(&format!("{}{more}", redis.setting("")), "", receiver)
}

/// A fail-over from one master to another.
struct Switch {
    redis: WatchedRedis,
    receiver: Receiver,
    punctual: Punctual,
    load: Load,
    /// The place of the master at first.
    old: usize,
}

impl Switch {
    /// The load runs. `payload`: bytes of each message.
    async fn begin(replicas: usize, replies: Replies, payload: usize) -> Self {
        let (redis, receiver) = (WatchedRedis::start(replicas).await, Receiver::start());
        let punctual = Punctual::start(&configuration(&redis, &replies.setting(replicas), &receiver)).await;
        let load = Load::start(&Client::of(&punctual), payload);
        receiver.wait_for(WARM_UP, MAX_WAIT).await;
        let old = redis.master().await;
        Self { redis, receiver, punctual, load, old }
    }

    /// Waits until deliveries go on after the sentinels have named another master.
    /// How many milliseconds later.
    async fn recovered(&self) -> u64 {
        self.redis.switched(self.old).await;
        let named_wall = wall_clock();
        let delivered = eventually("a message is delivered again", MAX_WAIT, async || {
            let requests = self.receiver.requests();
            requests.iter().map(|request| request.arrived).find(|at| *at > named_wall).map(|at| at - named_wall)
        })
        .await;
        assert!(delivered <= BACK_WITHIN, "{delivered} ms\n{}", self.punctual.log());
        delivered
    }

    /// The old master follows the new one; then all replicas are there again, and posts are accepted.
    async fn rejoined(&self) {
        self.redis.servers[self.old].replicates().await;
        self.load.accepted_after(Instant::now(), MAX_WAIT).await;
    }

    async fn finish(self, what: &str, replies: Replies, recovered_ms: u64) -> Account {
        let log = self.punctual.log();
        assert!(log.contains("the sentinels name another redis primary"), "{log}");
        let account = self.load.finish(&self.receiver, MAX_WAIT).await;
        println!("{what}, {replies:?}: delivered {recovered_ms} ms after the new master was named; {account:?}");
        account.check(replies);
        assert!(account.refused > 0 || replies == Replies::OfMaster, "{account:?}");
        account
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_master_is_replaced_by_the_one_that_the_sentinels_name() {
    let _turn = heavy().await;
    for replies in Replies::runs() {
        let mut switch = Switch::begin(2, replies, SMALL).await;
        let old = switch.old;
        switch.redis.servers[old].kill();
        let recovered = switch.recovered().await;
        if scale::full() {
            // It comes back with its data, as a master: what it holds was delivered by the other one.
            switch.redis.servers[old].restart().await;
            switch.rejoined().await;
        }
        switch.finish("killed", replies, recovered).await.few_duplicates();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_was_frozen_is_left_and_does_no_harm_when_it_goes_on() {
    let _turn = heavy().await;
    for replies in Replies::runs() {
        let switch = Switch::begin(2, replies, SMALL).await;
        switch.redis.servers[switch.old].freeze();
        let recovered = switch.recovered().await;
        // Still a master by itself, until the sentinels demote it.
        switch.redis.servers[switch.old].resume();
        switch.rejoined().await;
        switch.finish("frozen", replies, recovered).await.few_duplicates();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn a_fail_over_under_load_costs_little() {
    let _turn = heavy().await;
    for replies in Replies::runs() {
        let switch = Switch::begin(2, replies, SMALL).await;
        switch.redis.fail_over().await;
        let unsettled = switch.redis.promoted_has("{punctual:web:0/1}").await;
        let recovered = switch.recovered().await;
        if scale::full() {
            switch.rejoined().await;
        }
        // The old master goes on for up to a second, until the sentinels see that the replica was promoted. Messages
        // that it settles in that time are still on the new one.
        let account = switch.finish("asked for", replies, recovered).await;
        println!("asked for: the replica had {unsettled} unsettled messages when it was promoted");
        assert!(account.duplicates <= unsettled, "{account:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_lagged_and_was_promoted_has_all_that_it_confirmed() {
    let _turn = heavy().await;
    // The loss shows that the replica did lag.
    for replies in scale::rounds(vec![Replies::Durable, Replies::OfMaster], Replies::runs()) {
        let mut switch = Switch::begin(1, replies, LARGE).await;
        let (old, replica) = (switch.old, 1 - switch.old);
        switch.redis.servers[replica].freeze();
        sleep(LAG).await;
        switch.redis.servers[old].kill();
        switch.redis.servers[replica].resume();
        let recovered = switch.recovered().await;
        if scale::full() {
            switch.redis.servers[old].restart().await;
            switch.rejoined().await;
        }
        let account = switch.finish("lagging", replies, recovered).await;
        match replies {
            // Duplicates are messages that were in flight while the replica lagged.
            Replies::Durable => account.few_duplicates(),
            Replies::OfMaster => assert!(account.lost > 0, "{account:?}"),
        }
    }
}
