//! What only a library can tell of a configuration: that a key belongs to another certificate, that a file holds none, that
//! a property of Kafka does not exist. `serve` and `check` ask the same.

use std::collections::BTreeMap;

use super::{
    backend::Backend,
    listening,
    sinks::{self, RunningSink},
    sources,
};
use crate::config::{Config, RedisTopology};

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
    together::<(), ()>([redis, sinks, listening::check_settings(&config.server), sources::check_settings(config)])?;
    running_sinks
}

/// # Errors
/// All of them, a line each.
pub fn together<T, All: FromIterator<T>>(made: impl IntoIterator<Item = Result<T, String>>) -> Result<All, String> {
    let (made, errors): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
    if errors.is_empty() {
        return Ok(made.into_iter().flatten().collect());
    }
    Err(errors.into_iter().filter_map(Result::err).collect::<Vec<_>>().join("\n"))
}
