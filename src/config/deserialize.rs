//! Converts a tree of values to settings. A mistake is reported, a default replaces the value, and the tree is read
//! again.

use figment::{
    error::{Actual, Kind},
    value::{Dict, Empty, Tag, Value},
};
use schemars::{JsonSchema, schema_for};
use serde::de::DeserializeOwned;

use super::problem::{Path, Problems};

/// Maximum mistakes of type and key that are reported in one run.
const MAX_MISTAKES: usize = 100;

/// Reads the settings `values` at the path `at`. `None` when a required setting is missing, or after `MAX_MISTAKES`.
pub fn read<T>(values: &mut Dict, at: &Path, fallback: &Dict, problems: &mut Problems) -> Option<T>
where
    T: DeserializeOwned + JsonSchema,
{
    let read = correct::<T>(values, at, fallback, problems);
    if read.is_none() {
        let schema = schema_for!(T);
        let required = schema.get("required").and_then(|required| required.as_array());
        for key in required.into_iter().flatten().filter_map(|key| key.as_str()) {
            if !values.contains_key(key) {
                problems.require::<()>(&at.key(key), None);
            }
        }
    }
    read
}

/// Corrects the settings `values` at the path `at`: replaces a refused value by that of `fallback`, or removes it.
/// `None` after `MAX_MISTAKES`, or when a required setting is missing at the top, which is not reported.
pub fn correct<T: DeserializeOwned>(
    values: &mut Dict,
    at: &Path,
    fallback: &Dict,
    problems: &mut Problems,
) -> Option<T> {
    let mut tree = Value::from(std::mem::take(values));
    let fallback = Value::from(fallback.clone());
    let mut read = None;
    for _ in 0..MAX_MISTAKES {
        let error = match T::deserialize(&tree) {
            Ok(all) => {
                read = Some(all);
                break;
            }
            Err(error) => error,
        };
        let path = Path([&at.0[..], &error.path[..]].concat());
        match error.kind {
            Kind::MissingField(_) if error.path.is_empty() => break,
            Kind::MissingField(key) => {
                problems.require::<()>(&path.key(key), None);
                replace(&mut tree, &error.path, None);
            }
            kind => {
                problems.refuse(&path, text(kind));
                // The whole tree was refused: no default can replace it.
                if error.path.is_empty() {
                    break;
                }
                replace(&mut tree, &error.path, fallback.find_ref(&error.path.join(".")));
            }
        }
    }
    if let Value::Dict(_, rest) = tree {
        *values = rest;
    }
    read
}

/// Replaces a refused value in a list, so that the other items keep their places.
pub fn refused() -> Value {
    Value::Empty(Tag::Default, Empty::None)
}

/// Replaces the value at `path` by `instead`, or removes it.
fn replace(tree: &mut Value, path: &[String], instead: Option<&Value>) {
    let [around @ .., last] = path else { return };
    let around = around.iter().try_fold(tree, |tree, key| match tree {
        Value::Dict(_, dict) => dict.get_mut(key),
        Value::Array(_, items) => items.get_mut(key.parse::<usize>().ok()?),
        _ => None,
    });
    match (around, instead) {
        (Some(Value::Dict(_, dict)), Some(value)) => drop(dict.insert(last.clone(), value.clone())),
        (Some(Value::Dict(_, dict)), None) => drop(dict.remove(last)),
        (Some(Value::Array(_, items)), _) => {
            if let Some(item) = last.parse().ok().and_then(|index: usize| items.get_mut(index)) {
                *item = refused();
            }
        }
        _ => {}
    }
}

/// The text of a mistake. It names types and keys, never a value of the wrong type: a secret can be in the wrong place.
fn text(kind: Kind) -> String {
    match kind {
        Kind::Message(text) => text,
        Kind::InvalidType(actual, expected) | Kind::InvalidValue(actual, expected) => {
            let hint = match (&actual, expected.as_str()) {
                (Actual::Bool(_) | Actual::Unsigned(_) | Actual::Signed(_) | Actual::Float(_), "a string") => {
                    ": put it in quotes"
                }
                _ => "",
            };
            format!("must be {}, not {}{hint}", plain(&expected), kind_of(&actual))
        }
        Kind::UnknownField(key, known) | Kind::UnknownVariant(key, known) => unknown(&key, known),
        other => other.to_string(),
    }
}

/// The YAML name of a type that serde expects.
fn plain(expected: &str) -> &str {
    match expected {
        "a string" | "string" | "path string" => "text",
        "a map" => "a mapping",
        other if other.starts_with("struct ") => "a mapping",
        other => other,
    }
}

/// The YAML name of the type of a value.
pub fn kind_of(actual: &Actual) -> &'static str {
    match actual {
        Actual::Bool(_) => "true or false",
        Actual::Unsigned(_) | Actual::Signed(_) | Actual::Float(_) => "a number",
        Actual::Str(_) | Actual::Char(_) => "text",
        Actual::Seq => "a list",
        Actual::Map => "a mapping",
        Actual::Unit | Actual::Option => "empty",
        _ => "this",
    }
}

/// The text for a name that is not among `known`.
pub fn unknown<'a>(name: &str, known: impl IntoIterator<Item = &'a (impl AsRef<str> + ?Sized + 'a)>) -> String {
    let known: Vec<&str> = known.into_iter().map(AsRef::as_ref).collect();
    // A name is similar if at most one letter in three is wrong.
    let similar = |slips: usize| slips < name.len() && slips * 3 <= name.len().max(3);
    let slips = known.iter().map(|candidate| (strsim::osa_distance(name, candidate), candidate));
    let hint = match slips.min().filter(|(slips, _)| similar(*slips)) {
        Some((_, best)) => format!("did you mean `{best}`? "),
        None => String::new(),
    };
    let list = if known.is_empty() { "nothing".to_owned() } else { known.join(", ") };
    format!("`{}` is unknown: {hint}known: {list}", name.escape_debug())
}
