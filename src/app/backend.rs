//! The queue's Redis, as configured: an external server, the master that sentinels report, a cluster, or the embedded
//! server.

use std::{sync::Arc, time::Duration};

use crate::{
    config::{ClusterConfig, DurabilityConfig, RedisConfig, RedisTopology, SentinelConfig},
    secret::SecretUrl,
    store::redis::{
        Durability, RedisStore, RouteSettings, WakeListener,
        connection::{Cluster, Connection, RedisEndpoint, Sentinels, ServerAddress, Servers, Upstream, client},
    },
};

/// Makes connections to the queue's Redis.
pub struct Backend {
    place: BackendPlace,
    timeout: Duration,
    durability: Option<Durability>,
}

enum BackendPlace {
    One(Arc<Upstream>),
    Cluster(Arc<Cluster>),
}

impl Backend {
    /// `embedded_url`: the address of the embedded server, if it is configured.
    ///
    /// # Errors
    /// When the URL or a TLS file cannot be used.
    pub fn new(config: &RedisConfig, embedded_url: Option<String>) -> Result<Self, String> {
        let address = |url: SecretUrl| Ok::<Upstream, String>(client(&endpoint(config, url))?.into());
        let one = |upstream: Upstream| BackendPlace::One(Arc::new(upstream));
        let place = match (config.topology(), embedded_url) {
            (RedisTopology::Url(url), _) => one(address(url.clone())?),
            (RedisTopology::Sentinel(sentinel), _) => one(sentinels(config, sentinel)?.into()),
            (RedisTopology::Cluster(cluster), _) => BackendPlace::Cluster(Arc::new(of_cluster(config, cluster)?)),
            (RedisTopology::Embedded, Some(url)) => one(address(url.into())?),
            (RedisTopology::Embedded, None) => return Err("the embedded redis is not running".into()),
        };
        let DurabilityConfig { replicas, timeout } = config.durability;
        let durability = (replicas.0 > 0).then_some(Durability { replicas: replicas.0, timeout: timeout.0 });
        Ok(Self { place, timeout: config.timeout.0, durability })
    }

    /// `None` without sentinels.
    pub fn sentinels(&self) -> Option<&Sentinels> {
        match &self.place {
            BackendPlace::One(upstream) => upstream.sentinels(),
            BackendPlace::Cluster(_) => None,
        }
    }

    /// The master that the sentinels reported last.
    pub fn master(&self) -> Option<ServerAddress> {
        self.sentinels()?.found()
    }

    /// `None` for a single server.
    pub fn cluster(&self) -> Option<&Arc<Cluster>> {
        match &self.place {
            BackendPlace::One(_) => None,
            BackendPlace::Cluster(cluster) => Some(cluster),
        }
    }

    /// Follows changes of the master or the cluster while it is polled. Never returns.
    pub async fn follow(&self) {
        match &self.place {
            BackendPlace::One(upstream) => upstream.follow().await,
            BackendPlace::Cluster(cluster) => cluster.follow().await,
        }
    }

    /// A store on new connections. Calls of producers succeed as `redis.durability` defines.
    pub fn store(&self, prefix: &str, routes: impl IntoIterator<Item = RouteSettings>) -> RedisStore {
        let store = RedisStore::new(self.servers(), prefix, routes);
        match self.durability {
            Some(durability) => store.confirming_over(self.servers(), durability),
            None => store,
        }
    }

    /// New connections, which connect at their first command.
    pub fn servers(&self) -> Servers {
        match &self.place {
            BackendPlace::One(upstream) => Arc::new(Connection::to(upstream.clone(), self.timeout)).into(),
            BackendPlace::Cluster(cluster) => Servers::of_cluster(cluster.clone(), self.timeout),
        }
    }

    /// A new connection to the only server, and the number of its database.
    ///
    /// # Errors
    /// On a cluster.
    pub fn connection(&self) -> Result<(Arc<Connection>, i64), String> {
        match &self.place {
            BackendPlace::One(upstream) => {
                Ok((Arc::new(Connection::to(upstream.clone(), self.timeout)), upstream.database()))
            }
            BackendPlace::Cluster(_) => Err("`redis.cluster` is set".into()),
        }
    }

    /// The subscription to wake-ups, on a new connection.
    pub fn wakes(&self) -> WakeListener {
        match &self.place {
            BackendPlace::One(upstream) => WakeListener::to(upstream.clone()),
            BackendPlace::Cluster(cluster) => WakeListener::of_cluster(cluster.clone()),
        }
    }
}

fn endpoint(config: &RedisConfig, url: SecretUrl) -> RedisEndpoint {
    RedisEndpoint { url, username: config.username.clone(), password: config.password.clone(), tls: config.tls.clone() }
}

fn sentinels(config: &RedisConfig, sentinel: &SentinelConfig) -> Result<Sentinels, String> {
    let SentinelConfig { urls, master, username, password, tls } = sentinel;
    let of_url = |url: &SecretUrl| RedisEndpoint {
        url: url.clone(),
        username: username.clone(),
        password: password.clone(),
        tls: tls.clone(),
    };
    let all: Vec<RedisEndpoint> = urls.iter().map(|url| of_url(&url.0)).collect();
    // The host is a placeholder: the sentinels report the address.
    let scheme = if config.is_master_tls() { "rediss" } else { "redis" };
    let any = endpoint(config, format!("{scheme}://localhost").into());
    Sentinels::new(&all, master.as_deref().unwrap_or_default(), &any)
}

fn of_cluster(config: &RedisConfig, ClusterConfig { urls }: &ClusterConfig) -> Result<Cluster, String> {
    let all: Vec<RedisEndpoint> = urls.iter().map(|url| endpoint(config, url.0.clone())).collect();
    Cluster::new(&all)
}
