//! The queue's Redis, as configured: an external server, the master that sentinels report, a cluster, or the embedded
//! server.

use std::{sync::Arc, time::Duration};

use crate::{
    config::{ClusterConfig, DurabilityConfig, RedisConfig, RedisTopology, SentinelConfig},
    secret::SecretUrl,
    store::redis::{
        Durability, RedisStore, RouteSettings, WakeListener,
        connection::{
            Cluster, Connection, RedisEndpoint, Sentinels, ServerAddress, Servers, Topology, Upstream, client,
        },
    },
};

/// Makes connections to the queue's Redis.
pub struct Backend {
    topology: Topology,
    timeout: Duration,
    durability: Option<Durability>,
}

impl Backend {
    /// `embedded_url`: the address of the embedded server, if it is configured.
    ///
    /// # Errors
    /// When the URL or a TLS file cannot be used.
    pub fn new(config: &RedisConfig, embedded_url: Option<String>) -> Result<Self, String> {
        let address = |url: SecretUrl| Ok::<Upstream, String>(client(&endpoint(config, url))?.into());
        let single = |upstream: Upstream| Topology::Single(Arc::new(upstream));
        let topology = match (config.topology(), embedded_url) {
            (RedisTopology::Url(url), _) => single(address(url.clone())?),
            (RedisTopology::Sentinel(sentinel), _) => single(sentinels(config, sentinel)?.into()),
            (RedisTopology::Cluster(cluster), _) => Topology::Cluster(Arc::new(of_cluster(config, cluster)?)),
            (RedisTopology::Embedded, Some(url)) => single(address(url.into())?),
            (RedisTopology::Embedded, None) => return Err("the embedded redis is not running".into()),
        };
        let DurabilityConfig { replicas, timeout } = config.durability;
        let durability = (replicas.0 > 0).then_some(Durability { replicas: replicas.0, timeout: timeout.0 });
        Ok(Self { topology, timeout: config.timeout.0, durability })
    }

    /// `None` without sentinels.
    pub fn sentinels(&self) -> Option<&Sentinels> {
        self.topology.sentinels()
    }

    /// The master that the sentinels reported last.
    pub fn master(&self) -> Option<ServerAddress> {
        self.sentinels()?.found()
    }

    /// `None` for a single server.
    pub fn cluster(&self) -> Option<&Arc<Cluster>> {
        match &self.topology {
            Topology::Single(_) => None,
            Topology::Cluster(cluster) => Some(cluster),
        }
    }

    /// Follows changes of the master or the cluster while it is polled. Never returns.
    pub async fn follow(&self) {
        self.topology.follow().await;
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
        self.topology.servers(self.timeout)
    }

    /// A new connection to the only server, and the number of its database.
    ///
    /// # Errors
    /// On a cluster.
    pub fn connection(&self) -> Result<(Arc<Connection>, i64), String> {
        match &self.topology {
            Topology::Single(upstream) => {
                Ok((Arc::new(Connection::to(upstream.clone(), self.timeout)), upstream.database()))
            }
            Topology::Cluster(_) => Err("`redis.cluster` is set".into()),
        }
    }

    /// The subscription to wake-ups, on a new connection.
    pub fn wakes(&self) -> WakeListener {
        WakeListener::new(self.topology.clone())
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
