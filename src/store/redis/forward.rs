//! Dead letters that leave for another route: taken from the outbox, and ended there.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use redis::Value;

use super::{MAX_BATCH, MAX_CALL_BYTES, RedisStore, reply::Reply, script};
use crate::{
    message::MessageId,
    store::{Partition, StoreError},
};

/// Time for which only the forwarder that took a dead letter sends it. If its process ends, another one sends it again.
pub const HOLD: Duration = Duration::from_secs(15);

/// A dead letter that this instance forwards.
#[derive(Clone, Debug)]
pub struct Outgoing {
    pub id: MessageId,
    /// Compared at the end of its turn.
    score: String,
    /// In milliseconds since the epoch.
    pub died: u64,
    /// The encoded message; one zero byte if it was lost.
    pub body: Bytes,
    pub failures: u32,
    /// `<reason>: <error>`
    pub error: String,
}

#[cfg(any(test, feature = "testing"))]
impl Outgoing {
    /// As it was taken.
    pub fn taken(id: MessageId, score: u64, died: u64) -> Self {
        Self { id, score: score.to_string(), died, body: Bytes::new(), failures: 0, error: String::new() }
    }
}

/// The part of an outbox that can be forwarded now.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Number of dead letters that are not forwarded.
    pub waiting: u64,
    /// Time until the next one can be taken.
    pub next: Option<Duration>,
    pub taken: Vec<Outgoing>,
}

/// The end of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Forwarded: the dead letters stay.
    Keep,
    /// Forwarded: the dead letters are deleted.
    Purge,
    /// Not forwarded: to be taken again after this time.
    Again(Duration),
}

impl RedisStore {
    /// Whether dead letters of the route are forwarded.
    pub fn forwards(&self, route: &str) -> bool {
        self.routes.get(route).is_some_and(|route| route.settings.forwards)
    }

    /// Also from former partitions.
    pub async fn take_outbox(&self, partition: &Partition) -> Result<Outbox, StoreError> {
        let keys = self.any_keys(partition);
        let reply: Vec<Value> = script::FORWARD
            .keys(&[&keys.outbox, &keys.dead, &keys.messages, &keys.errors])
            .arg(MAX_BATCH / 10)
            .arg(MAX_CALL_BYTES)
            .arg(u64::try_from(HOLD.as_millis()).expect("seconds"))
            .run(&self.servers)
            .await?;
        let mut reply = Reply::from(reply);
        let (waiting, next) = (reply.integer()?, reply.optional()?.map(Duration::from_millis));
        let mut taken = Vec::new();
        while !reply.is_done() {
            let (id, score, died) = (reply.text()?, reply.text()?, reply.text()?);
            let (body, error) = (reply.bytes()?, reply.text()?);
            // `<time> <failures> <reason>: <error>`; the attempts follow.
            let error = error.split('\0').next().unwrap_or_default();
            let mut parts = error.splitn(3, ' ').skip(1);
            let failures = parts.next().and_then(|number| number.parse().ok()).unwrap_or(0);
            let error = parts.next().unwrap_or_default().to_owned();
            let id = super::reply::id(id.as_bytes())?;
            taken.push(Outgoing { id, score, died: died.parse().unwrap_or(0), body, failures, error });
        }
        Ok(Outbox { waiting, next, taken })
    }

    /// The number of dead letters that are not forwarded, also in former partitions.
    pub async fn unforwarded(&self, route: &Arc<str>, partitions: u16) -> Result<u64, StoreError> {
        let mut waiting = 0;
        for partition in Partition::all(route, partitions).chain(self.former_partitions(route)) {
            let outbox = self.any_keys(&partition).outbox;
            waiting += self.servers.run::<u64>(&outbox, redis::cmd("ZCARD").arg(&outbox)).await?;
        }
        Ok(waiting)
    }

    pub async fn end_turn(&self, partition: &Partition, of: &[Outgoing], turn: Turn) -> Result<(), StoreError> {
        if of.is_empty() {
            return Ok(());
        }
        let keys = self.any_keys(partition);
        let mut all = vec![keys.outbox.as_str()];
        all.extend(keys.of_dead(self.route(&partition.route)?.settings.flow.is_some()));
        let mut call = script::FORWARDED.keys(&all).arg(match turn {
            Turn::Keep => "keep".to_owned(),
            Turn::Purge => "purge".to_owned(),
            Turn::Again(wait) => wait.as_millis().to_string(),
        });
        for Outgoing { id, score, died, .. } in of {
            call = call.arg(id.as_str()).arg(score).arg(died);
        }
        let _: u64 = call.run(&self.servers).await?;
        if turn == Turn::Keep {
            // They can be evicted now.
            self.buried(partition);
        }
        Ok(())
    }
}
