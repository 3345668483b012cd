//! From a tree of values to the settings, going on after a mistake: it is reported, the default takes its place, and
//! all is read again.

use figment::{
    error::{Actual, Kind},
    value::{Dict, Empty, Tag, Value},
};
use schemars::{JsonSchema, schema_for};
use serde::de::DeserializeOwned;

use super::problem::{Path, Problems};

/// Most mistakes of kind and key that are reported in one run.
const MAX_MISTAKES: usize = 100;

/// Settings that became another's: the old key and the new place.
const MOVED: [(&str, &str); 5] = [
    ("ca_file", "tls.ca_file"),
    ("cert_file", "tls.cert_file"),
    ("key_file", "tls.key_file"),
    ("username", "sasl.username"),
    ("password", "sasl.password"),
];

/// Reads `values`, which stand at `at`. A value that is refused is as if it were that of `fallback`. `None` when a setting
/// without one is missing, or after too many mistakes.
pub fn read<T>(values: &mut Dict, at: &Path, fallback: &Dict, problems: &mut Problems) -> Option<T>
where
    T: DeserializeOwned + JsonSchema,
{
    let read = correct::<T>(values, at, fallback, problems);
    if let Some(Err(())) = read {
        let schema = schema_for!(T);
        let required = schema.get("required").and_then(|required| required.as_array());
        for key in required.into_iter().flatten().filter_map(|key| key.as_str()) {
            if !values.contains_key(key) {
                problems.require::<()>(&at.key(key), None);
            }
        }
    }
    read?.ok()
}

/// Corrects `values`, which may lack required settings: they are defaults.
pub fn read_defaults<T: DeserializeOwned>(values: &mut Dict, at: &Path, fallback: &Dict, problems: &mut Problems) {
    let _: Option<Result<T, ()>> = correct(values, at, fallback, problems);
}

/// `Err` when a required setting is missing at the top, which is not reported.
fn correct<T: DeserializeOwned>(
    values: &mut Dict,
    at: &Path,
    fallback: &Dict,
    problems: &mut Problems,
) -> Option<Result<T, ()>> {
    let mut tree = Value::from(std::mem::take(values));
    let fallback = Value::from(fallback.clone());
    let mut result = None;
    for _ in 0..MAX_MISTAKES {
        let error = match T::deserialize(&tree) {
            Ok(read) => {
                result = Some(Ok(read));
                break;
            }
            Err(error) => error,
        };
        let path = Path([&at.0[..], &error.path[..]].concat());
        match error.kind {
            Kind::MissingField(_) if error.path.is_empty() => {
                result = Some(Err(()));
                break;
            }
            Kind::MissingField(key) => {
                problems.require::<()>(&path.key(key), None);
                remove(&mut tree, &error.path, None);
            }
            // The whole of it, which no default can stand in for.
            kind if error.path.is_empty() => {
                problems.refuse(&path, text(kind));
                break;
            }
            kind => {
                let known = problems.is_refused(&path);
                problems.refuse(&path, text(kind));
                let instead = fallback.find_ref(&error.path.join(".")).filter(|_| !known);
                remove(&mut tree, &error.path, instead);
            }
        }
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

/// Takes a value out, or puts another in its place.
fn remove(tree: &mut Value, path: &[String], instead: Option<&Value>) {
    match (tree, path) {
        (Value::Dict(_, dict), [key]) => match instead {
            Some(value) => drop(dict.insert(key.clone(), value.clone())),
            None => drop(dict.remove(key)),
        },
        (Value::Dict(_, dict), [key, rest @ ..]) => {
            if let Some(inner) = dict.get_mut(key) {
                remove(inner, rest, instead);
            }
        }
        (Value::Array(_, items), [index, rest @ ..]) => {
            let item = index.parse().ok().and_then(|index: usize| items.get_mut(index));
            match item {
                Some(item) if rest.is_empty() => *item = refused(),
                Some(item) => remove(item, rest, instead),
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
        Kind::UnknownField(key, known) => moved(&key, known).unwrap_or_else(|| unknown(&key, known)),
        Kind::UnknownVariant(key, known) => unknown(&key, known),
        other => other.to_string(),
    }
}

/// What `value` holds, when it is a mapping.
pub fn mapping<'a>(value: &'a mut Value, at: &Path, problems: &mut Problems) -> Option<&'a mut Dict> {
    if let Value::Dict(_, dict) = value {
        return Some(dict);
    }
    problems.refuse(at, format!("must be a mapping, not {}", kind_of(&value.to_actual())));
    None
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

fn moved(key: &str, known: &[&str]) -> Option<String> {
    let is_place = |place: &str| place.split('.').next().is_some_and(|section| known.contains(&section));
    let (_, place) = MOVED.iter().find(|(old, place)| *old == key && is_place(place))?;
    Some(format!("`{key}` moved to `{place}`"))
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
