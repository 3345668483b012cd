//! Checks whether Redis accepts commands that need memory.

use super::RedisStore;
use crate::store::{Partition, StoreError};

impl RedisStore {
    /// Whether a message could be scheduled now; changes nothing. Redis refuses ZADD when its memory is full, like
    /// HSET, the first write of a schedule. With `XX`, ZADD adds no member.
    pub async fn check_growing(&self, partition: &Partition) -> Result<(), StoreError> {
        let pending = &self.keys(partition)?.pending;
        let _: u64 = self.servers.run(pending, redis::cmd("ZADD").arg(pending).arg("XX").arg(0).arg("")).await?;
        Ok(())
    }
}
