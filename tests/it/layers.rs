//! The parts of the crate depend downwards only.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Every folder and file at the top of `src`, lowest first: each uses those before it alone.
const LAYERS: [&str; 23] = [
    "fuzz",
    "log_lines",
    "time",
    "calendar",
    "recurrence",
    "secret",
    "tls",
    "retry",
    "message",
    "sink",
    "metrics",
    "incidents",
    "spans",
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

/// The part with the connectors, which do not use each other.
const CONNECTORS: &str = "connector";

/// Lower parts, or single items of them, that a part does not use.
const APART: [(&str, &[&str]); 2] =
    [("scheduler", &["queue", "source", "config", "connector", "store::redis"]), ("api", &["connector", "scheduler"])];

/// Crates that the scheduler does not use. Its simulation alone runs over the Redis store.
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

/// The first two names of each path after `crate::`, also of paths in braces.
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
    let is_simulation = |file: &Path| file.iter().any(|name| name == "simulation");
    for file in files(&scheduler).into_iter().filter(|file| !is_simulation(file)) {
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

/// The paths that a `use` tree names, such as `a::{b, c::d}`.
fn leaves(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    match tree.split_once('{') {
        Some((prefix, group)) => {
            let inner = top_level(group);
            inner.iter().flat_map(|item| leaves(item)).map(|leaf| format!("{prefix}{leaf}")).collect()
        }
        None => vec![tree.split(" as ").next().unwrap_or_default().trim().to_owned()],
    }
}

/// The paths of code that begin with `crate`, `super` or `self`.
fn paths(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for root in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back().unwrap_or(' ');
            if before.is_alphanumeric() || before == '_' || before == ':' {
                continue;
            }
            let rest = &code[at..];
            let mut depth = 0;
            let end = rest.find(|c: char| match c {
                '{' => {
                    depth += 1;
                    false
                }
                '}' => {
                    depth -= 1;
                    depth <= 0
                }
                _ => depth == 0 && !(c.is_alphanumeric() || c == '_' || c == ':'),
            });
            let end = end.map_or(rest.len(), |end| end + usize::from(rest[end..].starts_with('}')));
            found.extend(leaves(&rest[..end]));
        }
    }
    found
}

/// The files of `src` and what each takes from others, by the path of its module.
struct Modules {
    code: BTreeMap<Vec<String>, String>,
}

impl Modules {
    fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut all = BTreeMap::new();
        for file in files(&root) {
            let place = file.strip_prefix(&root).expect("below src").with_extension("");
            let mut names: Vec<_> = place.iter().map(|name| name.to_str().expect("UTF-8").to_owned()).collect();
            if names.iter().any(|name| name == "tests" || name == "main") {
                continue;
            }
            if names.last().is_some_and(|name| name == "mod" || name == "lib") {
                names.pop();
            }
            all.insert(names, code(&file));
        }
        Self { code: all }
    }

    /// The module that defines what `path` names in `module`: re-exports are followed.
    fn resolve(&self, module: &[String], path: &str, depth: u32) -> Option<Vec<String>> {
        let mut at = module.to_vec();
        let mut names = path.split("::").peekable();
        while let Some(&name) = names.peek() {
            match name {
                "crate" => at.clear(),
                "super" => drop(at.pop()),
                "self" => {}
                _ => break,
            }
            names.next();
        }
        while let Some(&name) = names.peek() {
            at.push(name.to_owned());
            if !self.code.contains_key(&at) {
                at.pop();
                break;
            }
            names.next();
        }
        let Some(item) = names.next() else { return Some(at) };
        let code = self.code.get(&at)?;
        if depth == 0 {
            return Some(at);
        }
        for (start, _) in code.match_indices("pub use ") {
            let tree = code[start + "pub use ".len()..].split(';').next().unwrap_or_default();
            for leaf in leaves(tree) {
                if leaf.rsplit("::").next() == Some(item) {
                    let inner =
                        if leaf.starts_with("self::") || leaf.starts_with("super::") || leaf.starts_with("crate::") {
                            leaf
                        } else {
                            format!("self::{leaf}")
                        };
                    return self.resolve(&at, &inner, depth - 1);
                }
            }
        }
        Some(at)
    }

    /// The files that each file uses.
    fn arrows(&self) -> BTreeMap<&[String], BTreeSet<&[String]>> {
        let mut arrows = BTreeMap::new();
        for (module, code) in &self.code {
            let taken = paths(code).into_iter().filter_map(|path| self.resolve(module, &path, 8));
            let taken: BTreeSet<&[String]> = taken
                .filter_map(|other| self.code.get_key_value(&other).map(|(other, _)| &**other))
                .filter(|other| *other != module)
                .collect();
            arrows.insert(&**module, taken);
        }
        arrows
    }
}

/// Modules of these folders take nothing from the `mod.rs` above them: what they share has a file of its own.
const ABOVE_ALONE: [&str; 2] = ["api", "cli"];

#[test]
fn files_form_no_circles() {
    let modules = Modules::read();
    let arrows = modules.arrows();
    let is_folder =
        |module: &&[String]| arrows.keys().any(|other| other.len() > module.len() && other.starts_with(module));
    let mut wrong = BTreeSet::new();
    for (module, taken) in &arrows {
        for above in taken.iter().filter(|other| module.starts_with(other) && !other.is_empty()) {
            if ABOVE_ALONE.contains(&&*above[0]) {
                wrong.insert(format!("{} uses {} above it", module.join("::"), above.join("::")));
            }
        }
        if is_folder(module) {
            continue;
        }
        // All that the file needs, directly or not, without the files that only gather others.
        let (mut reached, mut open) = (BTreeSet::new(), vec![*module]);
        while let Some(at) = open.pop() {
            for next in arrows[at].iter().filter(|next| !is_folder(next)) {
                if reached.insert(*next) {
                    open.push(next);
                }
            }
        }
        if reached.contains(module) {
            let back = taken.iter().filter(|next| reached.contains(*next)).map(|next| next.join("::"));
            wrong.insert(format!(
                "{} needs itself by way of {}",
                module.join("::"),
                back.collect::<Vec<_>>().join(", ")
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", Vec::from_iter(wrong).join("\n"));
}

#[test]
fn every_path_of_a_file_is_found() {
    let code = "use super::{a::B, c::{self, D as E}};\nlet x = crate::f::g(self::h::I::new(), super_::j);";
    assert_eq!(
        Vec::from_iter(paths(code)),
        ["crate::f::g", "self::h::I::new", "super::a::B", "super::c::D", "super::c::self"]
    );
}
