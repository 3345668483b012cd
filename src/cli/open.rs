//! Opens the queues for a single command, beside a running instance or without one.

use std::sync::Arc;

use super::{Global, failure::Failure};
use crate::{
    app::{backend::Backend, embedded},
    config::{Config, RedisUrl},
    queue::Queue,
    store::redis::RedisStore,
};

/// The routes are those that Redis knows, with the limits that they were registered with: a message for any other
/// would wait for ever.
pub async fn queue(global: &Global) -> Result<Queue, Failure> {
    let config = global.load()?;
    let backend = backend(&config).await?;
    let connection = backend.connection();
    let prefix = &config.redis.key_prefix;
    let known = RedisStore::new(connection.clone(), prefix, [])
        .known_routes()
        .await
        .map_err(|error| Failure::Failed(error.to_string()))?;
    let sinks = config.routes.iter().map(|(name, route)| (name.as_str().into(), route.sink.clone())).collect();
    let store = RedisStore::new(connection, prefix, known);
    Ok(Queue::new(Arc::new(store), &sinks, config.redis.allow_eviction.0))
}

pub async fn backend(config: &Config) -> Result<Backend, Failure> {
    let embedded = match config.redis.url {
        RedisUrl::Embedded => Some(
            embedded::running_url(&config.redis.data_dir).await.map_err(|error| Failure::Failed(error.to_string()))?,
        ),
        RedisUrl::Url(_) => None,
    };
    Backend::new(&config.redis, embedded).map_err(Failure::Configuration)
}
