//! Checks that a route accepts messages.

use futures::future::try_join_all;

use super::{Queue, QueueError};
use crate::{
    message::{Limit, MAX_METADATA_BYTES},
    store::redis::PartitionStats,
};

/// Maximum bytes of a stored message besides its payload.
const MAX_OVERHEAD: u64 = MAX_METADATA_BYTES as u64 + 64;

/// The number of messages that the limits of a route permit, and the limit that permits the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub messages: u64,
    pub limit: Limit,
}

impl Queue {
    /// Whether Redis would accept messages for every partition of `route` now. Changes nothing.
    ///
    /// # Errors
    /// The reason for a refusal. A full memory refuses new messages only; a queue can still be drained.
    pub async fn check_growing(&self, route: &str) -> Result<(), QueueError> {
        let store = self.store();
        // Sequential, so that a Redis that refuses gets one call.
        for (partition, _) in &self.route(route)?.partitions {
            store.check_growing(partition).await?;
        }
        Ok(())
    }

    /// The capacity for messages of any size in the fullest partition; `None` without limits, which takes no call.
    pub async fn free_capacity(&self, route: &str) -> Result<Option<Capacity>, QueueError> {
        let store = self.store();
        let [messages, bytes] = store.limits_of_partition(route);
        if messages.is_none() && bytes.is_none() {
            return Ok(None);
        }
        let partitions = &self.route(route)?.partitions;
        let stats = try_join_all(partitions.iter().map(|(partition, _)| store.stats(partition))).await?;
        let fullest = |used: fn(&PartitionStats) -> u64| stats.iter().map(used).max().unwrap_or(0);
        let by_messages = messages.map(|limit| Capacity {
            messages: limit.saturating_sub(fullest(|part| part.pending + part.unack)),
            limit: Limit::Messages,
        });
        let by_bytes = bytes.map(|limit| {
            // With a low limit, larger messages are refused until the others have left.
            let largest = (self.max_payload(route) as u64 + MAX_OVERHEAD).min(limit / 2).max(1);
            Capacity { messages: limit.saturating_sub(fullest(|part| part.bytes)) / largest, limit: Limit::Bytes }
        });
        Ok(by_messages.into_iter().chain(by_bytes).min_by_key(|capacity| capacity.messages))
    }
}
