//! Pending messages: bulk cancellation, and repair of messages that are in no set.

use super::{
    MAX_BATCH, RedisStore,
    filter::bound,
    script::{self, Call},
};
use crate::{
    message::MessageId,
    store::{Partition, StoreError},
    time::UnixMillis,
};

/// Number of bodies that one call reads to find messages in no set. Bodies can be large.
const SCANNED: usize = 10;

/// Pending messages to cancel.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// At most `MAX_BATCH`.
    pub ids: &'a [MessageId],
    /// Only messages that were accepted or moved last before this time.
    pub before: Option<UnixMillis>,
}

impl RedisStore {
    /// Cancels pending messages of `partition`: the named ones (at most `MAX_BATCH`), or those due first; at most
    /// `limit` and `MAX_BATCH`. Returns the number of cancelled messages, and how many of the requested ones are still
    /// pending. `dry_run` only counts, at most `limit`. `by`: the name of the token that cancels.
    pub async fn purge_pending(
        &self,
        partition: &Partition,
        ids: Option<&[MessageId]>,
        limit: u64,
        dry_run: bool,
        by: Option<&str>,
    ) -> Result<(u64, u64), StoreError> {
        if let Some(ids) = ids {
            return self.purge_named(partition, Named { ids, before: None }, limit, dry_run, by).await;
        }
        let limit = if dry_run { limit } else { limit.min(MAX_BATCH as u64) };
        let call = self.purge_call(partition, limit, dry_run, by)?.arg("all");
        self.run_purge(partition, call, dry_run).await
    }

    /// As `purge_pending`, for ids.
    pub async fn purge_named(
        &self,
        partition: &Partition,
        Named { ids, before }: Named<'_>,
        limit: u64,
        dry_run: bool,
        by: Option<&str>,
    ) -> Result<(u64, u64), StoreError> {
        if ids.is_empty() {
            return Ok((0, 0));
        }
        self.pull(partition, ids.iter()).await?;
        let limit = if dry_run { limit } else { limit.min(MAX_BATCH as u64) };
        let call = self.purge_call(partition, limit, dry_run, by)?.arg("ids").arg(bound(before));
        let call = ids.iter().fold(call, |call, id| call.arg(id.as_str()));
        self.run_purge(partition, call, dry_run).await
    }

    /// Waits for replicas, if durability requires it.
    async fn run_purge(&self, partition: &Partition, call: Call, dry_run: bool) -> Result<(u64, u64), StoreError> {
        let (reply, link): ((u64, u64), _) = self.writes.run(call).await?;
        if !dry_run {
            self.confirm(partition, link, reply.0 > 0).await?;
        }
        Ok(reply)
    }

    /// Begins a call of `lua/purge_pending.lua`; the selection must follow.
    pub(super) fn purge_call(
        &self,
        partition: &Partition,
        limit: u64,
        dry_run: bool,
        by: Option<&str>,
    ) -> Result<Call, StoreError> {
        let keys = self.keys(partition)?;
        let route = self.route(&partition.route)?;
        let all = route.with_history(
            vec![
                keys.pending.as_str(),
                &keys.unack,
                &keys.messages,
                &keys.attempts,
                &keys.errors,
                &keys.remembered,
                &keys.records,
                &keys.bytes,
                &keys.schedules,
                &keys.groups,
                &keys.grouped,
            ],
            keys,
        );
        Ok(script::PURGE_PENDING
            .keys(&all)
            .arg(&keys.wake)
            .arg(route.settings.keep_millis())
            .arg(route.settings.kept_by_partition())
            .arg(limit)
            .arg(u8::from(dry_run))
            .arg(route.history_settings())
            .arg(by.unwrap_or_default()))
    }

    /// Makes messages pending that have a body but are in no set; each call checks some bodies. Returns the number of
    /// restored messages, the cursor of the next call, and by the first call whether the partition has flows in Redis. The
    /// cursor is empty for the first call and at the end.
    pub async fn restore(&self, partition: &Partition, cursor: &str) -> Result<(u64, String, bool), StoreError> {
        let keys = self.keys(partition)?;
        let call = script::RESTORE.keys(&[&keys.pending, &keys.unack, &keys.messages, &keys.dead, &keys.flow.flows]);
        call.arg(&keys.wake).arg(cursor).arg(SCANNED).run(&self.servers).await
    }
}
