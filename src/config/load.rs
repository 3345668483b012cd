//! The order of things: defaults, those of the environment, files, environment, command line; then expansion, reading and checking.

use std::{collections::BTreeMap, iter, path::PathBuf};

use figment::{
    Figment, Metadata, Profile, Provider,
    value::{Dict, Map, Value},
};

use super::{
    Config, ConfigErrors,
    check::{self, Root},
    expand::expand,
    problem::{Origins, Path, Problems, SettingOrigin},
    read::read,
    registry::Registry,
    source::{self, Layer},
};

/// Defaults and documentation at once.
const DEFAULTS: &str = include_str!("../../config/defaults.yaml");

/// Where the configuration comes from; later ones win.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    pub files: Vec<PathBuf>,
    /// The whole environment: settings (`PUNCTUAL__...`), defaults (`PUNCTUAL_DEFAULT__...`), and what `${VAR}` may name.
    pub env: BTreeMap<String, String>,
    pub redis_url: Option<RedisUrlOption>,
}

/// What stands in place of `redis.url` on the command line.
#[derive(Clone, Debug)]
pub enum RedisUrlOption {
    /// `--redis-url`
    Text(String),
    /// `--redis-url-file`: its content, without white space around it.
    File(PathBuf),
}

impl Sources {
    /// With this process' environment; what is not Unicode in it is left out.
    pub fn of_process(files: Vec<PathBuf>, redis_url: Option<RedisUrlOption>) -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self { files, env: std::env::vars_os().filter_map(text).collect(), redis_url }
    }
}

/// Reads and validates. Without any file, `redis.url` is `embedded` unless the environment or command line says
/// otherwise. Opens the TLS files that are named, but connects to nothing.
///
/// # Errors
/// All mistakes at once. Only a file that cannot be parsed hides those that are not about syntax.
pub fn load(sources: &Sources, registry: &Registry) -> Result<Config, ConfigErrors> {
    let mut problems = Problems::default();
    let Some(mut values) = merge(sources, &mut problems) else { return problems.finish(None) };
    expand_all(&mut values, &sources.env, &mut problems);
    let built_in = defaults();
    let root: Option<Root> = read(&mut values, &Path::default(), &built_in, &mut problems);
    let config = root.map(|root| check::config(root, registry, &built_in, &mut problems));
    problems.finish(config)
}

fn defaults() -> Dict {
    source::without_empty(serde_saphyr::from_str(DEFAULTS).expect("the built-in defaults are YAML"))
}

/// `None` when a file cannot be read: what is missing then would only mislead.
fn merge(sources: &Sources, problems: &mut Problems) -> Option<Dict> {
    let mut figment = Figment::from(&Layer { values: defaults(), ..Layer::default() });
    let files: Vec<Option<Layer>> = sources.files.iter().map(|file| source::file(file, problems)).collect();
    let defaults = source::environment(source::DEFAULT_PREFIX, &sources.env, &values(&figment));
    let mut layers: Vec<Layer> = iter::once(Some(defaults)).chain(files).collect::<Option<_>>()?;
    let redis_url = Path::of("redis.url");
    if sources.files.is_empty() {
        let text = "no configuration file: only defaults, environment and command line; name one with -c";
        problems.warn_at(None, &Path::default(), text);
        layers.insert(0, source::single(&redis_url, "embedded", None));
    }
    for layer in &layers {
        figment = figment.merge(layer);
    }
    let mut last = vec![source::environment(source::PREFIX, &sources.env, &values(&figment))];
    match &sources.redis_url {
        Some(RedisUrlOption::Text(url)) => {
            last.push(source::single(&redis_url, url, Some(SettingOrigin::CommandLine("--redis-url"))));
        }
        Some(RedisUrlOption::File(file)) => {
            let origin = Some(SettingOrigin::CommandLine("--redis-url-file"));
            match std::fs::read_to_string(file) {
                Ok(url) if url.trim().is_empty() => {
                    problems.add_at(origin, &redis_url, format!("the file `{}` is empty", file.display()));
                }
                Ok(url) => last.push(source::single(&redis_url, url.trim(), origin)),
                Err(error) => {
                    let text = format!("the file `{}` cannot be read: {error}", file.display());
                    problems.add_at(origin, &redis_url, text);
                }
            }
        }
        None => {}
    }
    for layer in &last {
        figment = figment.merge(layer);
    }
    for layer in layers.into_iter().chain(last) {
        record(layer.origins, &mut problems.origins);
    }
    Some(values(&figment))
}

/// A value's place is that of its last source; what holds values from several, that of the last file.
fn record(layer: Origins, origins: &mut Origins) {
    for (path, origin) in layer {
        for length in 1..path.0.len() {
            origins.entry(Path(path.0[..length].to_vec())).or_insert_with(|| origin.clone());
        }
        origins.insert(path, origin);
    }
}

fn values(figment: &Figment) -> Dict {
    let mut data = figment.data().expect("layers cannot fail");
    data.remove(&Profile::Default).unwrap_or_default()
}

impl Provider for &Layer {
    fn metadata(&self) -> Metadata {
        Metadata::default()
    }

    fn data(&self) -> figment::error::Result<Map<Profile, Dict>> {
        Ok(Map::from([(Profile::Default, self.values.clone())]))
    }
}

/// Expands text that was written in files, and takes out what cannot be expanded.
fn expand_all(values: &mut Dict, env: &BTreeMap<String, String>, problems: &mut Problems) {
    values.retain(|key, value| expand_value(value, &Path::default().key(key), env, problems));
}

/// Whether the value may stay.
fn expand_value(value: &mut Value, at: &Path, env: &BTreeMap<String, String>, problems: &mut Problems) -> bool {
    let origin = problems.origins.get(at);
    match value {
        // The environment and the command line hold no `${...}` of ours: a password may well look like one.
        Value::String(..) if matches!(origin, Some(SettingOrigin::Variable(_) | SettingOrigin::CommandLine(_))) => {}
        Value::String(_, text) => match expand(text, env) {
            Ok(expanded) => *text = expanded,
            Err(error) => {
                problems.refuse(at, error);
                return false;
            }
        },
        Value::Dict(_, inner) => inner.retain(|key, value| expand_value(value, &at.key(key), env, problems)),
        Value::Array(_, items) => {
            for (index, item) in items.iter_mut().enumerate() {
                let at = at.key(index.to_string());
                if matches!(item, Value::Empty(..)) {
                    problems.add(&at, "is empty");
                } else if !expand_value(item, &at, env, problems) {
                    *item = super::read::refused();
                }
            }
        }
        _ => {}
    }
    true
}
