//! A lone message is announced by its primary, and so leaves in time.

use std::time::Duration;

use super::{OLD, PARTITIONS, Partition, REPLICA};
use crate::{
    program::{
        alone,
        client::Client,
        eventually,
        failover::load::{BACK_WITHIN, configuration},
        p99,
    },
    support::{
        cluster::{ClusterRedis, FailOver},
        punctual::Punctual,
        receiver::{Receiver, Request, wall_clock},
        scale,
    },
};

const MAX_WAIT: Duration = Duration::from_secs(10);
/// Milliseconds until a lone message is due: so long that no poll is under way for it, and shortly.
const DUE: [u64; 2] = [1200, 50];
/// At the 99th percentile. A debug build on a busy machine keeps the first one; the printed number is the one that counts.
fn most_late() -> u64 {
    scale::rounds(200, 20)
}

/// Lone messages of each partition, with each delay.
fn rounds() -> [u32; 2] {
    scale::rounds([1, 6], [10, 100])
}

struct Lone {
    redis: ClusterRedis,
    receiver: Receiver,
    _punctual: Punctual,
    client: Client,
    partitions: Vec<Partition>,
    posted: u32,
}

impl Lone {
    async fn start() -> Self {
        let (redis, receiver) = (ClusterRedis::start().await, Receiver::start());
        let partitions = Partition::of_web(&redis).await;
        let route = format!(", partitions: {PARTITIONS}");
        let punctual = Punctual::start(&configuration(&redis.setting(), &route, &receiver)).await;
        let client = Client::of(&punctual);
        let mut lone = Self { redis, receiver, _punctual: punctual, client, partitions, posted: 0 };
        // The heads. A claimer sleeps until its one is due, unless it is woken up.
        lone.post(3_600_000).await;
        lone
    }

    /// One message to each partition.
    async fn post(&mut self, delay: u64) {
        for partition in &self.partitions {
            let ids = (self.posted..).map(|n| format!("m{n}"));
            let id = ids.inspect(|_| self.posted += 1).find(|id| partition.has(id)).expect("one in six");
            self.client.schedule("web", &format!(r#"{{"id":"{id}","delay":{delay},"payload":""}}"#)).await;
        }
    }

    /// Posts lone messages, and measures how late each is delivered.
    async fn measure(&mut self, what: &str) {
        for (delay, rounds) in DUE.into_iter().zip(rounds()) {
            let from = self.receiver.count();
            for round in 1..=rounds {
                self.post(delay).await;
                let count = from + self.partitions.len() * usize::try_from(round).expect("small");
                self.receiver.wait_for(count, MAX_WAIT).await;
            }
            let requests = self.receiver.requests_behind(from);
            let late = |request: &Request| request.arrived.checked_sub(request.due()).expect("not early");
            let late: Vec<u64> = requests.iter().map(late).collect();
            let (p99, most) = (p99(late.clone()), late.iter().max().copied().unwrap_or_default());
            println!(
                "cluster: {what}: {} lone messages due in {delay} ms: {p99} ms late (p99), {most} at most",
                late.len()
            );
            assert!(p99 < most_late(), "{late:?}");
        }
    }

    /// Waits until the servers have a subscriber to each partition's wake-ups.
    async fn subscribed(&self, what: &str) {
        let from = wall_clock();
        eventually("wake-ups have a subscriber", MAX_WAIT, async || {
            for partition in &self.partitions {
                if self.redis.subscribers(&partition.tag).await == 0 {
                    return None;
                }
            }
            Some(())
        })
        .await;
        let took = wall_clock() - from;
        println!("cluster: {what}: subscribed after {took} ms");
        assert!(took <= BACK_WITHIN, "{took} ms");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lone_messages_of_all_partitions_leave_in_time_also_after_a_fail_over() {
    let _alone = alone().await;
    let mut lone = Lone::start().await;
    lone.measure("at first").await;
    let (old, slot) = (OLD, lone.partitions[0].slot);
    assert_eq!(lone.partitions[0].primary, old);
    lone.redis.kill(old);
    assert_eq!(lone.redis.switched(slot, old).await, REPLICA);
    lone.subscribed("after a fail-over").await;
    lone.measure("after a fail-over").await;
    if scale::full() {
        lone.redis.restart(old).await;
        lone.redis.is_well().await;
        lone.redis.fail_over(old, FailOver::Agreed).await;
        assert_eq!(lone.redis.switched(slot, REPLICA).await, old);
        lone.subscribed("after an agreed one").await;
        lone.measure("after an agreed one").await;
        lone.redis.move_slots(slot..=slot, 1).await;
        lone.subscribed("after a slot moved").await;
        lone.measure("after a slot moved").await;
    }
}
