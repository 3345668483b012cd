//! Cancels pending messages in bulk.

use tokio::time::Instant;

use super::{Bulk, Queue, QueueError};
use crate::{
    message::MessageId,
    metrics,
    store::{Partition, redis::MAX_BATCH},
};

/// A selection of pending messages to cancel.
#[derive(Clone, Copy, Debug)]
pub struct Purge<'a> {
    /// `None`: the first due ones of each partition.
    pub ids: Option<&'a [MessageId]>,
    /// Maximum number.
    pub limit: u64,
    /// Only counts the messages.
    pub dry_run: bool,
    /// The name of the token that cancels.
    pub by: Option<&'a str>,
}

impl Queue {
    /// Cancels pending messages. Messages in flight are kept. No partition is started after `deadline`. `purged` is
    /// increased; it is correct after an error, too, except for the effect of the failed call.
    pub async fn purge_pending(
        &self,
        route: &str,
        purge: Purge<'_>,
        deadline: Instant,
        purged: &mut Bulk,
    ) -> Result<(), QueueError> {
        let ids = purge.ids;
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
                self.purge_part(partition, part, purge, purged).await?;
            }
        }
        Ok(())
    }

    async fn purge_part(
        &self,
        partition: &Partition,
        part: Option<&[MessageId]>,
        Purge { limit, dry_run, by, .. }: Purge<'_>,
        purged: &mut Bulk,
    ) -> Result<(), QueueError> {
        loop {
            let left = limit - purged.count;
            if left == 0 {
                let (count, _) = self.store.purge_pending(partition, part, 1, true, by).await?;
                purged.more |= count > 0;
                return Ok(());
            }
            let (count, rest) = self.store.purge_pending(partition, part, left, dry_run, by).await?;
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
