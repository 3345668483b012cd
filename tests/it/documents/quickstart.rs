//! `examples/quickstart.sh` says what a fresh machine lacks.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use super::page::ROOT;

/// Its exit code and its errors, with this program as `cargo`, or none.
fn run(cargo: Option<&str>) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().expect("a directory");
    if let Some(script) = cargo {
        let path = directory.path().join("cargo");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
    }
    let mut command = Command::new("bash");
    command.arg(Path::new(ROOT).join("examples/quickstart.sh")).arg("--once");
    let path = format!("{}:/usr/bin:/bin", directory.path().display());
    let output = command.env("PATH", path).env("CARGO_HOME", directory.path().join("none")).output().expect("bash");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_missing_and_an_old_rust_are_named() {
    let (code, text) = run(Some("echo 'cargo 1.63.0 (fd9c4297c 2022-07-01)'"));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("quickstart.sh: Rust 1.63.0 is too old: 1.95 or later"), "{text}");
    let (code, text) = run(Some("echo 'no default toolchain' >&2; exit 1"));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("quickstart.sh: cargo does not run: install Rust 1.95"), "{text}");
    // A cargo of the system's packages would be found.
    if !Path::new("/usr/bin/cargo").exists() {
        let (code, text) = run(None);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("cargo is missing: install Rust first"), "{text}");
    }
}
