//! The development clock of `punctual dev`: the scripts add a time in Redis to the clock of Redis.

use redis::Value;

use super::{PartitionKeys, RedisStore, reply::Reply, script};
use crate::{
    store::{Partition, Store, StoreError},
    time::UnixMillis,
};

/// The time by which the clock is ahead, in microseconds; lua/development/clock.lua reads it.
const AHEAD_KEY: &str = "punctual:development:ahead";

/// The state of all routes on the development clock.
#[derive(Debug)]
pub struct Coming {
    /// The clock, in microseconds since the epoch.
    pub now: u64,
    /// The time by which it is ahead, in microseconds. Redis that lost its last second has an earlier one.
    pub ahead: u64,
    /// When the next message is due, after `now`; paused routes are left out.
    pub next_due: Option<UnixMillis>,
    /// The partitions with messages that are due or in flight, or with dead letters that can be forwarded.
    pub busy: Vec<Partition>,
}

impl RedisStore {
    /// `opening`: when the window of a route opens, in milliseconds; 0 while it is open.
    pub async fn coming(&self, opening: impl Fn(&str) -> u64) -> Result<Coming, StoreError> {
        let all: Vec<(Partition, &PartitionKeys)> = self
            .routes
            .iter()
            .flat_map(|(name, route)| Partition::all(name, route.settings.partitions).zip(&route.keys))
            .collect();
        let of_partitions = all
            .iter()
            .flat_map(|(_, keys)| [&*keys.pending, &keys.unack, &keys.paused, &keys.flow.gates, &keys.outbox]);
        let keys: Vec<&str> = std::iter::once(AHEAD_KEY).chain(of_partitions).collect();
        let openings: Vec<u64> = all.iter().map(|(partition, _)| opening(&partition.route)).collect();
        let reply: Vec<Value> = script::NEXT.keys(&keys).arg(openings).run(&self.servers).await?;
        let mut reply = Reply::from(reply);
        let (now, ahead) = (reply.integer()?, reply.integer()?);
        let next_due = reply.optional()?.and_then(UnixMillis::new);
        let mut busy = Vec::new();
        while !reply.is_done() {
            let number = usize::try_from(reply.integer()?).unwrap_or(0);
            busy.extend(number.checked_sub(1).and_then(|index| all.get(index)).map(|(partition, _)| partition.clone()));
        }
        Ok(Coming { now, ahead, next_due, busy })
    }

    /// Notifies the schedulers and the forwarder of a partition.
    ///
    /// # Errors
    /// Redis is unavailable.
    pub async fn wake_busy(&self, partition: &Partition) -> Result<(), StoreError> {
        self.buried(partition);
        self.wake_all(partition).await
    }

    /// Sets the time by which the clock is ahead, in microseconds.
    pub async fn set_ahead(&self, micros: u64) -> Result<(), StoreError> {
        self.servers.run(AHEAD_KEY, redis::cmd("SET").arg(AHEAD_KEY).arg(micros)).await
    }

    /// Deletes everything in Redis except the time by which the clock is ahead.
    pub async fn empty(&self) -> Result<(), StoreError> {
        // One step: no script must see the clock go back.
        let script = "redis.call('FLUSHALL') redis.call('SET', KEYS[1], ARGV[1])";
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(1).arg(AHEAD_KEY).arg(crate::time::ahead());
        self.servers.run(AHEAD_KEY, &command).await
    }
}
