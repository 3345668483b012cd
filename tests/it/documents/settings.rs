//! The tables of settings: made from `config/defaults.yaml` and `punctual schema`, and compared with the pages.

use std::{collections::BTreeSet, env, fs, path::Path, process::Command};

use serde_json::{Map, Value};

use super::page::{Page, ROOT, pages};

/// When it is set, the tables are written into the pages instead of compared.
const WRITE: &str = "PUNCTUAL_WRITE_DOCS";
/// Opens a table on a page: the name of a group of settings follows.
const BEGIN: &str = "<!-- settings: ";
/// Closes it. The lines between are the table.
const END: &str = "<!-- end of settings -->";
/// The page that has every group.
const ALL: &str = "docs/configuration.md";

/// In place of a default.
const REQUIRED: &str = "required";

/// A group of settings: its properties in the schema, and where `defaults.yaml` has their values.
struct Group {
    name: String,
    properties: Map<String, Value>,
    defaults: Value,
}

struct Sources {
    schema: Value,
    defaults: Value,
}

impl Sources {
    fn read() -> Self {
        let program = env!("CARGO_BIN_EXE_punctual");
        let output = Command::new(program).arg("schema").output().expect("the program runs");
        let defaults = fs::read_to_string(Path::new(ROOT).join("config/defaults.yaml")).expect("a file");
        Self {
            schema: serde_json::from_slice(&output.stdout).expect("JSON"),
            defaults: serde_saphyr::from_str(&defaults).expect("YAML"),
        }
    }

    /// The target of a `$ref`, also of one in an `anyOf`.
    fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        let of_two = value["anyOf"].as_array().and_then(|all| all.iter().find(|one| one.get("$ref").is_some()));
        match of_two.unwrap_or(value)["$ref"].as_str() {
            Some(reference) => {
                self.schema.pointer(reference.trim_start_matches('#')).expect("a definition that is there")
            }
            None => value,
        }
    }

    fn group(&self, name: &str, schema: &Value, defaults: &Value) -> Group {
        let properties = self.resolve(schema)["properties"].as_object().cloned().unwrap_or_default();
        Group { name: name.to_owned(), properties, defaults: defaults.clone() }
    }

    /// Every group, in the order of the page.
    fn groups(&self) -> Vec<Group> {
        let root = &self.schema["properties"];
        let mut groups = vec![];
        for name in ["redis", "server", "log", "tracing"] {
            groups.push(self.group(name, &root[name], &self.defaults[name]));
        }
        let scalars = ["shutdown_timeout", "max_sleep", "max_in_flight_bytes", "schedules_revision"]
            .map(|name| (name.to_owned(), root[name].clone()));
        let all = Group {
            name: "instance".to_owned(),
            properties: scalars.into_iter().collect(),
            defaults: self.defaults.clone(),
        };
        groups.push(all);
        groups.push(self.group("routes", &root["route_defaults"], &self.defaults["route_defaults"]));
        groups.push(self.group("schedules", &root["schedules"]["additionalProperties"], &Value::Null));
        for kind in ["sink", "source"] {
            let defaults = format!("{kind}_defaults");
            let types = self.resolve(&root[&defaults])["properties"].as_object().expect("types");
            for (name, schema) in types {
                let defaults = &self.defaults[&defaults][name];
                groups.push(self.group(&format!("{kind}s.{name}"), schema, defaults));
            }
        }
        groups
    }

    fn rows(&self, group: &Group) -> Vec<[String; 4]> {
        let mut rows = Vec::new();
        self.collect(&mut rows, "", &group.properties, &group.defaults);
        // Required settings come first. The schema is in alphabetical order.
        rows.sort_by_key(|[_, _, default, _]| default != REQUIRED);
        rows
    }

    fn collect(&self, rows: &mut Vec<[String; 4]>, prefix: &str, properties: &Map<String, Value>, defaults: &Value) {
        for (name, schema) in properties {
            let (path, default, resolved) = (format!("{prefix}{name}"), &defaults[name], self.resolve(schema));
            // Tokens have a page of their own.
            let below = resolved["properties"].as_object().filter(|_| !default.is_string());
            if let Some(below) = below {
                self.collect(rows, &format!("{path}."), below, default);
                continue;
            }
            let text = |schema: &Value| schema["description"].as_str().map(|text| text.replace('\n', " "));
            let meaning = text(schema).or_else(|| text(resolved)).unwrap_or_default().replace('|', "\\|");
            let default = match default {
                Value::Null
                    if meaning.to_lowercase().contains("required.") && !meaning.starts_with("Required with") =>
                {
                    REQUIRED.to_owned()
                }
                Value::Null => "none".to_owned(),
                Value::String(text) if text.is_empty() => "empty".to_owned(),
                Value::String(text) => format!("`{text}`"),
                other => format!("`{other}`"),
            };
            rows.push([path, kind(schema, resolved), default, meaning]);
        }
    }

    fn table(&self, group: &Group) -> String {
        let mut table = "| setting | value | default | meaning |\n|---|---|---|---|\n".to_owned();
        for [path, kind, default, meaning] in self.rows(group) {
            table.extend(["| `", &*path, "` | ", &*kind, " | ", &*default, " | ", &*meaning, " |\n"]);
        }
        table
    }
}

/// The values of a setting, in words.
fn kind(schema: &Value, resolved: &Value) -> String {
    let examples = schema["examples"].to_string();
    let options = |all: &Value, key: &str| -> Option<String> {
        let names = all.as_array()?.iter().map(|one| if key.is_empty() { one.as_str() } else { one[key].as_str() });
        let names: Option<Vec<String>> = names.map(|name| name.map(|name| format!("`{name}`"))).collect();
        names.map(|names| names.join(", "))
    };
    if let Some(options) = options(&resolved["enum"], "").or_else(|| options(&resolved["oneOf"], "const")) {
        return options;
    }
    let types = schema.to_string();
    let has = |name: &str| types.contains(&format!("\"{name}\""));
    if examples.contains("ms\"") {
        "duration"
    } else if examples.contains("iB\"") {
        "size"
    } else if has("boolean") && !has("object") {
        "boolean"
    } else if has("integer") || has("number") && !has("object") {
        "number"
    } else if has("array") {
        "list"
    } else if has("object") || resolved["properties"].is_object() {
        "mapping"
    } else {
        "text"
    }
    .to_owned()
}

/// The page with the tables of today.
fn renewed(page: &Page, sources: &Sources, groups: &[Group]) -> String {
    let mut text = String::new();
    let mut lines = page.text.lines();
    while let Some(line) = lines.next() {
        text.extend([line, "\n"]);
        let Some(name) = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(" -->")) else { continue };
        let group = groups.iter().find(|group| group.name == name);
        let group = group.unwrap_or_else(|| panic!("{}: no group of settings is called `{name}`", page.path));
        text.push_str(&sources.table(group));
        assert!(lines.any(|line| line == END), "{}: a table of settings has no end", page.path);
        text.extend([END, "\n"]);
    }
    text
}

#[test]
fn the_tables_of_settings_are_those_of_the_program() {
    let sources = Sources::read();
    let groups = sources.groups();
    for page in pages() {
        let renewed = renewed(&page, &sources, &groups);
        if env::var(WRITE).is_ok() {
            fs::write(Path::new(ROOT).join(&page.path), renewed).expect("written");
        } else {
            let again = format!("{WRITE}=1 cargo test --test it documents::settings");
            assert!(renewed == page.text, "{} has old tables of settings. To write them: {again}", page.path);
        }
    }
    for group in &groups {
        let opening = format!("{BEGIN}{} -->", group.name);
        let has = |page: &Page| page.text.lines().any(|line| line == opening);
        assert!(has(&Page::read(ALL)), "{ALL} has no line `{opening}`");
        // A sink or source has a page of its own.
        if let Some((kinds, _)) = group.name.split_once('.') {
            let own = format!("docs/{kinds}/");
            let shown = pages().iter().any(|page| page.path.starts_with(&own) && has(page));
            assert!(shown, "no page below {own} has a line `{opening}`");
        }
    }
}

/// The groups come from the schema: what `defaults.yaml` has beside it would be in no table.
#[test]
fn every_default_is_in_a_table() {
    let sources = Sources::read();
    let mut listed = BTreeSet::new();
    for group in sources.groups() {
        let prefix = match group.name.split_once('.') {
            Some((kinds, name)) => format!("{}_defaults.{name}.", kinds.trim_end_matches('s')),
            None if group.name == "routes" => "route_defaults.".to_owned(),
            None if group.name == "instance" => String::new(),
            None => format!("{}.", group.name),
        };
        listed.extend(sources.rows(&group).into_iter().map(|[path, ..]| format!("{prefix}{path}")));
    }
    let mut defaults = Vec::new();
    leaves("", &sources.defaults, &mut defaults);
    for path in defaults.iter().filter(|path| !["sinks", "routes", "sources"].contains(&&***path)) {
        // A mapping that is not set has a row for each of its settings.
        let is_listed = listed.contains(path) || listed.iter().any(|row| row.starts_with(&format!("{path}.")));
        assert!(is_listed, "`{path}` of config/defaults.yaml is in no table of settings");
    }
}

fn leaves(prefix: &str, value: &Value, found: &mut Vec<String>) {
    match value.as_object().filter(|object| !object.is_empty()) {
        Some(object) => object.iter().for_each(|(name, value)| {
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            leaves(&path, value, found);
        }),
        None => found.push(prefix.to_owned()),
    }
}
