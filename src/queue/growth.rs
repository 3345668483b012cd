//! Checks that a route accepts messages.

use super::{Queue, QueueError};

impl Queue {
    /// Whether Redis would accept messages for every partition of `route` now. Changes nothing.
    ///
    /// # Errors
    /// The reason for a refusal. A full memory refuses new messages only; a queue can still be drained.
    pub async fn check_growing(&self, route: &str) -> Result<(), QueueError> {
        // Sequential, so that a Redis that refuses gets one call.
        for (partition, _) in &self.route(route)?.partitions {
            self.store.check_growing(partition).await?;
        }
        Ok(())
    }
}
