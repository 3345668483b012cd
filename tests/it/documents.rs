//! The documents say what is there.

use std::{collections::BTreeSet, fs, path::Path};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// What a document has between backticks, and the targets of its links.
fn named(document: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(Path::new(ROOT).join(document)).expect("the document is there");
    let code = text.split('`').skip(1).step_by(2);
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    code.chain(links).map(|name| name.trim_start_matches("./").trim_end_matches('/').to_owned()).collect()
}

/// Every directory below `directory`, itself included, as a path from the root.
fn directories(directory: &str) -> Vec<String> {
    let mut found = vec![directory.to_owned()];
    for entry in fs::read_dir(Path::new(ROOT).join(directory)).expect("a directory") {
        let entry = entry.expect("an entry");
        if entry.file_type().expect("a type").is_dir() {
            let name = entry.file_name().into_string().expect("a name of ours");
            found.extend(directories(&format!("{directory}/{name}")));
        }
    }
    found
}

#[test]
fn every_path_that_a_document_names_is_there() {
    let ours = ["src/", "tests/", "examples/", "config/", "lua/", ".ci/"];
    for document in ["README.md", "ARCHITECTURE.md"] {
        for name in named(document).into_iter().filter(|name| ours.iter().any(|start| name.starts_with(start))) {
            let path = name.split(' ').next().unwrap_or_default();
            assert!(Path::new(ROOT).join(path).exists(), "{document} names `{path}`");
        }
    }
}

#[test]
fn the_code_map_has_every_directory() {
    let map = named("ARCHITECTURE.md");
    // Data: a folder for each target, which `src/fuzz.rs` describes.
    let is_code = |directory: &String| !directory.starts_with("tests/corpus/");
    for directory in ["src", "tests"].into_iter().flat_map(directories).filter(is_code) {
        let within = format!("{directory}/");
        let is_named = map.iter().any(|name| *name == directory || name.starts_with(&within));
        assert!(is_named, "ARCHITECTURE.md does not name `{directory}`");
    }
}
