//! Pending messages: cancelled in bulk, and restored when they are in no set.

use super::{MAX_BATCH, RedisStore, StoreRoute, script};
use crate::{
    message::MessageId,
    store::{Partition, StoreError},
};

/// Bodies that one call reads to find those in no set. They may be large.
const SCANNED: usize = 10;

impl RedisStore {
    /// Cancels pending messages of `partition`: of the named ones (at most `MAX_BATCH`), or of all those that are due
    /// first, at most `limit` and `MAX_BATCH`. How many, and how many of those asked for wait still. `dry_run`: only
    /// counts, `limit` at most.
    pub async fn purge_pending(
        &self,
        partition: &Partition,
        ids: Option<&[MessageId]>,
        limit: u64,
        dry_run: bool,
    ) -> Result<(u64, u64), StoreError> {
        if ids.is_some_and(<[_]>::is_empty) {
            return Ok((0, 0));
        }
        self.pull(partition, ids.into_iter().flatten()).await?;
        let keys = self.keys(partition)?;
        let StoreRoute { settings, .. } = self.route(&partition.route)?;
        let mut call = script::PURGE_PENDING
            .keys(&[
                &keys.pending,
                &keys.messages,
                &keys.attempts,
                &keys.errors,
                &keys.remembered,
                &keys.records,
                &keys.bytes,
            ])
            .arg(settings.keep_millis())
            .arg(settings.kept_by_partition())
            .arg(if dry_run { limit } else { limit.min(MAX_BATCH as u64) })
            .arg(u8::from(dry_run));
        for id in ids.into_iter().flatten() {
            call = call.arg(id.as_str());
        }
        call.run(&self.servers).await
    }

    /// Makes messages of some bodies pending that are in no set. Returns how many, and the cursor of the next call, which is
    /// empty at the end and for the first call.
    pub async fn restore(&self, partition: &Partition, cursor: &str) -> Result<(u64, String), StoreError> {
        let keys = self.keys(partition)?;
        let call = script::RESTORE.keys(&[&keys.pending, &keys.unack, &keys.messages, &keys.dead]);
        call.arg(&keys.wake).arg(cursor).arg(SCANNED).run(&self.servers).await
    }
}
