//! The parts of the crate depend downwards only.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Every folder and file at the top of `src`, lowest first: each uses those before it alone.
const LAYERS: [&str; 19] = [
    "fuzz",
    "time",
    "secret",
    "tls",
    "retry",
    "message",
    "sink",
    "metrics",
    "incidents",
    "store",
    "queue",
    "source",
    "config",
    "connector",
    "scheduler",
    "api",
    "app",
    "cli",
    "lib",
];

/// Of a connector, what lies beside it: no connector uses another.
const CONNECTORS: &str = "connector";

/// What a part does not use, although it is lower: a part, or one item of a part.
const APART: [(&str, &[&str]); 2] =
    [("scheduler", &["queue", "source", "config", "connector", "store::redis"]), ("api", &["connector", "scheduler"])];

/// Crates that the scheduler does not use: its tests run on an in-memory store.
const NOT_OF_THE_SCHEDULER: [&str; 5] = ["redis::", "http::", "hyper::", "reqwest::", "figment::"];

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The code of a file without its tests and comments.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("readable");
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// What follows `crate::`: the first two names of each path, also of those in braces.
fn used(code: &str) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        let mut paths = vec![rest.to_owned()];
        if let Some(group) = rest.strip_prefix('{') {
            paths = top_level(group);
        }
        for path in paths {
            let mut names = path
                .split("::")
                .map(|name| name.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>());
            let first = names.next().unwrap_or_default();
            let more = path.split_once("::").map(|(_, more)| more.trim_start().to_owned()).unwrap_or_default();
            let seconds = match more.strip_prefix('{') {
                Some(group) => top_level(group),
                None => vec![more],
            };
            for second in seconds {
                let name = second.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                found.insert((first.clone(), name));
            }
        }
    }
    found
}

/// The items of a group in braces, up to its end.
fn top_level(group: &str) -> Vec<String> {
    let (mut items, mut depth) = (vec![String::new()], 0);
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(String::new());
                continue;
            }
            _ => {}
        }
        items.last_mut().expect("never empty").push(c);
    }
    items.retain(|item| !item.trim().is_empty());
    items
}

#[test]
fn dependencies_point_down() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    for file in files(&root) {
        let place = file.strip_prefix(&root).expect("below src").with_extension("");
        let mut names = place.iter().map(|name| name.to_str().expect("UTF-8").to_owned());
        let (part, inner) = (names.next().unwrap_or_default(), names.next().unwrap_or_default());
        if part == "main" || place.iter().any(|name| name == "tests" || name == "memory") {
            continue;
        }
        let layer = LAYERS.iter().position(|layer| *layer == part);
        let layer = layer.unwrap_or_else(|| panic!("`src/{part}` has no layer: add it to LAYERS"));
        for (other, second) in used(&code(&file)) {
            let upward = LAYERS.iter().position(|layer| *layer == other).is_some_and(|other| other > layer);
            let beside = part == CONNECTORS && other == CONNECTORS && inner != "mod" && second != inner;
            let item = format!("{other}::{second}");
            let apart = APART
                .iter()
                .any(|(user, lower)| *user == part && lower.iter().any(|one| *one == other || *one == item));
            if upward || beside || apart {
                wrong.push(format!("{} uses {other}::{second}", place.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "upwards, or to a part beside it:\n{}", wrong.join("\n"));
}

#[test]
fn the_scheduler_knows_no_external_system() {
    let scheduler = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/scheduler");
    for file in files(&scheduler) {
        let code = code(&file);
        for name in NOT_OF_THE_SCHEDULER {
            assert!(!code.contains(name), "{} uses {name}", file.display());
        }
    }
}

#[test]
fn a_path_is_found_in_every_form() {
    let code = "use crate::{a, b::{c, d::e}, f::g};\nlet x = crate::h::i();";
    let found: Vec<_> = used(code).into_iter().map(|(first, second)| format!("{first} {second}")).collect();
    assert_eq!(found, ["a ", "b c", "b d", "f g", "h i"]);
}
