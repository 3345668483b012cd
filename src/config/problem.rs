//! The mistakes of a configuration: all at once, each with its path and origin.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use super::Config;

/// Keys and list indices from the root, shown as `routes.order-timeout.lease`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(pub Vec<String>);

impl Path {
    #[must_use]
    pub fn key(&self, key: impl Into<String>) -> Self {
        let mut path = self.clone();
        path.0.push(key.into());
        path
    }

    /// From a text with a dot between the keys: for fixed paths.
    pub fn of(dotted: &str) -> Self {
        Self(dotted.split('.').map(str::to_owned).collect())
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SettingOrigin {
    /// Line and column count from 1; both are 0 when the whole file is meant.
    File {
        file: PathBuf,
        line: usize,
        column: usize,
    },
    /// An environment variable.
    Variable(String),
    CommandLine(&'static str),
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingOrigin::File { file, line: 0, .. } => write!(f, "{}", file.display()),
            SettingOrigin::File { file, line, column } => write!(f, "{}:{line}:{column}", file.display()),
            SettingOrigin::Variable(name) => write!(f, "${name}"),
            SettingOrigin::CommandLine(option) => f.write_str(option),
        }
    }
}

/// The origin of every value that does not come from the built-in defaults.
pub type Origins = BTreeMap<Path, SettingOrigin>;

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// `None` when neither the setting nor a mapping around it was written.
    pub origin: Option<SettingOrigin>,
    pub path: Path,
    /// Names the offending value, unless it is a secret.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        if !self.path.0.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.text)
    }
}

/// All mistakes of a configuration, in the order of the files: one line each.
#[derive(Debug, thiserror::Error)]
pub struct ConfigErrors(pub Vec<Problem>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// Collects mistakes while a configuration is read.
#[derive(Debug, Default)]
pub struct Problems {
    pub origins: Origins,
    found: Vec<Problem>,
    warnings: Vec<Problem>,
    /// Paths of values that were reported and removed from the tree. These values do not count as missing.
    refused: Vec<Path>,
}

impl Problems {
    /// Reports a mistake. Its origin is that of the value, or of the innermost mapping or list around the value.
    pub fn add(&mut self, path: &Path, text: impl Into<String>) {
        self.add_at(self.nearest_origin(path), path, text);
    }

    pub fn add_at(&mut self, origin: Option<SettingOrigin>, path: &Path, text: impl Into<String>) {
        self.found.push(Problem { origin, path: path.clone(), text: text.into() });
    }

    /// Warns of a valid value that is perhaps not intended. The origin is as in `add`.
    pub fn warn(&mut self, path: &Path, text: impl Into<String>) {
        self.warn_at(self.nearest_origin(path), path, text);
    }

    fn nearest_origin(&self, path: &Path) -> Option<SettingOrigin> {
        let of_first = |length| self.origins.get(&Path(path.0[..length].to_vec()));
        (1..=path.0.len()).rev().find_map(of_first).cloned()
    }

    pub fn warn_at(&mut self, origin: Option<SettingOrigin>, path: &Path, text: impl Into<String>) {
        self.warnings.push(Problem { origin, path: path.clone(), text: text.into() });
    }

    /// Reports a value that is removed from the tree.
    pub fn refuse(&mut self, path: &Path, text: impl Into<String>) {
        self.add(path, text);
        self.refused.push(path.clone());
    }

    /// Whether the value at `path`, a value around it or a value inside it was refused: the value is unknown.
    pub fn is_refused(&self, path: &Path) -> bool {
        let related = |refused: &Path| refused.0.starts_with(&path.0) || path.0.starts_with(&refused.0);
        self.refused.iter().any(related)
    }

    /// Returns `value`. Reports a missing value, unless `path` was refused.
    pub fn require<T>(&mut self, path: &Path, value: Option<T>) -> Option<T> {
        if value.is_none() && !self.is_refused(path) {
            self.add(path, "is missing");
        }
        value
    }

    /// Reports `result`'s error.
    pub fn check<T>(&mut self, path: &Path, result: Result<T, impl Into<String>>) -> Option<T> {
        result.map_err(|text| self.add(path, text)).ok()
    }

    /// All mistakes, in the order of the files.
    pub fn into_errors(mut self) -> ConfigErrors {
        self.found.sort();
        self.found.dedup();
        ConfigErrors(self.found)
    }

    /// # Errors
    /// All mistakes, if there are any.
    pub fn finish(mut self, config: Option<Config>) -> Result<Config, ConfigErrors> {
        let mut warnings = std::mem::take(&mut self.warnings);
        warnings.sort();
        match (config, self.into_errors()) {
            (Some(config), errors) if errors.0.is_empty() => Ok(Config { warnings, ..config }),
            (_, errors) => Err(errors),
        }
    }
}

/// All results, or all errors.
///
/// # Errors
/// The errors, one a line.
pub fn all_or_errors<T, All: FromIterator<T>>(
    results: impl IntoIterator<Item = Result<T, String>>,
) -> Result<All, String> {
    let (results, errors): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    if errors.is_empty() {
        return Ok(results.into_iter().flatten().collect());
    }
    Err(errors.into_iter().filter_map(Result::err).collect::<Vec<_>>().join("\n"))
}
