//! Checks whether Redis is safe for messages: new enough, a single server or a cluster as configured, not evicting,
//! writable.
//!
//! HELLO reports most of these facts, and is not in the category `@dangerous`. INFO is: it reports the rest, and
//! everything where HELLO is denied. A cluster is also detected by its error for keys of several slots. Facts that are
//! not reported are not checked, but listed.

use redis::Value;
use tokio::time::Instant;

use super::{
    RedisStore,
    connection::{Connection, is_of_cluster},
    keys::routes_key,
};
use crate::store::StoreError;

/// ZMSCORE came with 6.2.
const MIN_VERSION: (u32, u32) = (6, 2);

/// Part of the answer of a single server to CLUSTER.
const NO_CLUSTER: &str = "cluster support disabled";

/// Why a Redis must not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SafetyError {
    #[error("redis {found} is too old: punctual needs {}.{} or later", MIN_VERSION.0, MIN_VERSION.1)]
    TooOld { found: String },
    #[error(
        "redis may evict messages: maxmemory-policy is `{policy}`; set it to noeviction (or accept the loss with \
         `redis.allow_eviction: true`)"
    )]
    Evicting { policy: String },
    #[error("redis is a cluster: give its servers as `redis.cluster: {{ urls: [...] }}` instead of `redis.url`")]
    Cluster,
    #[error("`redis.cluster` is set, but redis is a single server: give it as `redis.url`")]
    NoCluster,
    #[error(
        "redis denies its user commands that punctual needs: grant them with `ACL SETUSER <user> {rights}`; messages wait \
         until then"
    )]
    Denied { rights: String },
    #[error("redis is a read-only replica")]
    Replica,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SafetyError {
    /// Whether waiting cannot help, so that a start must end.
    pub fn is_definite(&self) -> bool {
        matches!(
            self,
            SafetyError::TooOld { .. } | SafetyError::Evicting { .. } | SafetyError::Cluster | SafetyError::NoCluster
        )
    }
}

/// Warnings about a Redis that can be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Safety {
    /// The eviction policy, if it is accepted but not `noeviction`.
    pub evicting: Option<String>,
    /// The facts that this user has no right to read.
    pub unchecked: Vec<&'static str>,
    /// The memory of the fullest server; `None`: this user has no right to read it.
    pub memory: Option<Memory>,
}

/// The memory of a server, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes that count towards `max`: without the buffers of replicas and of the append-only file.
    pub used: u64,
    /// `maxmemory`; `None`: not set.
    pub max: Option<u64>,
}

impl Memory {
    fn of(info: &str) -> Option<Self> {
        let number = |name| field(info, name)?.parse::<u64>().ok();
        let uncounted = number("mem_not_counted_for_evict").unwrap_or(0);
        let used = number("used_memory")?.saturating_sub(uncounted);
        Some(Self { used, max: number("maxmemory").filter(|max| *max > 0) })
    }

    /// Whether this server has a smaller share of `maxmemory` left. A server without `maxmemory` is never fuller than a
    /// server with it.
    fn is_fuller_than(self, other: Self) -> bool {
        let cross = |of: Self, max: Option<u64>| u128::from(of.used) * u128::from(max.unwrap_or(0));
        match (self.max, other.max) {
            (None, None) => self.used > other.used,
            (None, Some(_)) => false,
            (Some(_), None) => true,
            (Some(_), Some(_)) => cross(self, other.max) > cross(other, self.max),
        }
    }
}

/// Facts that a server reports about itself.
#[derive(Default)]
struct ServerFacts {
    version: Option<String>,
    is_cluster: Option<bool>,
    role: Option<String>,
}

impl RedisStore {
    /// Asks each server; needs no CONFIG rights. Links to a replica are replaced, because its address may lead to a
    /// master by now.
    pub async fn check_safety(&self, allow_eviction: bool) -> Result<Safety, SafetyError> {
        let of_cluster = self.servers.cluster().is_some();
        let servers = match self.servers.all().await {
            Err(StoreError::Unavailable { text, .. }) if of_cluster && text.contains(NO_CLUSTER) => {
                return Err(SafetyError::NoCluster);
            }
            servers => servers?,
        };
        let (mut safety, mut failed) = (Safety::default(), None);
        for connection in servers {
            let check = ServerCheck { connection: &connection, of_cluster }.check(allow_eviction).await;
            let Safety { evicting, unchecked, memory } = match check {
                // A server that must not be used takes precedence over one that is down.
                Err(error) if !error.is_definite() => {
                    failed.get_or_insert(error);
                    continue;
                }
                check => check?,
            };
            safety.evicting = safety.evicting.or(evicting);
            safety.memory = match (safety.memory, memory) {
                (Some(known), Some(found)) if !found.is_fuller_than(known) => Some(known),
                (known, found) => found.or(known),
            };
            for what in unchecked {
                if !safety.unchecked.contains(&what) {
                    safety.unchecked.push(what);
                }
            }
        }
        failed.map_or(Ok(safety), Err)
    }

    /// Whether a write is accepted now; changes nothing. The write needs no memory, because a full Redis still delivers
    /// messages.
    pub async fn check_writable(&self) -> Result<(), StoreError> {
        let routes_key = routes_key(&self.prefix);
        let _: u64 = self.servers.run(&routes_key, redis::cmd("HDEL").arg(&routes_key).arg("")).await?;
        Ok(())
    }
}

struct ServerCheck<'a> {
    connection: &'a Connection,
    of_cluster: bool,
}

impl ServerCheck<'_> {
    async fn check(&self, allow_eviction: bool) -> Result<Safety, SafetyError> {
        let asked = Instant::now();
        let server = match self.hello().await? {
            Some(server) => server,
            None => self.server_info().await?,
        };
        if let Some(found) = &server.version
            && is_too_old(found)
        {
            return Err(SafetyError::TooOld { found: found.clone() });
        }
        if !self.of_cluster {
            let is_cluster = match server.is_cluster {
                Some(is_cluster) => is_cluster,
                None => self.refuses_slots().await?,
            };
            if is_cluster {
                return Err(SafetyError::Cluster);
            }
        }
        let memory = self.info("memory").await?;
        let policy = memory.as_ref().and_then(|memory| field(memory, "maxmemory_policy"));
        let memory = memory.as_deref().and_then(Memory::of);
        let unchecked = [
            ("version", server.version.is_none()),
            ("role", server.role.is_none()),
            ("eviction policy", policy.is_none()),
        ];
        let evicting = policy.map(|policy| evicting(policy, allow_eviction)).transpose()?.flatten();
        if server.role.is_some_and(|role| role != "master") {
            self.connection.lost_master(asked);
            return Err(SafetyError::Replica);
        }
        let unchecked = unchecked.into_iter().filter(|(_, is_unchecked)| *is_unchecked).map(|(what, _)| what);
        Ok(Safety { evicting, unchecked: unchecked.collect(), memory })
    }

    /// Whether the server refuses keys of several slots, as a cluster does.
    async fn refuses_slots(&self) -> Result<bool, StoreError> {
        let mut command = redis::cmd("EXISTS");
        command.arg("punctual").arg("{punctual:0}");
        match self.connection.run::<u64>(&command).await {
            Err(error) if is_of_cluster(&error) => Ok(true),
            answer => answer.map(|_| false),
        }
    }

    async fn hello(&self) -> Result<Option<ServerFacts>, StoreError> {
        let reply: Option<Value> = self.connection.run_if_permitted(&redis::cmd("HELLO")).await?;
        let Some(fields) = reply.as_ref().and_then(Value::as_map_iter) else { return Ok(None) };
        let mut server = ServerFacts::default();
        for (name, value) in fields {
            let text = |value| redis::from_redis_value_ref::<String>(value).ok();
            match text(name).as_deref() {
                Some("version") => server.version = text(value),
                Some("mode") => server.is_cluster = text(value).map(|mode| mode == "cluster"),
                Some("role") => server.role = text(value),
                _ => {}
            }
        }
        Ok(Some(server))
    }

    async fn server_info(&self) -> Result<ServerFacts, StoreError> {
        let version = self.info("server").await?.and_then(|server| field(&server, "redis_version"));
        let cluster = self.info("cluster").await?.and_then(|cluster| field(&cluster, "cluster_enabled"));
        let role = self.info("replication").await?.and_then(|replication| field(&replication, "role"));
        Ok(ServerFacts { version, is_cluster: cluster.map(|enabled| enabled == "1"), role })
    }

    async fn info(&self, section: &str) -> Result<Option<String>, StoreError> {
        self.connection.run_if_permitted(redis::cmd("INFO").arg(section)).await
    }
}

fn field(info: &str, name: &str) -> Option<String> {
    info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':')).map(str::to_owned)
}

fn is_too_old(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < MIN_VERSION
}

/// The policy, unless it is `noeviction`. No key of punctual has a TTL, so volatile-* evicts none of them. Any other
/// policy can delete whole queues, including policies that only servers other than Redis have.
fn evicting(policy: String, allow_eviction: bool) -> Result<Option<String>, SafetyError> {
    match policy.as_str() {
        "noeviction" => Ok(None),
        volatile if volatile.starts_with("volatile-") => Ok(Some(policy)),
        _ if allow_eviction => Ok(Some(policy)),
        _ => Err(SafetyError::Evicting { policy }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_policies_that_are_known_to_spare_keys_without_a_ttl_are_accepted() {
        let judged = |policy: &str, allow| evicting(policy.to_owned(), allow);
        assert_eq!(judged("noeviction", false), Ok(None));
        assert_eq!(judged("volatile-ttl", false), Ok(Some("volatile-ttl".into())));
        // Dragonfly's cache mode is `eviction`.
        for policy in ["allkeys-lru", "eviction", "volatile", ""] {
            assert_eq!(judged(policy, false), Err(SafetyError::Evicting { policy: policy.into() }));
            assert_eq!(judged(policy, true), Ok(Some(policy.into())));
        }
    }

    #[test]
    fn the_fullest_server_is_the_one_with_the_least_left() {
        let memory = |used, max: u64| {
            let info = format!("# Memory\r\nused_memory:{used}\r\nmaxmemory:{max}\r\nmem_not_counted_for_evict:10\r\n");
            Memory::of(&info).expect("numbers")
        };
        assert_eq!(memory(30, 0), Memory { used: 20, max: None });
        assert_eq!(memory(5, 40), Memory { used: 0, max: Some(40) });
        for (fuller, other) in [
            ((60, 100), (110, 300)),
            ((910, 1000), (60, 100)),
            ((60, 100), (50, 100)),
            ((20, 100), (999, 0)),
            ((30, 0), (20, 0)),
        ] {
            let [fuller, other] = [fuller, other].map(|(used, max)| memory(used, max));
            assert!(fuller.is_fuller_than(other) && !other.is_fuller_than(fuller), "{fuller:?} {other:?}");
        }
        assert_eq!(Memory::of("maxmemory:1"), None);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        for (version, too_old) in [("6.0.20", true), ("6.2.0", false), ("7.0.15", false), ("10.0", false), ("", true)] {
            assert_eq!(is_too_old(version), too_old, "{version}");
        }
    }
}
