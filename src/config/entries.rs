//! Sinks, routes and sources: named by the user, each starting from defaults that the user may change too.

use std::collections::BTreeSet;

use figment::value::{Dict, Value};
use serde::de::DeserializeOwned;

use super::{
    problem::{Origins, Path, Problems},
    raw::{RawRoute, RawSinkDefaults, SINK_TYPES},
    raw_source::{RawSourceDefaults, SOURCE_TYPES},
    read::{read, unknown},
};

/// The names that the configuration gives, also to entries with mistakes.
#[derive(Debug, Default)]
pub struct Names {
    pub sinks: BTreeSet<String>,
    pub routes: BTreeSet<String>,
}

/// Completes every entry with its defaults, and puts each sink and source under its type, as `RawSink` and
/// `RawSource` read it. `built_in` steps in for a default that was wrong.
pub fn prepare(values: &mut Dict, built_in: &Dict, problems: &mut Problems) -> Names {
    let mut names = Names::default();
    let route_defaults = defaults::<RawRoute>(values, built_in, "route_defaults", problems);
    if let Some(Value::Dict(_, routes)) = values.get_mut("routes") {
        names.routes = checked_names(routes, "routes", problems);
        for (name, route) in routes {
            let Value::Dict(_, route) = route else { continue };
            let at = Path::of("routes").key(name);
            fill(route, &route_defaults, &at, &Path::of("route_defaults"), &mut problems.origins);
        }
    }
    let sink_defaults = defaults::<RawSinkDefaults>(values, built_in, "sink_defaults", problems);
    let types = Types { known: &SINK_TYPES, defaults: &sink_defaults, defaults_at: "sink_defaults" };
    names.sinks = prepare_typed(values, "sinks", &types, problems);
    let source_defaults = defaults::<RawSourceDefaults>(values, built_in, "source_defaults", problems);
    let types = Types { known: &SOURCE_TYPES, defaults: &source_defaults, defaults_at: "source_defaults" };
    prepare_typed(values, "sources", &types, problems);
    names
}

/// Entries whose `type` decides what else they take.
struct Types<'a> {
    known: &'a [&'a str],
    /// By type.
    defaults: &'a Dict,
    defaults_at: &'a str,
}

fn prepare_typed(values: &mut Dict, section: &str, types: &Types, problems: &mut Problems) -> BTreeSet<String> {
    let Some(Value::Dict(_, entries)) = values.get_mut(section) else { return BTreeSet::new() };
    let names = checked_names(entries, section, problems);
    entries.retain(|name, entry| prepare_entry(entry, &Path::of(section).key(name), types, problems));
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

/// Whether the entry may stay.
fn prepare_entry(entry: &mut Value, at: &Path, types: &Types, problems: &mut Problems) -> bool {
    let Value::Dict(_, settings) = entry else {
        problems.add(at, "must be a mapping with a `type`");
        return false;
    };
    let name = match settings.remove("type") {
        Some(Value::String(_, name)) if types.known.contains(&name.as_str()) => name,
        Some(Value::String(_, name)) => {
            problems.add(&at.key("type"), unknown(&name, types.known));
            return false;
        }
        Some(_) => {
            problems.add(&at.key("type"), format!("must be one of {}", types.known.join(", ")));
            return false;
        }
        None => {
            problems.add(&at.key("type"), format!("is missing: one of {}", types.known.join(", ")));
            return false;
        }
    };
    if let Some(Value::Dict(_, defaults)) = types.defaults.get(&name) {
        let from = Path::of(types.defaults_at).key(&name);
        fill(settings, defaults, at, &from, &mut problems.origins);
    }
    *entry = Value::from(Dict::from([(name, Value::from(std::mem::take(settings)))]));
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

/// Longest name of a route, sink or source, and longest key prefix, in bytes: they stand in every key and metric.
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
