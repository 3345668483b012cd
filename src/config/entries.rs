//! Sinks and routes: named by the user, each starting from defaults that the user may change too.

use std::collections::BTreeSet;

use figment::value::{Dict, Value};
use serde::de::DeserializeOwned;

use super::{
    problem::{Origins, Path, Problems},
    raw::{RawRoute, RawSinkDefaults, SINK_TYPES},
    read::{read, unknown},
};

/// The names that the configuration gives, also to entries with mistakes.
#[derive(Debug, Default)]
pub struct Names {
    pub sinks: BTreeSet<String>,
    pub routes: BTreeSet<String>,
}

/// Completes every sink and route with its defaults, and puts each sink under its type, as `RawSink` reads it.
/// `built_in` steps in for a default that was wrong.
pub fn prepare(values: &mut Dict, built_in: &Dict, problems: &mut Problems) -> Names {
    let mut names = Names::default();
    let route_defaults = defaults::<RawRoute>(values, built_in, "route_defaults", problems);
    let sink_defaults = defaults::<RawSinkDefaults>(values, built_in, "sink_defaults", problems);
    if let Some(Value::Dict(_, routes)) = values.get_mut("routes") {
        names.routes = checked_names(routes, "routes", problems);
        for (name, route) in routes {
            let Value::Dict(_, route) = route else { continue };
            let at = Path::of("routes").key(name);
            fill(route, &route_defaults, &at, &Path::of("route_defaults"), &mut problems.origins);
        }
    }
    if let Some(Value::Dict(_, sinks)) = values.get_mut("sinks") {
        names.sinks = checked_names(sinks, "sinks", problems);
        sinks.retain(|name, sink| prepare_sink(sink, &Path::of("sinks").key(name), &sink_defaults, problems));
    }
    names
}

/// The defaults under `key`. Those that are wrong are reported here, not once for every entry.
fn defaults<T: DeserializeOwned>(values: &mut Dict, built_in: &Dict, key: &str, problems: &mut Problems) -> Dict {
    let at = Path::of(key);
    let mut defaults = match values.get_mut(key) {
        Some(Value::Dict(_, defaults)) => {
            let _: Option<T> = read(defaults, &at, problems);
            defaults.clone()
        }
        // It is reported with all else that has the wrong type.
        _ => Dict::new(),
    };
    if let Some(Value::Dict(_, built_in)) = built_in.get(key) {
        fill(&mut defaults, built_in, &at, &at, &mut Origins::new());
    }
    defaults
}

/// Whether the sink may stay.
fn prepare_sink(sink: &mut Value, at: &Path, defaults: &Dict, problems: &mut Problems) -> bool {
    let Value::Dict(_, settings) = sink else {
        problems.add(at, "must be a mapping with a `type`");
        return false;
    };
    let name = match settings.remove("type") {
        Some(Value::String(_, name)) if SINK_TYPES.contains(&name.as_str()) => name,
        Some(Value::String(_, name)) => {
            problems.add(&at.key("type"), unknown(&name, &SINK_TYPES));
            return false;
        }
        Some(_) => {
            problems.add(&at.key("type"), format!("must be one of {}", SINK_TYPES.join(", ")));
            return false;
        }
        None => {
            problems.add(&at.key("type"), format!("is missing: one of {}", SINK_TYPES.join(", ")));
            return false;
        }
    };
    if let Some(Value::Dict(_, defaults)) = defaults.get(&name) {
        let from = Path::of("sink_defaults").key(&name);
        fill(settings, defaults, at, &from, &mut problems.origins);
    }
    *sink = Value::from(Dict::from([(name, Value::from(std::mem::take(settings)))]));
    true
}

/// Adds what `entry` does not say itself. The origin of what was added is that of the default.
fn fill(entry: &mut Dict, defaults: &Dict, at: &Path, from: &Path, origins: &mut Origins) {
    for (key, default) in defaults {
        let (at, from) = (at.key(key), from.key(key));
        if let Value::Dict(_, default) = default {
            let inner = entry.entry(key.clone()).or_insert_with(|| Value::from(Dict::new()));
            if let Value::Dict(_, inner) = inner {
                fill(inner, default, &at, &from, origins);
            }
        } else if !entry.contains_key(key) {
            entry.insert(key.clone(), default.clone());
            if let Some(origin) = origins.get(&from).cloned() {
                origins.insert(at, origin);
            }
        }
    }
}

/// Longest name of a route or sink, and longest key prefix, in bytes: they stand in every key and metric.
const MAX_NAME_BYTES: usize = 64;

/// Whether `name` may stand in a Redis key (no braces, no colon), a URL path and a metric label.
pub fn is_name(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(allowed)
}

fn checked_names(entries: &Dict, section: &str, problems: &mut Problems) -> BTreeSet<String> {
    for name in entries.keys().filter(|name| !is_name(name)) {
        let text = format!("`{}` is not a name: 1 to {MAX_NAME_BYTES} of A-Za-z0-9._-", name.escape_debug());
        problems.add(&Path::of(section).key(name), text);
    }
    entries.keys().cloned().collect()
}
