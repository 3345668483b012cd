//! The queue's Redis, as configured: an external server, or the embedded one.

use std::{sync::Arc, time::Duration};

use redis::Client;

use crate::{
    config::{RedisConfig, RedisUrl},
    store::redis::{
        WakeListener,
        connection::{Connection, Mastership, RedisEndpoint, client},
    },
};

/// Makes connections to the queue's Redis.
pub struct Backend {
    client: Client,
    timeout: Duration,
    mastership: Arc<Mastership>,
}

impl Backend {
    /// `embedded_url`: the address of the embedded server, if it is configured.
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

    /// A new connection; it connects with the first command.
    pub fn connection(&self) -> Arc<Connection> {
        Arc::new(Connection::new(self.client.clone(), self.timeout).beside(self.mastership.clone()))
    }

    /// The subscription to wake-ups, on a new connection.
    pub fn wakes(&self) -> WakeListener {
        WakeListener::new(self.client.clone()).beside(self.mastership.clone())
    }
}
