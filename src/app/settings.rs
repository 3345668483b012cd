//! What only a library can tell of a configuration: that a key belongs to another certificate, that a file holds none, that
//! a property of Kafka does not exist. `serve` and `check` ask the same.

use std::collections::BTreeMap;

use super::{
    backend::Backend,
    listening,
    sinks::{self, RunningSink},
    sources,
};
use crate::config::{Config, RedisTopology, all_or_errors};

/// Every configured sink by its name, where nothing else is wrong either. They may connect in the background from now on.
///
/// # Errors
/// All that cannot be used, a line each.
pub fn check(config: &Config) -> Result<BTreeMap<String, RunningSink>, String> {
    let redis = match config.redis.topology() {
        RedisTopology::Embedded => Ok(()),
        RedisTopology::Url(_) | RedisTopology::Sentinel(_) | RedisTopology::Cluster(_) => {
            Backend::new(&config.redis, None).map(drop).map_err(|error| format!("redis: {error}"))
        }
    };
    let running_sinks = sinks::all(config);
    let sinks = running_sinks.as_ref().map(drop).map_err(Clone::clone);
    all_or_errors::<(), ()>([
        redis,
        sinks,
        listening::check_settings(&config.server),
        sources::check_settings(config),
    ])?;
    running_sinks
}
