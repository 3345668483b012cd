//! The files in `lua/include/`: each script names those that it uses.

use std::collections::BTreeSet;

/// Name and text of the includes that `text` names in its line `-- include <name>...`, each once and after its own.
pub fn includes(text: &str) -> Vec<(String, String)> {
    all_of(named(text))
}

/// Like `includes`, without those that only features need: `-- features <name>...`.
pub fn plain_includes(text: &str) -> Option<Vec<(String, String)>> {
    let features = text.lines().find_map(|line| line.strip_prefix("-- features "))?;
    Some(all_of(named(text).filter(|name| features.split(' ').all(|feature| feature != *name))))
}

fn all_of<'a>(names: impl Iterator<Item = &'a str>) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for name in names {
        let include = super::lua(&format!("include/{name}"));
        let own = includes(&include);
        for one in own.into_iter().chain([(name.to_owned(), include)]) {
            if !found.contains(&one) {
                found.push(one);
            }
        }
    }
    found
}

#[test]
fn each_file_includes_just_what_it_uses() {
    let [scripts, shared] = ["", "include/"].map(names);
    assert!(scripts.len() > 20 && shared.len() > 10, "{scripts:?} {shared:?}");
    let functions: Vec<(&String, Vec<String>)> =
        shared.iter().map(|name| (name, functions(&super::lua(name)))).collect();
    for name in scripts.iter().chain(&shared) {
        let text = own(super::lua(name));
        let local = self::functions(&text);
        let is_called = |function: &String| !local.contains(function) && calls(&text, function);
        let needed: BTreeSet<&str> = functions
            .iter()
            .filter(|(_, functions)| functions.iter().any(is_called))
            .map(|(include, _)| include.strip_prefix("include/").expect("shared"))
            .collect();
        assert_eq!(
            named(&text).collect::<BTreeSet<_>>(),
            needed,
            "lua/{name}.lua: left what it includes, right what it uses"
        );
    }
}

fn named(text: &str) -> impl Iterator<Item = &str> {
    text.lines().find_map(|line| line.strip_prefix("-- include ")).unwrap_or_default().split_whitespace()
}

/// The files of a folder in `lua/`, as `super::lua` takes their names.
fn names(folder: &str) -> Vec<String> {
    let directory = format!("{}/lua/{folder}", env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(directory).expect("a folder");
    let name = |file: std::io::Result<std::fs::DirEntry>| file.expect("readable").file_name().into_string();
    files.filter_map(|file| Some(format!("{folder}{}", name(file).ok()?.strip_suffix(".lua")?))).collect()
}

/// produce.lua contains its includes: without them.
fn own(text: String) -> String {
    let Some((head, rest)) = text.split_once("-- begin include/") else { return text };
    let (_, rest) = rest.rsplit_once("\n-- end\n").expect("the end of the last include");
    format!("{head}{rest}")
}

fn functions(text: &str) -> Vec<String> {
    let names = text.lines().filter_map(|line| line.strip_prefix("local function ")?.split_once('('));
    names.map(|(name, _)| name.to_owned()).collect()
}

fn calls(text: &str, function: &str) -> bool {
    let code = text.lines().map(|line| line.split_once("--").map_or(line, |(code, _)| code));
    code.flat_map(|line| line.match_indices(function).map(move |(at, _)| line.split_at(at))).any(|(before, from)| {
        from[function.len()..].starts_with('(') && !before.ends_with(|c: char| c.is_alphanumeric() || "_.:".contains(c))
    })
}
