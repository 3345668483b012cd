//! The sources of values: files, the environment and the command line. Each is a tree with the origin of its values.

use std::{collections::BTreeMap, path::Path as FilePath};

use figment::value::{Dict, Value};
use granit_parser::{Event, Marker, Parser};
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};

use super::{
    entries::put_over,
    expand::read_file,
    problem::{Origins, Path, Problems, SettingOrigin},
    yaml_hint::hint,
};

/// Prefix of the environment variables that are settings. It has two underscores because Kubernetes injects
/// `PUNCTUAL_PORT` and the like for a service called `punctual`.
pub const PREFIX: &str = "PUNCTUAL__";

/// Prefix of the environment variables that files override: the defaults of an image or a service.
pub const DEFAULT_PREFIX: &str = "PUNCTUAL_DEFAULT__";

/// Maximum scalars, beginnings and ends that the aliases of a file expand to: enough for thousands of routes, and read
/// in a fraction of a second.
const MAX_ALIASED_EVENTS: usize = 100_000;

/// Values of one source, without the empty ones.
#[derive(Debug, Default)]
pub struct Layer {
    pub values: Dict,
    pub origins: Origins,
}

/// Reads a YAML (or JSON) file. `None` after a report when it cannot be read at all.
pub fn file(path: &FilePath, problems: &mut Problems) -> Option<Layer> {
    let origin = |line, column| SettingOrigin::File { file: path.to_owned(), line, column };
    let root = Path::default();
    let mut refuse = |line, column, text: String| {
        problems.add_at(Some(origin(line, column)), &root, text);
        None
    };
    let text = match read_file(path) {
        Ok(text) => text,
        Err(error) => return refuse(0, 0, format!("cannot be read: {error}")),
    };
    // Duplicates are reported below, all of them and with their paths.
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        // Such numbers are refused later, with their paths.
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        with_snippet: false,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_ALIASED_EVENTS },
    };
    let values = match serde_saphyr::from_str_with_options::<Value>(&text, options) {
        Ok(Value::Dict(_, values)) => values,
        Ok(Value::Empty(..)) => {
            problems.warn_at(Some(origin(0, 0)), &root, "is empty");
            Dict::new()
        }
        Ok(_) => return refuse(1, 1, "must hold a mapping with keys such as `redis` and `routes`".into()),
        Err(error) => {
            let (line, column) = error.location().map_or((0, 0), |at| (at.line(), at.column()));
            let [line, column] = [line, column].map(|number| usize::try_from(number).unwrap_or(0));
            let error = error.to_string();
            // The text already contains the position.
            let error = error.split_once(" at line ").map_or(error.as_str(), |(what, _)| what);
            // Names of the reader's own functions.
            let error = error.split_once("; use ").map_or(error, |(what, _)| what);
            let hint = hint(&text, line, error).map_or(String::new(), |text| format!("; {text}"));
            return refuse(line, column, format!("is not YAML: {error}{hint}"));
        }
    };
    let places = Places::of(&text);
    let origin = |mark: Marker| origin(mark.line(), mark.col() + 1);
    for (path, mark, first) in places.duplicates {
        let text = format!("is a duplicate key: it is at line {}, column {} too", first.line(), first.col() + 1);
        problems.add_at(Some(origin(mark)), &path, text);
    }
    let values = without_empty(values);
    Some(Layer { values, origins: places.found.into_iter().map(|(path, mark)| (path, origin(mark))).collect() })
}

/// Settings from the environment variables that begin with `prefix`. A name matches a `known` key if they differ only
/// in case and in `_` for `-` and `.`. Any other name becomes lower case. Every value is text.
pub fn environment(prefix: &str, env: &BTreeMap<String, String>, known: &Dict) -> Layer {
    let mut layer = Layer::default();
    // From the end: a name that is both a section and a text stays a text, and is reported as such.
    for (variable, text) in env.iter().rev() {
        let Some(name) = variable.strip_prefix(prefix) else { continue };
        let mut known = Some(known);
        let mut path = Path::default();
        for part in name.split("__") {
            let same = |key: &&String| key.replace(['-', '.'], "_").eq_ignore_ascii_case(part);
            let key = known.and_then(|dict| dict.keys().find(same)).cloned().unwrap_or_else(|| part.to_lowercase());
            known = known.and_then(|dict| dict.get(&key)).and_then(Value::as_dict);
            path = path.key(key);
        }
        put_over(&mut layer.values, nested(&path, text));
        layer.origins.insert(path, SettingOrigin::Variable(variable.clone()));
    }
    layer
}

/// One setting with a given origin.
pub fn single(path: &Path, text: &str, origin: Option<SettingOrigin>) -> Layer {
    let origins = origin.map(|origin| (path.clone(), origin)).into_iter().collect();
    Layer { values: nested(path, text), origins }
}

fn nested(path: &Path, text: &str) -> Dict {
    let value = path.0.iter().rfold(Value::from(text), |inner, key| Dict::from([(key.clone(), inner)]).into());
    value.into_dict().unwrap_or_default()
}

/// Settings that decide who has access and what is signed. If one is empty, that is a mistake: it does not count as
/// missing.
pub const NEVER_EMPTY: [&str; 3] = ["auth", "tokens", "signing_secrets"];

/// Removes keys without a value. Names of sinks, routes, sources and schedules, and `NEVER_EMPTY`, stay: there it is a mistake.
pub fn without_empty(mut values: Dict) -> Dict {
    drop_empty(&mut values, &Path::default());
    values
}

fn drop_empty(values: &mut Dict, at: &Path) {
    let has_names =
        matches!(&at.0[..], [section] if ["sinks", "routes", "sources", "schedules"].contains(&section.as_str()));
    let stays = |key: &str| has_names || NEVER_EMPTY.contains(&key);
    values.retain(|key, value| stays(key) || !matches!(value, Value::Empty(..)));
    for (key, value) in values {
        let at = at.key(key);
        if let Value::Dict(_, inner) = value
            && !is_payload(&at)
        {
            drop_empty(inner, &at);
        }
    }
}

/// Whether the value at `at` is the payload of a schedule, or in it. There, an empty value is `null`.
pub fn is_payload(at: &Path) -> bool {
    matches!(&at.0[..], [section, _, field, ..] if section == "schedules" && field == "payload")
}

/// The positions of keys and list items in a YAML text.
#[derive(Debug, Default)]
struct Places {
    found: BTreeMap<Path, Marker>,
    /// The later place and the one before it.
    duplicates: Vec<(Path, Marker, Marker)>,
}

impl Places {
    /// `text` has been parsed before. The walk ends at a syntax error.
    fn of(text: &str) -> Self {
        let mut places = Self::default();
        // Without this option the parser reports comments, which only the YAML reader needs.
        let options = granit_parser::options! { emit_comments: false };
        let parser = Parser::new_from_str_with_options(text, options);
        let mut events = parser.map_while(Result::ok).map(|(event, span)| (event, span.start));
        while let Some((event, _)) = events.next() {
            places.node(&event, &Path::default(), &mut events);
        }
        places
    }

    fn node<'a>(&mut self, event: &Event<'a>, at: &Path, events: &mut impl Iterator<Item = (Event<'a>, Marker)>) {
        match event {
            Event::SequenceStart(..) => {
                for index in 0_usize.. {
                    let Some((event, mark)) = events.next() else { return };
                    if matches!(event, Event::SequenceEnd) {
                        return;
                    }
                    let path = at.key(index.to_string());
                    self.found.insert(path.clone(), mark);
                    self.node(&event, &path, events);
                }
            }
            Event::MappingStart(..) => {
                while let Some((event, mark)) = events.next() {
                    let path = match event {
                        Event::MappingEnd => return,
                        Event::Scalar(key, ..) => at.key(key),
                        // A key that is not text is unknown; `Value` refuses it.
                        other => {
                            self.node(&other, at, events);
                            at.clone()
                        }
                    };
                    if let Some(first) = self.found.insert(path.clone(), mark) {
                        // The last key counts, so keys inside the first are not duplicates of keys inside the last.
                        self.found.retain(|other, _| *other == path || !other.0.starts_with(&path.0));
                        self.duplicates.push((path.clone(), mark, first));
                    }
                    let Some((event, _)) = events.next() else { return };
                    self.node(&event, &path, events);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_and_item_has_its_place() {
        let places = Places::of(
            "# comment\na:  # comment\n  b: 1  # comment\n  # comment\n  c: [x, {d: 2}]\n\"e\": |\n  text\n",
        );
        let shown: Vec<String> =
            places.found.iter().map(|(path, at)| format!("{path} {}:{}", at.line(), at.col() + 1)).collect();
        assert_eq!(shown, ["a 2:1", "a.b 3:3", "a.c 5:3", "a.c.0 5:7", "a.c.1 5:10", "a.c.1.d 5:11", "e 6:1"]);
        assert_eq!(places.duplicates, []);
    }

    #[test]
    fn environment_variables_find_the_names_that_files_gave() {
        let known = Dict::from([(
            "routes".to_owned(),
            Value::from(Dict::from([("Order-time.out".to_owned(), Value::from(Dict::new()))])),
        )]);
        let env = [
            ("PUNCTUAL__ROUTES__ORDER_TIME_OUT__LEASE", "9s"),
            ("PUNCTUAL__ROUTES__NEW__SINK", "x"),
            ("PUNCTUAL_PORT", "tcp://1"),
        ];
        let layer = environment(PREFIX, &env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(), &known);
        let paths: Vec<String> = layer.origins.keys().map(ToString::to_string).collect();
        assert_eq!(paths, ["routes.Order-time.out.lease", "routes.new.sink"]);
    }
}
