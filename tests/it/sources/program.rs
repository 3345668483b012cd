//! Producers in other languages (`tests/clients`), which `tests/run.sh` installs and builds.

use std::{
    env,
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::process::Command;

/// A program that may be missing; with `CI=true` it must not be.
pub struct Program {
    file: PathBuf,
    first: Option<PathBuf>,
}

impl Program {
    pub fn python() -> Option<Self> {
        Self::find("target/clients/python/bin/python", Some("tests/clients/python/zadd.py"))
    }

    pub fn node() -> Option<Self> {
        Self::find("target/clients/node/node_modules/redis", None)?;
        Some(Self { file: "node".into(), first: Some(root("tests/clients/node/zadd.js")) })
    }

    pub fn go() -> Option<Self> {
        Self::find("target/clients/go/delayqueue", None)
    }

    fn find(file: &str, script: Option<&str>) -> Option<Self> {
        let file = root(file);
        if !file.exists() {
            let missing = format!("no {}: tests/run.sh puts it there", file.display());
            assert!(env::var("CI").as_deref() != Ok("true"), "{missing}");
            eprintln!("skipped: {missing}");
            return None;
        }
        Some(Self { file, first: script.map(root) })
    }

    /// Runs it to its end, which must be a good one.
    pub async fn run(&self, arguments: &[&str]) {
        let mut command = Command::new(&self.file);
        command.args(&self.first).args(arguments).env("NODE_PROJECT", root("target/clients/node"));
        let ended = command.stdin(Stdio::null()).kill_on_drop(true).output().await.expect("it starts");
        let error = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{}: {}\n{error}", self.file.display(), ended.status);
    }
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
