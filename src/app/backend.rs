//! The Redis of the queues, as configured: a server elsewhere, or the embedded one.

use std::{sync::Arc, time::Duration};

use redis::Client;

use crate::{
    config::{RedisConfig, RedisUrl},
    store::redis::{
        WakeListener,
        connection::{Connection, Mastership, RedisEndpoint, client},
    },
};

/// A way to the queues' Redis.
pub struct Backend {
    client: Client,
    timeout: Duration,
    mastership: Arc<Mastership>,
}

impl Backend {
    /// `embedded_url`: where the embedded server listens, when it is the one.
    ///
    /// # Errors
    /// When the URL or a TLS file cannot be used.
    pub fn new(config: &RedisConfig, embedded_url: Option<String>) -> Result<Self, String> {
        let url = match (&config.url, embedded_url) {
            (RedisUrl::Url(url), _) => url.clone(),
            (RedisUrl::Embedded, Some(url)) => url.into(),
            (RedisUrl::Embedded, None) => return Err("the embedded redis is not running".into()),
        };
        let server = RedisEndpoint {
            url,
            username: config.username.clone(),
            password: config.password.clone(),
            tls: config.tls.clone(),
        };
        Ok(Self { client: client(&server)?, timeout: config.timeout.0, mastership: Arc::default() })
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// A connection of its own; it connects with the first command.
    pub fn connection(&self) -> Arc<Connection> {
        Arc::new(Connection::new(self.client.clone(), self.timeout).beside(self.mastership.clone()))
    }

    /// The subscription to wake-ups, on a connection of its own.
    pub fn wakes(&self) -> WakeListener {
        WakeListener::new(self.client.clone()).beside(self.mastership.clone())
    }
}
