//! Faults that need a fail-over, or move a part of the queue: of the one primary, or of a primary of a cluster.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{
    caused::{Caused, Faults},
    kinds::Kind,
    nemesis::Planned,
    store::{Store, in_step},
    world::World,
};
use crate::support::{
    RedisServer,
    cluster::{ClusterRedis, FailOver},
    proxy::{Direction, Mode},
    receiver::wall_clock,
    sentinels::WatchedRedis,
};

/// A look at the primary is shorter, another fault longer.
const TURN: Duration = Duration::from_millis(300);
/// Between two looks at the primary.
const LOOK: Duration = Duration::from_millis(200);
/// Until a fail-over is asked for again.
const RETRIES: usize = 4;
const AGAIN: Duration = Duration::from_secs(15);
/// A primary does not answer for this time before it is replaced, and a vote takes a while. In milliseconds.
const DOWN_AFTER: u64 = 2000;
/// Faults with another primary of a slot.
const REPLACING: [Kind; 5] = [Kind::RedisKill, Kind::RedisFreeze, Kind::FailOver, Kind::CutOff, Kind::Slots];

pub async fn run(planned: &Planned, world: &World, faults: &Faults) {
    let Ok(mut redis) = timeout(TURN, world.redis.lock()).await else { return };
    match &mut *redis {
        Store::Sentinels(redis) => to_primary(planned, redis, &mut *world.expected.lock().await, faults).await,
        Store::Cluster(cluster) if planned.kind == Kind::Slots => move_slot(planned, world, cluster, faults).await,
        Store::Cluster(cluster) => to_shard(planned, cluster, faults).await,
    }
}

async fn to_primary(planned: &Planned, redis: &mut WatchedRedis, expected: &mut usize, faults: &Faults) {
    let old = redis.master().await;
    let fault = faults.begin(planned.kind, format!("server {old} for {:?}", planned.lasts));
    match planned.kind {
        Kind::FailOver if !redis.try_fail_over().await => return faults.withdraw(fault),
        Kind::RedisKill => {
            let before = offset(&redis.servers[old]).await;
            redis.servers[old].kill();
            note(fault, before, redis, faults).await;
            redis.switched(old).await;
            sleep(planned.lasts).await;
            redis.servers[old].restart().await;
        }
        Kind::RedisFreeze => {
            redis.servers[old].freeze();
            redis.switched(old).await;
            sleep(planned.lasts).await;
            redis.servers[old].resume();
        }
        // Clients reach it, replicas and sentinels do not.
        Kind::CutOff => {
            redis.paths[old].set(Mode::Hold(Direction::Both)).await;
            redis.switched(old).await;
            sleep(planned.lasts).await;
            redis.paths[old].set(Mode::Pass).await;
        }
        _ => {
            // On a busy machine it can fail, and the sentinels do not repeat it.
            for _ in 0..RETRIES {
                if timeout(AGAIN, redis.switched(old)).await.is_ok() {
                    break;
                }
                redis.try_fail_over().await;
            }
            redis.switched(old).await;
        }
    }
    faults.note(fault, &format!(", promoted server {}", redis.master().await));
    // It follows the new primary before the next fault: two of three servers would not be enough.
    *expected = in_step(redis).await;
    faults.end(fault);
}

/// Records fail-overs without a plan: the servers replace a primary that a busy machine held for a second or two.
pub async fn watch(world: &World, faults: &Faults) {
    let (mut looked, mut primaries) = (wall_clock(), Vec::new());
    loop {
        sleep(LOOK).await;
        let Ok(redis) = world.redis.try_lock() else { continue };
        let since = looked.saturating_sub(DOWN_AFTER);
        match &*redis {
            Store::Sentinels(redis) => {
                let mut expected = world.expected.lock().await;
                let primary = redis.master().await;
                if primary != *expected {
                    let detail = format!("without a plan, from server {expected} to {primary}");
                    let fault = faults.begin_since(since, Kind::FailOver, detail);
                    *expected = in_step(redis).await;
                    faults.end(fault);
                }
            }
            Store::Cluster(cluster) => {
                let now = cluster.primaries().await;
                let is_planned = |fault: &Caused| REPLACING.contains(&fault.kind) && fault.overlaps(looked, u64::MAX);
                if now != primaries && !primaries.is_empty() && !faults.all().iter().any(is_planned) {
                    let detail = format!("without a plan, from servers {primaries:?} to {now:?}");
                    let fault = faults.begin_since(since, Kind::FailOver, detail);
                    cluster.is_well().await;
                    faults.end(fault);
                }
                primaries = now;
            }
        }
        looked = wall_clock();
    }
}

/// Notes what each server has of the replication of a primary that was killed with `before`. It may have written after that.
async fn note(fault: usize, before: Option<u64>, redis: &WatchedRedis, faults: &Faults) {
    let mut offsets = Vec::new();
    for server in &redis.servers {
        offsets.push(if server.running().is_some() { offset(server).await } else { before });
    }
    faults.note(fault, &format!(", offsets {offsets:?}"));
}

/// `None`: it does not answer.
async fn offset(server: &RedisServer) -> Option<u64> {
    let info = server.replication().await?;
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    field("slave_repl_offset:").or_else(|| field("master_repl_offset:"))
}

async fn to_shard(planned: &Planned, cluster: &mut ClusterRedis, faults: &Faults) {
    let mut random = planned.random.clone();
    let slot = partition(planned, cluster).await;
    let old = cluster.primary_of(slot).await;
    let fault = faults.begin(planned.kind, format!("server {old} for {:?}", planned.lasts));
    match planned.kind {
        Kind::RedisKill => {
            cluster.kill(old);
            cluster.switched(slot, old).await;
            sleep(planned.lasts).await;
            cluster.restart(old).await;
        }
        Kind::RedisFreeze => {
            cluster.freeze(old);
            cluster.switched(slot, old).await;
            sleep(planned.lasts).await;
            cluster.resume(old);
        }
        Kind::CutOff => {
            cluster.cut_off(old);
            cluster.switched(slot, old).await;
            sleep(planned.lasts).await;
            cluster.rejoin(old);
        }
        _ => {
            let how = if random.chance(50) { FailOver::Agreed } else { FailOver::Forced };
            let has_begun = cluster.try_fail_over(cluster.replica_of(old).await, how).await;
            if !has_begun {
                return faults.withdraw(fault);
            }
            cluster.switched(slot, old).await;
        }
    }
    cluster.is_well().await;
    faults.end(fault);
}

/// Moves the slot of a partition with its messages to another primary.
async fn move_slot(planned: &Planned, world: &World, cluster: &ClusterRedis, faults: &Faults) {
    // The connections of the move must last, and the new primary must have memory for it.
    let (Ok(_clients), Ok(_memory)) = (world.turn(Kind::Clients).try_lock(), world.turn(Kind::Memory).try_lock())
    else {
        return;
    };
    let slot = partition(planned, cluster).await;
    let (from, primaries) = (cluster.primary_of(slot).await, cluster.primaries().await);
    let others: Vec<usize> = primaries.into_iter().filter(|place| *place != from).collect();
    let to = planned.random.clone().pick(&others);
    let fault = faults.begin(planned.kind, format!("slot {slot} from server {from} to {to}"));
    cluster.move_slots(slot..=slot, to).await;
    cluster.is_well().await;
    faults.end(fault);
}

/// The slot of a partition of a route.
async fn partition(planned: &Planned, cluster: &ClusterRedis) -> u16 {
    let mut random = planned.random.clone();
    let (route, count) =
        random.pick(&[("web", 2), ("ticks", 2), ("topic", 2), ("queue", 2), ("ordered", 1), ("rate", 1)]);
    let index = random.between(0, count - 1);
    cluster.slot(&format!("{{punctual:{route}:{index}/{count}}}")).await
}
