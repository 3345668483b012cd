//! Opens the Redis of a configuration for `check`.

use super::failure::Failure;
use crate::{
    app::{backend::Backend, embedded},
    config::{Config, RedisUrl},
};

pub async fn backend(config: &Config) -> Result<Backend, Failure> {
    let embedded = match config.redis.url {
        RedisUrl::Embedded => Some(
            embedded::running_url(&config.redis.data_dir).await.map_err(|error| Failure::Failed(error.to_string()))?,
        ),
        RedisUrl::Url(_) => None,
    };
    Backend::new(&config.redis, embedded).map_err(Failure::Configuration)
}
