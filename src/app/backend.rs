//! The queue's Redis, as configured: an external server, the master that sentinels name, or the embedded one.

use std::{sync::Arc, time::Duration};

use crate::{
    config::{DurabilityConfig, RedisConfig, RedisTopology, SentinelConfig},
    secret::SecretUrl,
    store::redis::{
        Durability, RedisStore, RouteSettings, WakeListener,
        connection::{Connection, RedisEndpoint, Sentinels, Upstream, client},
    },
};

/// Makes connections to the queue's Redis.
pub struct Backend {
    upstream: Arc<Upstream>,
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
        let upstream = match (config.topology(), embedded_url) {
            (RedisTopology::Url(url), _) => address(url.clone())?,
            (RedisTopology::Sentinel(sentinel), _) => sentinels(config, sentinel)?.into(),
            (RedisTopology::Embedded, Some(url)) => address(url.into())?,
            (RedisTopology::Embedded, None) => return Err("the embedded redis is not running".into()),
        };
        let DurabilityConfig { replicas, timeout } = config.durability;
        let durability = (replicas.0 > 0).then_some(Durability { replicas: replicas.0, timeout: timeout.0 });
        Ok(Self { upstream: Arc::new(upstream), timeout: config.timeout.0, durability })
    }

    pub fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }

    /// A store on new connections; a success of what producers ask means what `redis.durability` says.
    pub fn store(&self, prefix: &str, routes: impl IntoIterator<Item = RouteSettings>) -> RedisStore {
        let store = RedisStore::new(self.connection(), prefix, routes);
        match self.durability {
            Some(durability) => store.confirming_over(self.connection(), durability),
            None => store,
        }
    }

    /// A new connection; it connects with the first command.
    pub fn connection(&self) -> Arc<Connection> {
        Arc::new(Connection::to(self.upstream.clone(), self.timeout))
    }

    /// The subscription to wake-ups, on a new connection.
    pub fn wakes(&self) -> WakeListener {
        WakeListener::to(self.upstream.clone())
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
    // The sentinels name the address.
    let scheme = if config.is_master_tls() { "rediss" } else { "redis" };
    let any = endpoint(config, format!("{scheme}://localhost").into());
    Sentinels::new(&all, master.as_deref().unwrap_or_default(), &any)
}
