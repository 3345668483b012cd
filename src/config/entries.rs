//! Entries that the user names: sinks, routes and sources. Each starts from defaults, which the user can change.

use std::collections::BTreeSet;

use figment::value::{Dict, Value};

use super::problem::{Origins, Path, Problems};

/// Adds the settings that `entry` does not have. Their origin is that of the default.
pub fn fill(entry: &mut Dict, defaults: &Dict, at: &Path, from: &Path, origins: &mut Origins) {
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

/// Merges `top` into `values`: mappings key by key. Any other value replaces the earlier one.
pub fn put_over(values: &mut Dict, top: Dict) {
    let (root, below) = (Path::default(), std::mem::replace(values, top));
    fill(values, &below, &root, &root, &mut Origins::new());
}

/// Maximum bytes of a key prefix and of the name of a route, sink or source. Every key and metric contains them.
const MAX_NAME_BYTES: usize = 64;

/// Whether `name` can be part of a Redis key (no braces, no colon), a URL path and a metric label.
pub fn is_name(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(allowed)
}

/// All names of a section, also those of entries with mistakes. Reports invalid names.
pub fn checked_names(entries: &Dict, section: &str, problems: &mut Problems) -> BTreeSet<String> {
    for name in entries.keys().filter(|name| !is_name(name)) {
        let text = format!("`{}` is not a name: 1 to {MAX_NAME_BYTES} of A-Za-z0-9._-", name.escape_debug());
        problems.add(&Path::of(section).key(name), text);
    }
    entries.keys().cloned().collect()
}
