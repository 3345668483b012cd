//! Whether a route takes messages.

use super::{Queue, QueueError};

impl Queue {
    /// Whether Redis would take messages for every partition of `route` now; changes nothing.
    ///
    /// # Errors
    /// Why it would not: also when its memory is full, where what drains a queue still works.
    pub async fn check_growing(&self, route: &str) -> Result<(), QueueError> {
        // One after the other: while Redis refuses, it is asked once.
        for (partition, _) in &self.route(route)?.partitions {
            self.store.check_growing(partition).await?;
        }
        Ok(())
    }
}
