//! The files below `deploy/` and the Dockerfile: valid, consistent with each other, and true of a running punctual.

mod acl;
mod alerts;
mod compose;
mod dashboard;
mod image;
mod kubernetes;
mod metrics;
mod packages;
mod pods;
mod promql;
mod runbook;
mod systemd;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::support::servers::installed;

/// The labels that tell environments apart.
const ENVIRONMENT: [&str; 2] = ["job", "namespace"];

/// A path from the root of the repository.
fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The documents of a YAML (or JSON) file.
fn documents(name: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&text(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The one document of a file.
fn document(name: &str) -> Value {
    let mut documents = documents(name);
    assert_eq!(documents.len(), 1, "{name}");
    documents.remove(0)
}

/// The elements of a list at a JSON pointer.
fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).unwrap_or_else(|| panic!("no list {pointer} in {value:#}"))
}

fn string<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("no text {pointer} in {value:#}"))
}

/// Runs a program to its success; its output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    text
}

/// `punctual check` of a configuration below `deploy/`, with its secrets as files in a directory of the test.
fn check(name: &str, secrets_at: &str, secrets: &[&str]) {
    let directory = tempfile::tempdir().expect("a directory");
    for secret in secrets {
        let content = if secret.contains("url") { "redis://redis.example:6379/0" } else { &format!("{secret:-<16}") };
        fs::write(directory.path().join(secret), content).expect("written");
    }
    let named = text(name);
    assert!(named.contains(secrets_at), "{name} names no secret at {secrets_at}");
    let here = named.replace(secrets_at, &format!("{}/", directory.path().display()));
    let file = directory.path().join("punctual.yaml");
    fs::write(&file, here).expect("written");
    let image = [("PUNCTUAL_DEFAULT__SERVER__LISTEN", "0.0.0.0:8080")];
    run(Command::new(env!("CARGO_BIN_EXE_punctual")).args(["check", "-c"]).arg(&file).envs(image));
}
