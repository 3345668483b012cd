//! What only a library can tell of a configuration: that a key belongs to another certificate, that a file holds none, that
//! a property of Kafka does not exist. `serve` and `check` ask the same.

use std::collections::BTreeMap;

use super::{
    listening,
    sinks::{self, RunningSink},
    sources,
};
use crate::config::Config;

/// Every configured sink by its name, where nothing else is wrong either. They may connect in the background from now on.
///
/// # Errors
/// All that cannot be used, a line each.
pub fn check(config: &Config) -> Result<BTreeMap<String, RunningSink>, String> {
    let others = [listening::check_settings(&config.server), sources::check_settings(config)];
    let mut errors: Vec<String> = others.into_iter().filter_map(Result::err).collect();
    match sinks::all(config) {
        Ok(running_sinks) if errors.is_empty() => return Ok(running_sinks),
        Ok(_) => {}
        Err(error) => errors.insert(0, error),
    }
    Err(errors.join("\n"))
}
