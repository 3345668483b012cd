//! Libraries that are preloaded into `redis-server`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Preloads libraries, their paths separated by spaces.
pub const VARIABLE: &str = "LD_PRELOAD";

/// Compiles the C code of a library. Returns its path in `directory`.
pub fn compile(directory: &Path, name: &str, code: &str) -> PathBuf {
    let [source, library] = ["c", "so"].map(|ending| directory.join(format!("{name}.{ending}")));
    fs::write(&source, code).expect("written");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O2", "-o"]).args([&library, &source]);
    assert!(compiler.status().expect("a compiler is installed").success(), "{name} compiles");
    library
}
