//! Cancels pending messages in bulk.

use tokio::time::Instant;

use super::{Bulk, Queue, QueueError};
use crate::{
    message::MessageId,
    metrics,
    store::{Partition, redis::MAX_BATCH},
};

impl Queue {
    /// Cancels pending messages: those with `ids`, or the first due ones of each partition; `limit` at most. Messages
    /// in flight are kept. `dry_run`: only counts. No partition is started after `deadline`. `purged` is increased; it
    /// is correct after an error, too, except for the effect of the failed call.
    pub async fn purge_pending(
        &self,
        route: &str,
        ids: Option<&[MessageId]>,
        limit: u64,
        dry_run: bool,
        deadline: Instant,
        purged: &mut Bulk,
    ) -> Result<(), QueueError> {
        let found = self.route(route)?;
        // Sequential, so that each script and all of them together are bounded.
        for (partition, _) in &found.partitions {
            let named = ids.map(|ids| found.own(partition, ids));
            let parts: Vec<Option<&[MessageId]>> = match &named {
                None => vec![None],
                Some(ids) => ids.chunks(MAX_BATCH).map(Some).collect(),
            };
            for part in parts {
                if Instant::now() >= deadline {
                    purged.more = true;
                    return Ok(());
                }
                self.purge_part(partition, part, limit, dry_run, purged).await?;
            }
        }
        Ok(())
    }

    async fn purge_part(
        &self,
        partition: &Partition,
        part: Option<&[MessageId]>,
        limit: u64,
        dry_run: bool,
        purged: &mut Bulk,
    ) -> Result<(), QueueError> {
        let store = self.store();
        loop {
            let left = limit - purged.count;
            if left == 0 {
                let (count, _) = store.purge_pending(partition, part, 1, true).await?;
                purged.more |= count > 0;
                return Ok(());
            }
            let (count, rest) = store.purge_pending(partition, part, left, dry_run).await?;
            purged.count += count;
            if !dry_run {
                // Counted now, because the rest may fail or the caller may disconnect.
                metrics::cancelled(&partition.route, count);
            }
            if rest == 0 || dry_run || count == 0 {
                purged.more |= rest > 0;
                return Ok(());
            }
        }
    }
}
