//! Whether a route takes messages.

use futures::future::try_join_all;

use super::{Queue, QueueError};

impl Queue {
    /// Whether Redis would take messages for every partition of `route` now; changes nothing.
    ///
    /// # Errors
    /// Why it would not: also when its memory is full, where what drains a queue still works.
    pub async fn check_growing(&self, route: &str) -> Result<(), QueueError> {
        let partitions = &self.route(route)?.partitions;
        try_join_all(partitions.iter().map(|(partition, _)| self.store.check_growing(partition))).await?;
        Ok(())
    }
}
