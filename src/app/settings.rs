//! Checks of the configuration that only libraries can make: whether a key belongs to its certificate, whether a file
//! holds a certificate, whether a property of Kafka exists. `serve` and `check` make the same checks.

use std::collections::BTreeMap;

use super::{
    backend::Backend,
    listening,
    sinks::{self, RunningSink},
    sources, spans,
};
use crate::config::{Config, RedisTopology, all_or_errors};

/// All configured sinks by name, if everything else is usable, too. They may connect in the background from now on.
///
/// # Errors
/// Everything that cannot be used, one line each.
pub fn check(config: &Config) -> Result<BTreeMap<String, RunningSink>, String> {
    check_with_sinks(config, |_| true)
}

/// The configured sinks with names that `wanted` returns true for, if everything else is usable, too.
///
/// # Errors
/// Everything that cannot be used, one line each.
pub fn check_with_sinks(
    config: &Config,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, RunningSink>, String> {
    let redis = match config.redis.topology() {
        RedisTopology::Embedded => Ok(()),
        RedisTopology::Url(_) | RedisTopology::Sentinel(_) | RedisTopology::Cluster(_) => {
            Backend::new(&config.redis, None).map(drop).map_err(|error| format!("redis: {error}"))
        }
    };
    let running_sinks = sinks::all(config, wanted);
    let sinks = running_sinks.as_ref().map(drop).map_err(Clone::clone);
    all_or_errors::<(), ()>([
        redis,
        sinks,
        listening::check_settings(&config.server),
        sources::check_settings(config),
        spans::check_settings(config),
    ])?;
    running_sinks
}
