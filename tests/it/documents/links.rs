//! Files, headings and scripts that documents refer to exist.

use std::{collections::BTreeSet, fs, path::Path};

use super::page::{Page, ROOT, pages};

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut broken = Vec::new();
    for page in pages().into_iter().chain([Page::read("ARCHITECTURE.md"), Page::read("CHANGELOG.md")]) {
        for link in page.links().into_iter().filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').map_or((&*link, None), |(file, anchor)| (file, Some(anchor)));
            let path = page.directory().join(file);
            let path = if file.is_empty() { Path::new(ROOT).join(&page.path) } else { path };
            if !path.exists() {
                broken.push(format!("{}: no file `{link}`", page.path));
            } else if let Some(anchor) = anchor.filter(|_| path.exists()) {
                let target = fs::canonicalize(&path).expect("it exists");
                let target =
                    target.strip_prefix(fs::canonicalize(ROOT).expect("it exists")).expect("in the repository");
                if !Page::read(&target.to_string_lossy()).anchors().iter().any(|known| known == anchor) {
                    broken.push(format!("{}: no heading `{link}`", page.path));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_page_can_be_reached_from_the_readme() {
    let mut reached = BTreeSet::from(["README.md".to_owned()]);
    let mut waiting = vec!["README.md".to_owned()];
    let root = fs::canonicalize(ROOT).expect("it exists");
    while let Some(path) = waiting.pop() {
        let page = Page::read(&path);
        for link in page.links() {
            let file = link.split('#').next().unwrap_or_default();
            let Ok(target) = fs::canonicalize(page.directory().join(file)) else { continue };
            let Ok(target) = target.strip_prefix(&root) else { continue };
            let target = target.to_string_lossy().into_owned();
            let is_page = Path::new(&target).extension().is_some_and(|extension| extension == "md");
            if is_page && reached.insert(target.clone()) {
                waiting.push(target);
            }
        }
    }
    for page in pages() {
        assert!(reached.contains(&page.path), "no link leads from README.md to {}", page.path);
    }
}

/// Texts between backticks in a document, and the targets of its links.
fn named(document: &str) -> BTreeSet<String> {
    let page = Page::read(document);
    let code = page.text.split('`').skip(1).step_by(2).map(str::to_owned);
    code.chain(page.links()).map(|name| name.trim_start_matches("./").trim_end_matches('/').to_owned()).collect()
}

/// Every directory below `directory`, itself included, as a path from the root.
fn directories(directory: &str) -> Vec<String> {
    let mut found = vec![directory.to_owned()];
    for entry in fs::read_dir(Path::new(ROOT).join(directory)).expect("a directory") {
        let entry = entry.expect("an entry");
        if entry.file_type().expect("a type").is_dir() {
            let name = entry.file_name().into_string().expect("UTF-8");
            found.extend(directories(&format!("{directory}/{name}")));
        }
    }
    found
}

#[test]
fn every_path_that_a_document_names_is_there() {
    let ours = ["src/", "tests/", "examples/", "config/", "deploy/", "lua/", ".ci/"];
    let documents = pages().into_iter().map(|page| page.path).chain(["ARCHITECTURE.md".to_owned()]);
    for document in documents {
        for name in named(&document).into_iter().filter(|name| ours.iter().any(|start| name.starts_with(start))) {
            let path = name.split([' ', '\n', '#']).next().unwrap_or_default();
            // `NAME` is a placeholder.
            let path = path.split("/NAME").next().unwrap_or_default();
            assert!(Path::new(ROOT).join(path).exists(), "{document} names `{path}`");
        }
    }
}

#[test]
fn the_code_map_has_every_directory() {
    let map = named("ARCHITECTURE.md");
    // `src/fuzz.rs` describes the folders of the corpus.
    let is_code = |directory: &String| !directory.starts_with("tests/corpus/");
    for directory in ["src", "tests"].into_iter().flat_map(directories).filter(is_code) {
        let within = format!("{directory}/");
        let is_named = map.iter().any(|name| *name == directory || name.starts_with(&within));
        assert!(is_named, "ARCHITECTURE.md does not name `{directory}`");
    }
}

/// Maximum number of words of the map, without its blocks: ten minutes of reading.
const MAP_WORDS: usize = 1500;
/// Maximum number of characters of a cell of its tables, so that a row is one line.
const MAP_CELL: usize = 100;

#[test]
fn the_code_map_is_short() {
    let map = Page::read("ARCHITECTURE.md");
    let words = |text: &str| text.split_whitespace().count();
    let in_blocks: usize = map.blocks().iter().map(|block| words(&block.text)).sum();
    let count = words(&map.text) - in_blocks;
    assert!(count <= MAP_WORDS, "ARCHITECTURE.md has {count} words: details belong into docs/internals/");
    for cell in map.text.lines().filter(|line| line.starts_with('|')).flat_map(|line| line.split('|')) {
        assert!(cell.trim().chars().count() <= MAP_CELL, "too long for a table of ARCHITECTURE.md: {cell}");
    }
}

#[test]
fn the_states_of_a_message_name_every_script() {
    let map = Page::read("ARCHITECTURE.md").text;
    let states = map.split("\n## ").find(|part| part.starts_with("The states of a message")).expect("a section");
    let words: BTreeSet<&str> = states.split(|char: char| !char.is_ascii_lowercase() && char != '_').collect();
    for entry in fs::read_dir(Path::new(ROOT).join("lua")).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "lua") {
            let name = path.file_stem().and_then(|name| name.to_str()).expect("UTF-8");
            assert!(words.contains(name), "ARCHITECTURE.md has no arrow for lua/{name}.lua");
        }
    }
}
