//! Dead messages: sent on their way again, or deleted.

use std::time::Duration;

use redis::Value;

use super::{MAX_BATCH, MAX_CALL_BYTES, RedisStore, engine::shortened, reply::Reply, script, unless_closed};
use crate::{
    message::{DeadLimits, DeadReason, MessageId, NewMessage, codec},
    metrics,
    store::{Partition, StoreError},
};

impl RedisStore {
    /// Keeps `batch`, all of `partition`, dead from the start, each with an error; whether each was taken, in
    /// order: one whose id is live is not. `Unavailable` of kind `UNREGISTERED` as for `schedule`.
    pub async fn inter(&self, partition: &Partition, batch: &[(NewMessage, String)]) -> Result<Vec<bool>, StoreError> {
        let keys = self.keys(partition)?;
        let mut call = script::BURY
            .keys(&[
                &keys.messages,
                &keys.dead,
                &keys.errors,
                &keys.pending,
                &keys.unack,
                &keys.route,
                &keys.remembered,
            ])
            .arg(self.layout(partition)?);
        for (message, error) in batch {
            let text = format!("{}: {}", DeadReason::Invalid.as_str(), shortened(error));
            let tail = codec::tail(&message.metadata, &message.payload);
            call = call.arg(message.id.as_str()).arg(text).arg(&tail[..]);
        }
        let taken = call.run(&self.connection).await.map_err(unless_closed)?;
        self.buried(partition);
        Ok(taken)
    }

    /// The named ones of `partition`, or all that died before the call; how many.
    pub async fn redrive(&self, partition: &Partition, ids: Option<&[MessageId]>) -> Result<u64, StoreError> {
        let keys = self.keys(partition)?;
        let (mut total, mut before, mut rest) = (0, String::new(), ids);
        loop {
            let mut call = script::REDRIVE
                .keys(&[&keys.pending, &keys.messages, &keys.attempts, &keys.errors, &keys.dead, &keys.bytes])
                .arg(&keys.wake)
                .arg(&before)
                .arg(MAX_BATCH)
                .arg(MAX_CALL_BYTES);
            match rest {
                Some([]) => return Ok(total),
                Some(ids) => {
                    for id in ids.iter().take(MAX_BATCH) {
                        call = call.arg(id.as_str());
                    }
                }
                None => {}
            }
            let reply: Vec<Value> = call.run(&self.connection).await?;
            let mut reply = Reply::from(reply);
            let redriven = reply.integer()?;
            // Now: the rest may fail, or its caller give up.
            metrics::redriven(&partition.route, redriven);
            total += redriven;
            before = reply.integer()?.to_string();
            let remaining = usize::try_from(reply.integer()?).unwrap_or(0);
            match &mut rest {
                Some(ids) => {
                    let reached = ids.len().min(MAX_BATCH) - remaining;
                    *ids = &ids[reached..];
                }
                None if remaining == 0 => return Ok(total),
                None => {}
            }
        }
    }

    /// The named ones of `partition`, or all that died before the call; how many.
    pub async fn purge(&self, partition: &Partition, ids: Option<&[MessageId]>) -> Result<u64, StoreError> {
        let keys = self.keys(partition)?;
        let (mut total, mut before) = (0, String::new());
        let mut parts = ids.map(|ids| ids.chunks(MAX_BATCH));
        loop {
            let mut call = script::PURGE
                .keys(&[&keys.messages, &keys.attempts, &keys.errors, &keys.dead, &keys.records])
                .arg(&before)
                .arg(MAX_BATCH);
            if let Some(parts) = &mut parts {
                let Some(part) = parts.next() else { return Ok(total) };
                for id in part {
                    call = call.arg(id.as_str());
                }
            }
            let reply: Vec<Value> = call.run(&self.connection).await?;
            let mut reply = Reply::from(reply);
            let purged = reply.integer()?;
            metrics::purged(&partition.route, purged);
            total += purged;
            before = reply.integer()?.to_string();
            if parts.is_none() && !reply.flag()? {
                return Ok(total);
            }
        }
    }

    /// Deletes dead letters that `limits` do not keep, the oldest first, `MAX_BATCH` at most.
    pub async fn evict(&self, partition: &Partition, limits: DeadLimits) -> Result<Evicted, StoreError> {
        let keys = self.keys(partition)?;
        let share = u64::from(self.route(&partition.route)?.settings.partitions);
        let max_age = limits.max_age.map_or(0, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        let reply: Vec<Value> = script::EVICT
            .keys(&[&keys.messages, &keys.attempts, &keys.errors, &keys.dead, &keys.records])
            .arg(max_age)
            .arg(limits.max_count.map_or(0, |count| (count / share).max(1)))
            .arg(MAX_BATCH)
            .run(&self.connection)
            .await?;
        let mut reply = Reply::from(reply);
        Ok(Evicted {
            aged: reply.integer()?,
            beyond: reply.integer()?,
            more: reply.flag()?,
            next: reply.optional()?.map(Duration::from_millis),
        })
    }
}

/// What an eviction of dead letters did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Deleted because they died too long ago.
    pub aged: u64,
    /// Deleted because they were too many.
    pub beyond: u64,
    /// Whether more are to be deleted.
    pub more: bool,
    /// Until the oldest that is kept is too old.
    pub next: Option<Duration>,
}
