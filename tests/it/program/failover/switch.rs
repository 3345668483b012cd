//! One fail-over under load, and what it cost.

use std::time::Duration;

use tokio::time::Instant;

use super::load::{Account, Load};
use crate::{
    program::{alone, client::Client, eventually},
    support::{
        punctual::Punctual,
        receiver::{Receiver, wall_clock},
        sentinels::WatchedRedis,
    },
};

/// From the new master, as the sentinels name it, to the first delivery.
const BACK_WITHIN: u64 = 5000;
const PATIENCE: Duration = Duration::from_secs(30);
/// Before the fault.
const WARM_UP: usize = 2000;
/// Of the route, which is the default.
const MAX_IN_FLIGHT: usize = 1000;

pub fn configuration(redis: &WatchedRedis, more: &str, receiver: &Receiver) -> String {
    format!(
        "redis: {{ {}{more} }}\nserver: {{ request_timeout: 3s }}\n\
         sinks: {{ hook: {{ type: http, url: '{}', timeout: 2s }} }}\n\
         routes: {{ web: {{ sink: hook, lease: 5s }} }}\n",
        redis.setting(""),
        receiver.url()
    )
}

/// A fail-over from one master to another.
pub struct Switch {
    pub redis: WatchedRedis,
    pub receiver: Receiver,
    pub punctual: Punctual,
    pub load: Load,
    /// The place of the master at first.
    pub old: usize,
}

impl Switch {
    /// The load runs. `more`: further settings of `redis`.
    pub async fn begin(replicas: usize, more: &str, payload: usize) -> Self {
        let (redis, receiver) = (WatchedRedis::start(replicas).await, Receiver::start());
        let punctual = Punctual::start(&configuration(&redis, more, &receiver)).await;
        let client = Client::of(&punctual);
        let load = Load::start(&client, payload);
        receiver.wait_for(WARM_UP, PATIENCE).await;
        let old = redis.master().await;
        Self { redis, receiver, punctual, load, old }
    }

    /// Waits until deliveries go on after the sentinels have named another master.
    pub async fn recovered(&self) -> (usize, u64, Instant) {
        let new = self.redis.switched(self.old).await;
        let (named, named_wall) = (Instant::now(), wall_clock());
        let delivered = eventually("a message is delivered again", PATIENCE, async || {
            let requests = self.receiver.requests();
            requests.iter().map(|request| request.arrived).find(|at| *at > named_wall).map(|at| at - named_wall)
        })
        .await;
        assert!(delivered <= BACK_WITHIN, "{delivered} ms\n{}", self.punctual.log());
        (new, delivered, named)
    }

    pub async fn finish(self, what: &str, recovered_ms: u64) -> Account {
        let account = self.load.finish(&self.receiver, PATIENCE).await;
        println!("{what}: delivered {recovered_ms} ms after the new master was named; {account:?}");
        assert_eq!(account.early, 0);
        account
    }
}

/// What was in flight when the master was lost may come twice: its settlements may be lost with it.
pub fn few_duplicates(account: &Account) {
    assert!(account.duplicates <= MAX_IN_FLIGHT, "{account:?}");
}

/// What was accepted by the old master alone is lost.
fn print_loss(what: &str, account: &Account) {
    let Account { accepted, refused, lost, .. } = account;
    println!("{what}, without durability: {lost} of {accepted} accepted messages lost, {refused} calls refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_master_is_replaced_by_the_one_that_the_sentinels_name() {
    let _alone = alone().await;
    let mut switch = Switch::begin(2, "", 10).await;
    let old = switch.old;
    switch.redis.servers[old].kill();
    let (new, recovered, named) = switch.recovered().await;
    let accepted = switch.load.accepted_after(named, PATIENCE).await;
    println!("killed: accepted {accepted:?} after the new master was named");

    // It comes back with its data, as a master: what it holds was delivered by the other one.
    switch.redis.servers[old].restart().await;
    switch.redis.replicates(old).await;
    assert_eq!(switch.redis.master().await, new);
    let log = switch.punctual.log();
    assert!(log.contains("the sentinels name another redis master"), "{log}");
    let account = switch.finish("killed", recovered).await;
    print_loss("killed", &account);
    few_duplicates(&account);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_was_frozen_is_left_and_does_no_harm_when_it_goes_on() {
    let _alone = alone().await;
    let switch = Switch::begin(2, "", 10).await;
    switch.redis.freeze(switch.old);
    let (new, recovered, named) = switch.recovered().await;
    let accepted = switch.load.accepted_after(named, PATIENCE).await;
    println!("frozen: accepted {accepted:?} after the new master was named");
    // Still a master by itself, until the sentinels demote it.
    switch.redis.resume(switch.old);
    switch.redis.replicates(switch.old).await;
    assert_eq!(switch.redis.master().await, new);
    let account = switch.finish("frozen", recovered).await;
    print_loss("frozen", &account);
    few_duplicates(&account);
}
