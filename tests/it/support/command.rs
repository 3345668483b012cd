use std::{path::Path, process::Stdio, time::Duration};

use tempfile::TempDir;
use tokio::{io::AsyncWriteExt, process::Command, time::timeout};

/// Maximum run time of a command: `check --connect` waits up to 15 s for an answer.
const LIMIT: Duration = Duration::from_secs(20);

/// How a command of the real program ended.
#[derive(Debug)]
pub struct Ended {
    /// `None`: by a signal.
    pub code: Option<i32>,
    pub out: String,
    pub error: String,
}

/// A directory with a `punctual.yaml`, where commands run.
pub struct Workplace(TempDir);

impl Workplace {
    pub fn with(configuration: &str) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(directory.path().join("punctual.yaml"), configuration).expect("the configuration is written");
        Self(directory)
    }

    /// With these arguments and `-c punctual.yaml`.
    pub async fn run(&self, arguments: &[&str]) -> Ended {
        self.run_with_input(arguments, b"").await
    }

    pub async fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Ended {
        run(self.0.path(), &[], &[arguments, &["-c", "punctual.yaml"]].concat(), input).await
    }
}

/// Runs the program to its end.
pub async fn run(directory: &Path, environment: &[(String, String)], arguments: &[&str], input: &[u8]) -> Ended {
    let mut child = Command::new(env!("CARGO_BIN_EXE_punctual"))
        .args(arguments)
        .current_dir(directory)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the program was built");
    // It may end without reading it.
    let _ = child.stdin.take().expect("piped").write_all(input).await;
    let ended = timeout(LIMIT, child.wait_with_output()).await;
    let output = ended.unwrap_or_else(|_| panic!("{arguments:?} did not end within {LIMIT:?}")).expect("it ended");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ended { code: output.status.code(), out: text(output.stdout), error: text(output.stderr) }
}
