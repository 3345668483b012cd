//! A route with partitions on all primaries of a cluster, while these fail, change their roles, come and go.
//!
//! The plain run has each fault once. With `tests/run.sh --full` each happens three times, also without durable replies, and the
//! old primary comes back each time.

mod calls;
mod faults;
mod idle;
mod planned;
mod tls;
mod wake;

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use super::load::{Account, BACK_WITHIN, Load, Replies, WARM_UP, configuration};
use crate::{
    program::{client::Client, eventually},
    support::{
        cluster::ClusterRedis,
        punctual::Punctual,
        receiver::{Receiver, wall_clock},
    },
};

const MAX_WAIT: Duration = Duration::from_secs(30);
/// Number of partitions of each route.
const PARTITIONS: u32 = 6;
/// The place of the primary with most partitions of the route, which fails, and of its replica.
const OLD: usize = 0;
const REPLICA: usize = 3;

/// A partition of a route.
#[derive(Clone, Debug)]
struct Partition {
    /// Counts from 0.
    index: u32,
    /// The hash tag of its keys, with braces.
    tag: String,
    slot: u16,
    /// The place of its primary at first.
    primary: usize,
}

impl Partition {
    /// All of a route.
    async fn all(redis: &ClusterRedis, route: &str) -> Vec<Self> {
        let mut all = Vec::new();
        for index in 0..PARTITIONS {
            let tag = format!("{{punctual:{route}:{index}/{PARTITIONS}}}");
            let slot = redis.slot(&tag).await;
            all.push(Self { index, tag, slot, primary: redis.primary_of(slot).await });
        }
        all
    }

    /// All of the route `web`. Each primary has one.
    async fn of_web(redis: &ClusterRedis) -> Vec<Self> {
        let all = Self::all(redis, "web").await;
        for primary in redis.primaries().await {
            assert!(all.iter().any(|one| one.primary == primary), "no partition at {primary}: {all:?}");
        }
        all
    }

    /// One that belongs to it.
    fn an_id(&self, prefix: &str) -> String {
        (0..1000).map(|n| format!("{prefix}{n}")).find(|id| self.has(id)).expect("one of many")
    }

    /// Whether a message with this id belongs to it.
    fn has(&self, id: &str) -> bool {
        crc32fast::hash(id.as_bytes()) % PARTITIONS == self.index
    }
}

/// A route under load, on a cluster.
struct Run {
    redis: ClusterRedis,
    receiver: Receiver,
    punctual: Punctual,
    load: Load,
    /// Partitions with their primary at `OLD`.
    affected: Vec<Partition>,
    replies: Replies,
}

impl Run {
    /// The load runs. `payload`: bytes of each message.
    async fn begin(replies: Replies, payload: usize) -> Self {
        Self::begin_on(ClusterRedis::start().await, replies, payload).await
    }

    async fn begin_on(redis: ClusterRedis, replies: Replies, payload: usize) -> Self {
        let receiver = Receiver::start();
        let mut affected = Partition::of_web(&redis).await;
        affected.retain(|one| one.primary == OLD);
        let setting = format!("{}{}", redis.setting(), replies.setting(1));
        let route = format!(", partitions: {PARTITIONS}");
        let punctual = Punctual::start(&configuration(&setting, &route, &receiver)).await;
        let load = Load::start(&Client::of(&punctual), payload);
        receiver.wait_for(WARM_UP, MAX_WAIT).await;
        Self { redis, receiver, punctual, load, affected, replies }
    }

    /// Waits until messages of each affected partition are delivered after the nodes have named another primary.
    /// How many milliseconds later.
    async fn recovered(&self) -> u64 {
        for partition in &self.affected {
            self.redis.switched(partition.slot, OLD).await;
        }
        self.delivers().await
    }

    /// Waits until messages of each affected partition are delivered that are due from now on. How many milliseconds
    /// that takes.
    async fn delivers(&self) -> u64 {
        let (mut from, now) = (self.receiver.count(), wall_clock());
        let mut first: BTreeMap<u32, u64> = BTreeMap::new();
        eventually("each partition delivers again", MAX_WAIT, async || {
            let requests = self.receiver.requests_behind(from);
            from += requests.len();
            for request in requests.iter().filter(|request| request.due() > now) {
                if let Some(partition) = self.affected.iter().find(|one| one.has(request.id())) {
                    first.entry(partition.index).or_insert(request.arrived - now);
                }
            }
            (first.len() == self.affected.len()).then_some(())
        })
        .await;
        let took = *first.values().max().expect("one is affected");
        assert!(took <= BACK_WITHIN, "{first:?} ms\n{}", self.punctual.log());
        took
    }

    /// The old primary follows the new one, all have a replica again, and posts are accepted.
    async fn rejoined(&self) {
        self.redis.is_well().await;
        self.load.accepted_after(Instant::now(), MAX_WAIT).await;
    }

    /// The hash tags of the affected partitions.
    fn tags(&self) -> Vec<String> {
        self.affected.iter().map(|one| one.tag.clone()).collect()
    }

    /// `delivered`: how many milliseconds it took each time.
    async fn finish(self, what: &str, delivered: &[u64]) -> Account {
        let account = self.load.finish(&self.receiver, MAX_WAIT).await;
        println!("cluster: {what}, {:?}: delivered after {delivered:?} ms; {account:?}", self.replies);
        account.check(self.replies);
        account
    }
}
