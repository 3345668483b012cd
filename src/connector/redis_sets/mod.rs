//! Messages in external keys on the queue's Redis: a sorted set of any producer, or the keys of hdt3213/delayqueue.
//!
//! A message stays in those keys until it is due and its route has capacity, so that its producer can still count and
//! cancel it. Then one script moves it (`store::redis`, `lua/take_*.lua`): it is never in both places nor in neither.
//! Other consumers and other instances can compete for it. `follow` polls and moves, `naming` chooses ids,
//! `notification` checks keyspace notifications, `persist` keeps waiting bodies from expiring.

mod follow;
mod naming;
mod notification;
mod persist;
mod settings;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::{sync::watch, time::sleep};

pub use self::settings::{DelayQueueSettings, MemberPayload, ScoreUnit, SortedSetSettings};
use crate::{
    source::{Bells, Intake, QueueRedis, Source},
    store::redis::{DelayQueueKeys, ExternalPlace, SafetyError, check_place, connection::Connection},
};

/// Interval of checks of the rights: a check opens a connection and takes up to 31 commands.
const CHECK_INTERVAL: Duration = Duration::from_mins(1);
/// Interval after a failed check.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// A source of external keys.
pub struct RedisSets {
    place: ExternalPlace,
    /// Maximum time between two polls without keyspace notifications.
    poll: Duration,
    /// Maximum time between two polls with keyspace notifications, which can be lost.
    max_sleep: Duration,
    bells: Bells,
    connection: Arc<Connection>,
}

impl RedisSets {
    /// `max_sleep`: maximum time between two polls with keyspace notifications.
    pub fn sorted_set(config: &SortedSetSettings, redis: QueueRedis, max_sleep: Duration) -> Self {
        let unit = match config.unit {
            ScoreUnit::Seconds => 1000,
            ScoreUnit::Milliseconds => 1,
        };
        let key = config.key.clone();
        let place = match (config.payload, config.hash_prefix.clone()) {
            (MemberPayload::Hash, Some(prefix)) => ExternalPlace::Hashes { key, unit, prefix },
            _ => ExternalPlace::Members { key, unit },
        };
        Self::new(place, config.poll.0, redis, max_sleep)
    }

    /// Arguments as for `sorted_set`.
    pub fn delay_queue(config: &DelayQueueSettings, redis: QueueRedis, max_sleep: Duration) -> Self {
        let keys = DelayQueueKeys::new(&config.prefix, &config.name, config.hash_tag.0);
        Self::new(ExternalPlace::DelayQueue(keys), config.poll.0, redis, max_sleep)
    }

    fn new(place: ExternalPlace, poll: Duration, redis: QueueRedis, max_sleep: Duration) -> Self {
        let QueueRedis { database, connection } = redis;
        let mut source = Self { place, poll, max_sleep, bells: Bells::default(), connection };
        source.bells.channels = source.channels(database);
        source
    }

    /// Reports missing rights, which stop messages only when some are due.
    async fn keep_checked(&self, intake: &Intake) {
        let mut is_denied = false;
        loop {
            let pause = match check_place(&self.connection, &self.place).await {
                Ok(()) => {
                    // `follow` reports the end of any other outage.
                    if std::mem::take(&mut is_denied) {
                        intake.running();
                    }
                    CHECK_INTERVAL
                }
                Err(error) => {
                    // `follow` reports an outage of Redis.
                    if matches!(error, SafetyError::Denied { .. }) {
                        is_denied = true;
                        intake.failing(&error.to_string());
                    }
                    RETRY_INTERVAL
                }
            };
            sleep(pause).await;
        }
    }

    fn has_lists(&self) -> bool {
        matches!(self.place, ExternalPlace::DelayQueue(_))
    }

    /// Each key, its type, and the command that counts its members.
    fn parts(&self) -> Vec<(&String, &'static str, &'static str)> {
        match &self.place {
            ExternalPlace::Members { key, .. } | ExternalPlace::Hashes { key, .. } => vec![(key, "zset", "ZCARD")],
            ExternalPlace::DelayQueue(keys) => vec![
                (&keys.pending, "zset", "ZCARD"),
                (&keys.ready, "list", "LLEN"),
                (&keys.retry, "list", "LLEN"),
                (&keys.unack, "zset", "ZCARD"),
            ],
        }
    }
}

#[async_trait]
impl Source for RedisSets {
    async fn run(&self, intake: Intake, mut stop: watch::Receiver<bool>) {
        let work = async { tokio::join!(self.follow(&intake), self.keep_bodies(&intake), self.keep_checked(&intake)) };
        tokio::select! {
            // Each move is one script, so a stop interrupts none.
            _ = stop.wait_for(|stop| *stop) => {}
            _ = work => {}
        }
    }

    async fn check(&self) -> Result<(), String> {
        check_place(&self.connection, &self.place).await.map_err(|error| error.to_string())?;
        for (key, wanted, _) in self.parts() {
            let kind: String =
                self.connection.run(redis::cmd("TYPE").arg(key)).await.map_err(|error| error.to_string())?;
            if kind != wanted && kind != "none" {
                return Err(format!("`{}` holds a {kind}, not a {wanted}", key.escape_debug()));
            }
        }
        Ok(())
    }

    async fn advice(&self) -> Option<String> {
        (!self.has_notifications().await).then(|| {
            let flags = if self.has_lists() { "Kzl" } else { "Kz" };
            let poll = self.poll;
            format!("polls every {poll:?}: Redis is not set to `notify-keyspace-events {flags}`, or denies +config|get")
        })
    }

    fn bells(&self) -> Option<&Bells> {
        Some(&self.bells)
    }

    async fn depth(&self) -> Option<u64> {
        let mut depth = 0;
        for (key, _, count) in self.parts() {
            depth += self.connection.run::<u64>(redis::cmd(count).arg(key)).await.ok()?;
        }
        Some(depth)
    }
}
