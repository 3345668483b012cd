//! Loads a configuration: merges defaults, defaults of the environment, files, environment and command line in this
//! order, then expands, reads and checks.

use std::{collections::BTreeMap, path::PathBuf};

use figment::value::{Dict, Value};

use super::{
    Config, ConfigErrors,
    check::{self, Root},
    deserialize::{read, refused},
    entries::put_over,
    expand::{expand, read_file},
    fingerprint::Fingerprints,
    problem::{Origins, Path, Problems, SettingOrigin},
    registry::Registry,
    source::{self, Layer},
};

/// The built-in defaults, and the documentation of all settings.
const DEFAULTS: &str = include_str!("../../config/defaults.yaml");

/// Where the configuration comes from. Later sources override earlier ones.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    pub files: Vec<PathBuf>,
    /// The whole environment: settings (`PUNCTUAL__...`), defaults (`PUNCTUAL_DEFAULT__...`), and variables for
    /// `${VAR}`.
    pub env: BTreeMap<String, String>,
    pub redis_url: Option<RedisUrlOption>,
    /// For `punctual dev`: an embedded Redis with its data in this directory replaces all settings of `redis`.
    pub development: Option<PathBuf>,
}

/// The option of the command line that overrides `redis.url`.
#[derive(Clone, Debug)]
pub enum RedisUrlOption {
    /// `--redis-url`
    Text(String),
    /// `--redis-url-file`: the content of the file, without surrounding white space.
    File(PathBuf),
}

impl RedisUrlOption {
    /// The option's name, and the URL or the reason why it cannot be read.
    fn read(&self) -> (&'static str, Result<String, String>) {
        let file = match self {
            Self::Text(url) => return ("--redis-url", Ok(url.clone())),
            Self::File(file) => file,
        };
        let url = match read_file(file) {
            Ok(url) if url.trim().is_empty() => Err(format!("the file `{}` is empty", file.display())),
            Ok(url) => Ok(url.trim().to_owned()),
            Err(error) => Err(format!("the file `{}` cannot be read: {error}", file.display())),
        };
        ("--redis-url-file", url)
    }
}

impl Sources {
    /// With the environment of this process. Variables that are not Unicode are left out.
    pub fn of_process(files: Vec<PathBuf>, redis_url: Option<RedisUrlOption>) -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self { files, env: std::env::vars_os().filter_map(text).collect(), redis_url, development: None }
    }
}

/// Reads and validates the configuration. Without any file, `redis.url` is `embedded` unless the environment or command
/// line sets it. Opens the TLS files, but makes no connection.
///
/// # Errors
/// All mistakes at once. If a file cannot be parsed, only mistakes of syntax are reported.
pub fn load(sources: &Sources, registry: &Registry) -> Result<Config, ConfigErrors> {
    let mut problems = Problems::default();
    let Some(mut values) = merge(sources, &mut problems) else { return problems.finish(None) };
    let (root, built_in) = (Path::default(), defaults());
    values.retain(|key, value| expand_value(value, &root.key(key), &sources.env, &mut problems));
    // A default replaces each value that could not be expanded, so that the rest is checked.
    let expanded = std::mem::replace(&mut values, built_in.clone());
    put_over(&mut values, expanded);
    let effective = values.clone();
    let read: Option<Root> = read(&mut values, &root, &built_in, &mut problems);
    let config = read.map(|read| check::config(read, registry, &built_in, &mut problems));
    let mut config = problems.finish(config)?;
    config.fingerprints = Fingerprints::new(&effective, &config);
    Ok(config)
}

fn defaults() -> Dict {
    source::without_empty(serde_saphyr::from_str(DEFAULTS).expect("the built-in defaults are YAML"))
}

/// `None` when a file cannot be read: reports of its missing settings would mislead.
pub(super) fn merge(sources: &Sources, problems: &mut Problems) -> Option<Dict> {
    let files: Vec<Option<Layer>> = sources.files.iter().map(|file| source::file(file, problems)).collect();
    let layers: Vec<Layer> = files.into_iter().collect::<Option<_>>()?;
    let (redis_url, mut values) = (Path::of("redis.url"), defaults());
    if sources.files.is_empty() {
        let text = "no configuration file: only defaults, environment and command line; name one with -c";
        problems.warn_at(None, &Path::default(), text);
        add(&mut values, source::single(&redis_url, "embedded", None), &mut problems.origins);
    }
    let defaults = source::environment(source::DEFAULT_PREFIX, &sources.env, &values);
    for layer in [defaults].into_iter().chain(layers) {
        add(&mut values, layer, &mut problems.origins);
    }
    let environment = source::environment(source::PREFIX, &sources.env, &values);
    add(&mut values, environment, &mut problems.origins);
    if let Some((option, url)) = sources.redis_url.as_ref().map(RedisUrlOption::read) {
        let origin = Some(SettingOrigin::CommandLine(option));
        match url {
            Ok(url) => add(&mut values, source::single(&redis_url, &url, origin), &mut problems.origins),
            Err(text) => problems.add_at(origin, &redis_url, text),
        }
    }
    if let Some(directory) = &sources.development {
        values.extend(self::defaults().remove_entry("redis"));
        problems.origins.retain(|path, _| path.0.first().is_none_or(|first| first != "redis"));
        let directory = directory.to_string_lossy();
        for (name, value) in [("redis.url", "embedded"), ("redis.data_dir", &*directory)] {
            let origin = Some(SettingOrigin::CommandLine("dev"));
            add(&mut values, source::single(&Path::of(name), value, origin), &mut problems.origins);
        }
    }
    Some(values)
}

/// Merges `layer` into `values`. The origin of a value is its last source. The origin of a mapping from several files
/// is the last file.
fn add(values: &mut Dict, layer: Layer, origins: &mut Origins) {
    put_over(values, layer.values);
    for (path, origin) in layer.origins {
        for length in 1..path.0.len() {
            origins.entry(Path(path.0[..length].to_vec())).or_insert_with(|| origin.clone());
        }
        origins.insert(path, origin);
    }
}

/// Expands text that was written in files. Returns false if the value cannot be expanded and must be removed.
pub(super) fn expand_value(
    value: &mut Value,
    at: &Path,
    env: &BTreeMap<String, String>,
    problems: &mut Problems,
) -> bool {
    let origin = problems.origins.get(at);
    match value {
        // The environment and the command line are not expanded: a password can look like `${...}`.
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
                    if !source::is_payload(&at) {
                        problems.add(&at, "is empty");
                    }
                } else if !expand_value(item, &at, env, problems) {
                    *item = refused();
                }
            }
        }
        _ => {}
    }
    true
}
