//! One producer of `examples/clients`: built and called as its README says.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStderr, Command},
    sync::OnceCell,
    time::timeout,
};

use super::Place;
use crate::documents::page::{Page, ROOT};

/// Maximum run time of a call, and of a build without a cache.
const LIMIT: Duration = Duration::from_mins(2);
/// A line of a producer that repeats the call.
const REPEATS: &str = "; next attempt in ";

/// Its folder and where `tests/run.sh` puts what it needs.
const LANGUAGES: [(&str, &str); 4] = [
    ("python", "target/clients/python/bin"),
    ("node", "target/clients/node/node_modules"),
    ("go", "target/clients/go/schedule"),
    ("java", "target/clients/java/schedule"),
];

/// How a message is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Http,
    Script,
}

pub const WAYS: [Way; 2] = [Way::Http, Way::Script];

pub struct Producer {
    pub language: &'static str,
    /// A copy of its folder, with its dependencies, in a directory like a checkout.
    directory: PathBuf,
    /// From its README, without arguments.
    command: String,
}

/// One call of a producer that runs.
pub struct Call {
    name: String,
    child: Child,
    errors: Lines<BufReader<ChildStderr>>,
    /// Its lines on standard error so far.
    seen: Vec<String>,
}

/// How a call ended.
#[derive(Debug)]
#[expect(dead_code, reason = "`name` is for failures")]
pub struct Ended {
    name: String,
    code: Option<i32>,
    out: String,
    pub error: String,
}

impl Producer {
    /// Producers with an installed language; with `CI=true` all of them must be installed.
    pub async fn all() -> &'static [Self] {
        static PRODUCERS: OnceCell<Vec<Producer>> = OnceCell::const_new();
        PRODUCERS
            .get_or_init(async || {
                let built = LANGUAGES.map(|(language, needs)| Self::build(language, Path::new(ROOT).join(needs)));
                futures::future::join_all(built).await.into_iter().flatten().collect()
            })
            .await
    }

    async fn build(language: &'static str, needs: PathBuf) -> Option<Self> {
        if !needs.exists() {
            let missing = format!("no {}: tests/run.sh puts it there", needs.display());
            assert!(env::var("CI").as_deref() != Ok("true"), "{missing}");
            eprintln!("skipped: {missing}");
            return None;
        }
        let [install, run] = readme(language);
        let command = run.split("| ").nth(1).and_then(|call| call.split(" nightly ").next()).expect("a call");
        let producer = Self { language, directory: copied(language, &needs), command: command.to_owned() };
        for line in install.lines().filter(|line| line.starts_with("go build") || line.starts_with("javac")) {
            // The dependencies are there.
            let ended = producer.shell(line).env("GOPROXY", "off").stdin(Stdio::null()).output();
            let output = timeout(LIMIT, ended).await.expect("in time").expect("bash");
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Some(producer)
    }

    /// An id of its own. The highest bit of its CRC32 is set: the partition is wrong where that is taken for a sign.
    pub fn id(&self, way: Way) -> String {
        let mut ids = (0..).map(|number| format!("{}.{way:?}.{number}", self.language));
        ids.find(|id| crc32fast::hash(id.as_bytes()) >> 31 == 1).expect("every second one")
    }

    /// Starts a call. `arguments` end with route, id and delay; the payload is its standard input.
    pub async fn start(&self, environment: &[(&str, String)], way: Way, arguments: &[&str], payload: &[u8]) -> Call {
        let script: &[&str] = if way == Way::Script { &["--script", "../../../lua/produce.lua"] } else { &[] };
        let mut command = self.shell(&format!("exec {} \"$@\"", self.command));
        command.arg(self.language).args(script).args(arguments).envs(environment.iter().map(|(n, v)| (n, v)));
        let mut child = command.stdin(Stdio::piped()).spawn().expect("bash");
        // It may end without reading it.
        let _ = child.stdin.take().expect("piped").write_all(payload).await;
        let errors = BufReader::new(child.stderr.take().expect("piped")).lines();
        let name = format!("{} {way:?} {arguments:?}", self.language);
        Call { name, child, errors, seen: Vec::new() }
    }

    /// A call to its end.
    pub async fn run(&self, place: &Place, way: Way, arguments: &[&str], payload: &[u8]) -> Ended {
        self.start(&place.environment, way, arguments, payload).await.end().await
    }

    /// Commands in its folder.
    pub fn shell(&self, commands: &str) -> Command {
        let mut shell = Command::new("bash");
        let path = env::var("PATH").expect("a PATH");
        shell.args(["-euo", "pipefail", "-c", commands]).current_dir(&self.directory).kill_on_drop(true);
        shell.env("PATH", format!("{ROOT}/target/clients/python/bin:{path}")).env("NO_PROXY", "127.0.0.1");
        shell.stdout(Stdio::piped()).stderr(Stdio::piped());
        shell
    }
}

impl Call {
    /// Waits for the next line that says that it repeats the call.
    pub async fn repeats(&mut self) -> String {
        loop {
            let line = timeout(LIMIT, self.errors.next_line()).await.expect("in time").expect("text");
            let line = line.unwrap_or_else(|| panic!("{} ended: {:?}", self.name, self.seen));
            self.seen.push(line.clone());
            if line.contains(REPEATS) {
                return line;
            }
        }
    }

    pub async fn end(mut self) -> Ended {
        let rest = async {
            while let Some(line) = self.errors.next_line().await.expect("text") {
                self.seen.push(line);
            }
            self.child.wait_with_output().await.expect("it ends")
        };
        let Output { status, stdout, .. } = timeout(LIMIT, rest).await.expect("in time");
        let out = String::from_utf8(stdout).expect("text");
        Ended { name: self.name, code: status.code(), out, error: self.seen.join("\n") }
    }
}

impl Ended {
    /// It printed one of these statuses and the id.
    pub fn assert_is(&self, statuses: &[&str], id: &str) {
        let is_one = statuses.iter().any(|status| self.out == format!("{status} {id}\n"));
        assert!(is_one && self.code == Some(0), "{statuses:?}: {self:#?}");
    }

    /// It failed, and each of these is in what it said.
    pub fn assert_failed(&self, code: i32, texts: &[&str]) {
        let has_all = texts.iter().all(|text| self.error.contains(text));
        assert!(has_all && self.code == Some(code) && self.out.is_empty(), "{texts:?}: {self:#?}");
    }

    pub fn repeated(&self) -> usize {
        self.error.matches(REPEATS).count()
    }
}

/// The blocks of its README: install, and the two calls.
pub fn readme(language: &str) -> [String; 2] {
    let blocks = Page::read(&format!("examples/clients/{language}/README.md")).blocks();
    let texts: Vec<String> = blocks.into_iter().map(|block| block.text).collect();
    texts.try_into().expect("two blocks")
}

/// A copy of its folder, and of where its README finds `produce.lua`.
fn copied(language: &str, needs: &Path) -> PathBuf {
    let checkout = Path::new(ROOT).join("target/clients/checkouts").join(language);
    let directory = checkout.join("examples/clients").join(language);
    // Removes the copy of an earlier run.
    let _ = fs::remove_dir_all(&checkout);
    fs::create_dir_all(&directory).expect("a directory");
    symlink(Path::new(ROOT).join("lua"), checkout.join("lua")).expect("a link");
    for entry in fs::read_dir(Path::new(ROOT).join("examples/clients").join(language)).expect("a directory") {
        let entry = entry.expect("an entry");
        // A folder has what its README installs.
        if entry.file_type().expect("a type").is_file() {
            fs::copy(entry.path(), directory.join(entry.file_name())).expect("a file");
        }
    }
    match language {
        "node" => symlink(needs, directory.join("node_modules")).expect("a link"),
        "java" => {
            fs::create_dir(directory.join("libs")).expect("a directory");
            for jar in fs::read_dir(needs).expect("a directory") {
                let jar = jar.expect("an entry");
                symlink(jar.path(), directory.join("libs").join(jar.file_name())).expect("a link");
            }
        }
        _ => {}
    }
    directory
}
