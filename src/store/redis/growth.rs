//! Whether this Redis takes what needs memory.

use super::RedisStore;
use crate::store::{Partition, StoreError};

impl RedisStore {
    /// Whether a message could be scheduled now; changes nothing. `XX` adds no member, but the command is one of those
    /// that Redis refuses when its memory is full, and the first write of a schedule.
    pub async fn check_growing(&self, partition: &Partition) -> Result<(), StoreError> {
        let pending = &self.keys(partition)?.pending;
        let _: u64 = self.servers.run(pending, redis::cmd("ZADD").arg(pending).arg("XX").arg(0).arg("")).await?;
        Ok(())
    }
}
