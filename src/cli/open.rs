//! Opens the Redis of a configuration for `check`.

use super::failure::Failure;
use crate::{
    app::{backend::Backend, embedded},
    config::{Config, RedisTopology},
};

pub async fn backend(config: &Config) -> Result<Backend, Failure> {
    let embedded = match config.redis.topology() {
        RedisTopology::Embedded => Some(
            embedded::running_url(&config.redis.data_dir).await.map_err(|error| Failure::Failed(error.to_string()))?,
        ),
        RedisTopology::Url(_) | RedisTopology::Sentinel(_) | RedisTopology::Cluster(_) => None,
    };
    Backend::new(&config.redis, embedded).map_err(Failure::Configuration)
}
