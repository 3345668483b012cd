//! From a tree of values to the raw structs, going on after a mistake: it is reported, taken out of the tree,
//! and the rest is read again.

use figment::{
    error::{Actual, Kind},
    value::{Dict, Empty, Tag, Value},
};
use serde::de::DeserializeOwned;

use super::problem::{Path, Problems};

/// Most mistakes of kind and key that are reported in one run: nobody reads more at once.
const MAX_MISTAKES: usize = 100;

/// Reads `values`, which stand at `at`. `None` after too many mistakes.
pub fn read<T: DeserializeOwned>(values: &mut Dict, at: &Path, problems: &mut Problems) -> Option<T> {
    let mut tree = Value::from(std::mem::take(values));
    let mut result = None;
    for _ in 0..MAX_MISTAKES {
        let error = match T::deserialize(&tree) {
            Ok(read) => {
                result = Some(read);
                break;
            }
            Err(error) => error,
        };
        let mut path = at.clone();
        // `sinks.x.http.url` is how it is read, `sinks.x.url` how it was written (`RawSink`); sources too.
        let inner = error.path.iter().enumerate();
        let tag = |place| place == 2 && matches!(&*error.path[0], "sinks" | "sources");
        path.0.extend(inner.filter(|(place, _)| !tag(*place)).map(|(_, key)| key.clone()));
        problems.refuse(&path, text(error.kind));
        remove(&mut tree, &error.path);
    }
    if let Value::Dict(_, rest) = tree {
        *values = rest;
    }
    result
}

/// What stands in a list in place of a value that was refused, so that the others keep their places.
pub fn refused() -> Value {
    Value::Empty(Tag::Default, Empty::None)
}

/// Takes a value out.
fn remove(tree: &mut Value, path: &[String]) {
    match (tree, path) {
        (Value::Dict(_, dict), [key]) => {
            dict.remove(key);
        }
        (Value::Dict(_, dict), [key, rest @ ..]) => {
            if let Some(inner) = dict.get_mut(key) {
                remove(inner, rest);
            }
        }
        (Value::Array(_, items), [index, rest @ ..]) => {
            let item = index.parse().ok().and_then(|index: usize| items.get_mut(index));
            match item {
                Some(item) if rest.is_empty() => *item = refused(),
                Some(item) => remove(item, rest),
                None => {}
            }
        }
        _ => {}
    }
}

/// Names kinds and keys, never a value of the wrong kind: it may be a secret in the wrong place.
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
            let expected = expected.strip_prefix("struct ").map_or(expected.as_str(), |_| "a mapping");
            format!("must be {}, not {}{hint}", plain(expected), kind_of(&actual))
        }
        Kind::UnknownField(key, known) | Kind::UnknownVariant(key, known) => unknown(&key, known),
        other => other.to_string(),
    }
}

/// serde's words in those of YAML.
fn plain(expected: &str) -> &str {
    match expected {
        "a string" | "string" | "path string" => "text",
        "a map" => "a mapping",
        other => other,
    }
}

fn kind_of(actual: &Actual) -> &'static str {
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

/// The text for a name that is none of `known`.
pub fn unknown<'a>(name: &str, known: impl IntoIterator<Item = &'a (impl AsRef<str> + ?Sized + 'a)>) -> String {
    let known: Vec<&str> = known.into_iter().map(AsRef::as_ref).collect();
    // One slip in three letters still looks like the same word.
    let similar = |slips: usize| slips < name.len() && slips * 3 <= name.len().max(3);
    let slips = known.iter().map(|candidate| (strsim::osa_distance(name, candidate), candidate));
    let hint = match slips.min().filter(|(slips, _)| similar(*slips)) {
        Some((_, best)) => format!("did you mean `{best}`? "),
        None => String::new(),
    };
    let list = if known.is_empty() { "nothing".to_owned() } else { known.join(", ") };
    format!("`{}` is unknown: {hint}known: {list}", name.escape_debug())
}
