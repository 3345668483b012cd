//! The Redis of a campaign: a primary with replicas and sentinels, or a cluster.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::clock::Clock;
use crate::support::{RedisServer, cluster::ClusterRedis, sentinels::WatchedRedis};

/// The user of the instances.
pub const USER: &str = "punctual";
/// The rights of docs/redis.md, for all routes.
const RIGHTS: &str = "on >secret ~punctual:routes ~{punctual:* resetchannels &{punctual:* -@all +ping +select +info +eval \
    +evalsha +script|load +publish +subscribe +time +exists +get +set +del +unlink +hget +hgetall +hmget +hset +hdel +hlen \
    +hstrlen +hscan +zadd +zrem +zremrangebyrank +zremrangebyscore +zcard +zcount +zscore +zmscore +zrange +zrangebyscore \
    +zrangebylex +zlexcount +wait";
/// For the list and the sources on the Redis of the queue, and for sentinels.
const OF_ONE_SERVER: &str = "~campaign:jobs ~campaign:set ~dp:campaign:* &__keyspace@* +type +rpush +ltrim +multi +hkeys +hvals \
    +lrange +llen +strlen +persist +zscan +config|get +role";
const OF_CLUSTERS: &str = "+cluster|slots +asking +hello +spublish +ssubscribe";
/// Replicas of the one primary.
const REPLICAS: usize = 2;
/// Maximum time until replicas follow. A busy sentinel does nothing for 30 s.
const IN_STEP: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Sentinels,
    /// Three primaries, each with a replica.
    Cluster,
}

pub enum Store {
    Sentinels(WatchedRedis),
    Cluster(ClusterRedis),
}

impl Store {
    pub async fn start(shape: Shape, clock: &Clock) -> Self {
        let more = if shape == Shape::Cluster { OF_CLUSTERS } else { OF_ONE_SERVER };
        let user: Vec<&str> =
            ["--user", USER].into_iter().chain(RIGHTS.split_whitespace()).chain(more.split_whitespace()).collect();
        match shape {
            Shape::Sentinels => Self::Sentinels(WatchedRedis::start_apart(REPLICAS, &user, &clock.environment()).await),
            Shape::Cluster => Self::Cluster(ClusterRedis::start_apart(&user, &clock.environment()).await),
        }
    }

    pub fn ports(&self) -> Vec<u16> {
        match self {
            Self::Sentinels(redis) => redis.servers.iter().map(RedisServer::port).collect(),
            Self::Cluster(cluster) => (0..cluster.count()).map(|place| cluster.server(place).port()).collect(),
        }
    }

    /// The replicas of each primary.
    pub fn replicas(&self) -> usize {
        match self {
            Self::Sentinels(_) => REPLICAS,
            Self::Cluster(_) => 1,
        }
    }

    /// Waits until all replicas follow.
    pub async fn is_well(&self) {
        match self {
            Self::Sentinels(redis) => {
                in_step(redis).await;
            }
            Self::Cluster(cluster) => cluster.is_well().await,
        }
    }

    /// The port of the one primary that the sentinels name.
    pub async fn primary(&self) -> Option<u16> {
        match self {
            Self::Sentinels(redis) => Some(redis.servers[redis.master().await].port()),
            Self::Cluster(_) => None,
        }
    }
}

/// Waits until all other servers follow the primary, and returns its place. On a busy machine the sentinels can replace the primary
/// again.
pub async fn in_step(redis: &WatchedRedis) -> usize {
    let deadline = Instant::now() + IN_STEP;
    loop {
        let (primary, mut others) = (redis.master().await, Vec::new());
        for (place, server) in redis.servers.iter().enumerate() {
            let info = server.replication().await.unwrap_or_default();
            let follows = info.contains("role:slave") && info.contains("master_link_status:up");
            if !(follows || (place == primary && info.contains("role:master"))) {
                others.push(info);
            }
        }
        if others.is_empty() {
            return primary;
        }
        assert!(Instant::now() < deadline, "not in step with server {primary} within {IN_STEP:?}: {others:?}");
        sleep(PAUSE).await;
    }
}
