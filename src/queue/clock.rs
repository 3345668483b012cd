//! The clock of the queue.

use super::{Queue, QueueError};

impl Queue {
    /// The clock of Redis, in milliseconds since the epoch.
    pub async fn now(&self, route: &str) -> Result<u64, QueueError> {
        let store = self.store();
        let (partition, _) = &self.route(route)?.partitions[0];
        Ok(store.stats(partition).await?.now / 1000)
    }
}
