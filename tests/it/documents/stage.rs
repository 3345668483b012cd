//! Where the commands of a page run: one shell, in a directory like a checkout, with servers of the tests in place
//! of those that the page names.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::{sleep, timeout},
};

use super::page::{Page, ROOT};
use crate::support::{Authority, RabbitMq, RedisServer, kafka, port::Port, receiver::Receiver};

/// Maximum run time of one block.
const BLOCK: Duration = Duration::from_mins(1);
/// Maximum time to stop the programs that a page started.
const STOP: Duration = Duration::from_secs(20);
/// Files and folders of a checkout that pages use.
const CHECKOUT: [&str; 7] = [".ci", "Cargo.toml", "config", "deploy", "examples", "lua", "tests"];
/// Ends the output of a step.
const END: &str = "--end of the step--";

/// `punctual serve` and `punctual dev` go on in the background, ready, until the next one or the end of the page.
const PUNCTUAL: &str = r#"#!/bin/bash
[ "$1" = serve ] || [ "$1" = dev ] || exec "$PROGRAM" "$@"
if [ -f "$STAGE/pid" ]; then
    kill "$(<"$STAGE/pid")"
    while kill -0 "$(<"$STAGE/pid")" 2>/dev/null; do sleep 0.05; done
fi
"$PROGRAM" "$@" >>"$STAGE/punctual.log" 2>&1 &
echo $! >"$STAGE/pid"
for _ in {1..200}; do
    curl -fs --max-time 2 "$API/readyz" >/dev/null && exit 0
    kill -0 $! 2>/dev/null || break
    sleep 0.1
done
cat "$STAGE/punctual.log"
exit 1
"#;

/// `cargo build` for the scripts in `examples/`. The tests have built the programs already; cargo brings them up to
/// date.
const CARGO: &str = r#"#!/bin/bash
[ "$1" = --version ] && exec "$CARGO" --version
[ "$1" = build ] || { echo "the tests let pages build only" >&2; exit 1; }
cargo=$CARGO
# Variables of the package under test: some build scripts run again when they change. Others, like CARGO_INCREMENTAL, must be
# those of the build before, or cargo builds everything anew.
for name in "${!CARGO_PKG_@}" "${!CARGO_MANIFEST_@}"; do unset "$name"; done
cd "$REPOSITORY" && exec "$cargo" build --quiet --locked --bin punctual --examples
"#;

pub struct Stage {
    directory: TempDir,
    /// Texts of a page, and their replacements here.
    replaced: Vec<(&'static str, String)>,
    shell: Child,
    input: ChildStdin,
    output: ChildStdout,
    /// YAML blocks so far.
    files: usize,
    pub receiver: Receiver,
    _redis: RedisServer,
    _api: Port,
    _authority: Authority,
}

impl Stage {
    /// `None`: the page needs a server that cannot be started here.
    pub async fn set_up(page: &Page) -> Option<Self> {
        let text: String = page.blocks().iter().filter(|block| block.is_run()).map(|b| &*b.text).collect();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (redis, api, receiver) = (RedisServer::start().await, Port::reserve(), Receiver::start());
        let path = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
        let mut replaced = vec![
            ("127.0.0.1:8080", api.address().to_string()),
            ("127.0.0.1:6379", format!("127.0.0.1:{}", redis.port())),
            ("redis-cli ", format!("redis-cli -p {} ", redis.port())),
            ("http://127.0.0.1:9000/due", receiver.url()),
            ("http://127.0.0.1:9000", receiver.url().trim_end_matches("/due").to_owned()),
            ("/run/secrets/", path("secrets/")),
            ("/etc/punctual/", path("tls/")),
        ];
        if text.contains("localhost:9092") {
            replaced.push(("localhost:9092", kafka::shared().await?));
        }
        if text.contains("localhost:5672") {
            replaced.push(("localhost:5672", format!("127.0.0.1:{}", RabbitMq::shared().await.port())));
        }
        let authority = furnish(directory.path(), &text);
        let first = format!("redis: {{ url: '{}' }}\nserver: {{ listen: '{}' }}\n", redis.url(), api.address());
        fs::write(directory.path().join("0.yaml"), first).expect("written");
        let mut shell = shell(directory.path(), &api, &text);
        let (input, output) = (shell.stdin.take().expect("piped"), shell.stdout.take().expect("piped"));
        Some(Self {
            directory,
            replaced,
            shell,
            input,
            output,
            files: 0,
            receiver,
            _redis: redis,
            _api: api,
            _authority: authority,
        })
    }

    /// A text of the page for these servers. `punctual.yaml` is all YAML blocks so far, the later ones over the earlier.
    fn adapt(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (page, here) in &self.replaced {
            text = text.replace(page, here);
        }
        let files: String = (0..=self.files).fold(String::new(), |mut files, number| {
            let _ = write!(files, "-c {number}.yaml ");
            files
        });
        text.replace("-c punctual.yaml", files.trim_end())
    }

    /// Checks the configuration that the YAML blocks so far make.
    pub async fn configure(&mut self, yaml: &str) -> Result<(), String> {
        self.files += 1;
        let name = format!("{}.yaml", self.files);
        fs::write(self.directory.path().join(name), self.adapt(yaml)).expect("written");
        self.run("punctual check -c punctual.yaml").await.map(drop)
    }

    /// Runs commands in the shell of the page and returns their output. The first command that fails ends the shell.
    ///
    /// # Errors
    /// The output of a command that failed, or took too long.
    pub async fn run(&mut self, commands: &str) -> Result<String, String> {
        fs::write(self.directory.path().join("step.sh"), self.adapt(commands)).expect("written");
        let step = format!("exec 2>&1; set -euo pipefail; . ./step.sh </dev/null\nprintf '\\n%s\\n' '{END}'\n");
        // A shell that has ended says so below.
        let _ = self.input.write_all(step.as_bytes()).await;
        let mut printed = Vec::new();
        let end = format!("\n{END}\n");
        let complete = timeout(BLOCK, async {
            let mut chunk = [0; 4096];
            while !printed.ends_with(end.as_bytes()) {
                match self.output.read(&mut chunk).await.expect("a pipe") {
                    0 => return false,
                    length => printed.extend_from_slice(&chunk[..length]),
                }
            }
            true
        })
        .await;
        let text = String::from_utf8_lossy(&printed).into_owned();
        match complete {
            Ok(true) => Ok(text.trim_end_matches(&*end).to_owned()),
            Ok(false) => Err(format!("a command failed:\n{text}{}", self.log())),
            Err(_) => Err(format!("no end within {BLOCK:?}:\n{text}{}", self.log())),
        }
    }

    /// The log of punctual.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("punctual.log")).unwrap_or_default()
    }

    /// Stops what the page started.
    pub async fn clear(mut self) {
        self.signal(Signal::TERM);
        let ended = timeout(STOP, async {
            while self.output.read(&mut [0; 4096]).await.is_ok_and(|length| length > 0) {}
            // A punctual that is killed before it has stopped leaves its embedded Redis behind.
            while self.group().is_some_and(is_running) {
                sleep(Duration::from_millis(20)).await;
            }
        });
        let _ = ended.await;
        self.signal(Signal::KILL);
    }

    fn group(&self) -> Option<Pid> {
        self.shell.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?))
    }

    /// To everything that the page started. On SIGTERM punctual and the scripts of examples/ stop their own servers.
    fn signal(&self, signal: Signal) {
        // It may have ended already.
        let _ = self.group().map(|group| kill_process_group(group, signal));
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
    }
}

/// Whether a process of the group lives.
fn is_running(group: Pid) -> bool {
    let group = group.as_raw_nonzero().to_string();
    let processes = fs::read_dir("/proc").expect("Linux").flatten();
    let lines = processes.filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
    // PID (NAME) STATE PARENT GROUP ...
    let mut of_group = lines.filter_map(|line| {
        let mut fields = line.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?.to_owned();
        (fields.nth(1)? == group).then_some(state)
    });
    of_group.any(|state| state != "Z")
}

/// A directory like a checkout: its files, what is built, and what configurations name. Secrets and keys are the page's.
fn furnish(directory: &Path, text: &str) -> Authority {
    for name in CHECKOUT {
        symlink(Path::new(ROOT).join(name), directory.join(name)).expect("a link");
    }
    for name in ["bin", "target", "target/debug", "target/release", "secrets", "tls"] {
        fs::create_dir(directory.join(name)).expect("a directory");
    }
    let program = program();
    let built = program.parent().expect("a directory");
    for profile in ["debug", "release"] {
        symlink(&program, directory.join("target").join(profile).join("punctual")).expect("a link");
    }
    symlink(built.join("examples"), directory.join("target/release/examples")).expect("a link");
    for name in ["target/kafka", "target/clients"] {
        symlink(Path::new(ROOT).join(name), directory.join(name)).expect("a link");
    }
    for (name, script) in [("punctual", PUNCTUAL), ("cargo", CARGO)] {
        let path = directory.join("bin").join(name);
        fs::write(&path, script).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
    }
    for name in named(text, "/run/secrets/") {
        fs::write(directory.join("secrets").join(&name), format!("the secret {name}\n")).expect("written");
    }
    Authority::within(&directory.join("tls"))
}

/// Its variables: each `${NAME}` of the page has a value of its own, good as token, password and signing secret.
fn shell(directory: &Path, api: &Port, text: &str) -> Child {
    let value = |name: &String| format!("whsec_{}", STANDARD.encode(format!("{name:-<24}")));
    let secrets = named(text, "${").into_iter().map(|name| (name.clone(), value(&name)));
    let path = std::env::var("PATH").expect("a PATH");
    let mut shell = Command::new("bash");
    shell
        .current_dir(directory)
        .env("PATH", format!("{}:{ROOT}/target/clients/python/bin:{path}", directory.join("bin").display()))
        .env("STAGE", directory)
        .env("PROGRAM", program())
        .env("REPOSITORY", ROOT)
        .env("CARGO", env!("CARGO"))
        .env("API", format!("http://{}", api.address()))
        .env_remove("CARGO_TARGET_DIR")
        .envs(secrets)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    shell.spawn().expect("bash")
}

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_punctual"))
}

/// The names of letters, digits, `_`, `.` and `-` that follow a prefix in a text.
fn named(text: &str, prefix: &str) -> BTreeSet<String> {
    let is_part = |char: char| char.is_ascii_alphanumeric() || "_.-".contains(char);
    let starts = text.split(prefix).skip(1);
    let names = starts.map(|rest| rest.chars().take_while(|char| is_part(*char)).collect::<String>());
    names.filter(|name| !name.is_empty()).collect()
}
