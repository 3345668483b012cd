//! Pages that list what a file defines list all of it, and nothing else.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;

use super::page::{Page, ROOT, pages};

/// Suffixes of the series that a histogram has.
const SERIES: [&str; 3] = ["_bucket", "_count", "_sum"];

fn file(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The names of metrics in a text, without the series of a histogram.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
    let names = words.filter(|word| word.starts_with("punctual_") && !word.ends_with('_'));
    names.map(|name| SERIES.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name).to_owned()).collect()
}

/// Names that `src/metrics/mod.rs` defines.
fn defined() -> BTreeSet<String> {
    let source = file("src/metrics/mod.rs");
    let literals = source.lines().filter(|line| line.contains("const ")).filter_map(|line| line.split('"').nth(1));
    literals.filter(|text| text.starts_with("punctual_")).map(str::to_owned).collect()
}

#[test]
fn the_page_of_metrics_has_each_of_them() {
    let page = Page::read("docs/metrics.md");
    let rows = page.text.lines().filter(|line| line.starts_with("| `punctual_"));
    let listed: BTreeSet<String> = rows.filter_map(|row| row.split(['`', '{']).nth(1)).map(str::to_owned).collect();
    assert_eq!(listed, defined(), "left: rows of docs/metrics.md, right: src/metrics/mod.rs");
}

#[test]
fn every_metric_that_a_page_names_exists() {
    let defined = defined();
    for page in pages() {
        // `punctual_source_*` names several metrics.
        let text = page.text.replace("punctual_source_*", "");
        for name in metrics(&text) {
            assert!(defined.contains(&name), "{} names the metric `{name}`", page.path);
        }
    }
}

#[test]
fn the_page_of_the_api_has_each_call() {
    let openapi: Value = serde_json::from_str(&file("src/api/openapi.json")).expect("JSON");
    let mut calls = BTreeSet::new();
    for (path, item) in openapi["paths"].as_object().expect("paths") {
        let methods = item.as_object().expect("methods").keys().filter(|name| *name != "parameters");
        calls.extend(methods.map(|method| format!("{} {path}", method.to_uppercase())));
    }
    let page = Page::read("docs/api.md");
    let rows = page.text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let methods = ["GET ", "POST ", "PATCH ", "DELETE ", "PUT "];
    let listed: BTreeSet<String> =
        rows.filter(|row| methods.iter().any(|method| row.starts_with(method))).map(str::to_owned).collect();
    assert_eq!(listed, calls, "left: rows of docs/api.md, right: src/api/openapi.json");
}

#[test]
fn the_readme_is_a_front_page() {
    let lines = Page::read("README.md").text.lines().count();
    assert!(lines <= 150, "README.md has {lines} lines: the rest belongs below docs/");
}
