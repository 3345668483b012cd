//! Whether this Redis may be trusted with messages: new enough, not evicting, writable.

use super::{RedisStore, keys::routes_key};
use crate::port::StoreError;

/// ZMSCORE came with 6.2.
const MIN_VERSION: (u32, u32) = (6, 2);

/// Why a Redis is not to be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SafetyError {
    #[error("redis {found} is too old: punctual needs {}.{} or later", MIN_VERSION.0, MIN_VERSION.1)]
    TooOld { found: String },
    #[error(
        "redis may evict messages: maxmemory-policy is `{policy}`; set it to noeviction (or accept the loss with \
         `redis.allow_eviction: true`)"
    )]
    Evicting { policy: String },
    #[error("redis is a cluster: sources of type sorted_set and delayqueue need a single server, or none of them")]
    Cluster,
    #[error("redis is a read-only replica")]
    Replica,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SafetyError {
    /// Whether waiting cannot help, so that a start must end.
    pub fn is_definite(&self) -> bool {
        matches!(self, SafetyError::TooOld { .. } | SafetyError::Evicting { .. } | SafetyError::Cluster)
    }
}

impl RedisStore {
    /// Asks the server itself; needs no CONFIG rights. The answer is the eviction policy, if it is one that is
    /// accepted but should be told: no key of punctual has a TTL, so volatile-* passes them by.
    pub async fn check_safety(&self, allow_eviction: bool) -> Result<Option<String>, SafetyError> {
        let server = self.info("server").await?;
        let found = field(&server, "redis_version").unwrap_or_default().to_owned();
        let mut parts = found.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        if version < MIN_VERSION {
            return Err(SafetyError::TooOld { found });
        }
        if self.moves_foreign && field(&self.info("cluster").await?, "cluster_enabled") == Some("1") {
            return Err(SafetyError::Cluster);
        }
        let memory = self.info("memory").await?;
        let policy = field(&memory, "maxmemory_policy").unwrap_or_default().to_owned();
        if policy.starts_with("allkeys") && !allow_eviction {
            return Err(SafetyError::Evicting { policy });
        }
        let replication = self.info("replication").await?;
        if field(&replication, "role") != Some("master") {
            return Err(SafetyError::Replica);
        }
        Ok((policy != "noeviction").then_some(policy))
    }

    /// Whether a write is accepted now; changes nothing. It needs no memory: a full Redis still drains.
    pub async fn check_writable(&self) -> Result<(), StoreError> {
        let _: u64 = self.connection.run(redis::cmd("HDEL").arg(routes_key(&self.prefix)).arg("")).await?;
        Ok(())
    }

    async fn info(&self, section: &str) -> Result<String, StoreError> {
        self.connection.run(redis::cmd("INFO").arg(section)).await
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
}
