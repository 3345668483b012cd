use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, sleep},
};

use super::{
    super::{port::Port, signal},
    client,
};

/// Maximum duration of a start, on a busy machine.
const START: Duration = Duration::from_mins(2);
/// Maximum duration of a clean stop.
const STOP: Duration = Duration::from_secs(30);
/// Clusters of tests' own that run at once: each broker takes some 400 MB.
static TURNS: Semaphore = Semaphore::const_new(2);

/// One beside the plain one.
pub struct Listener {
    pub name: &'static str,
    pub protocol: &'static str,
    pub port: u16,
    /// The port for clients: its own, or that of a proxy.
    pub advertised: u16,
}

/// A broker of a test's own; killed on drop.
pub struct Broker {
    directory: TempDir,
    port: Port,
    /// In the same process; `None`: another broker's.
    controller: Option<Port>,
    child: Option<Child>,
    _turn: Option<SemaphorePermit<'static>>,
}

impl Broker {
    /// `None`: the test cannot run.
    pub async fn start() -> Option<Self> {
        Self::start_with(|_| (Vec::new(), String::new())).await
    }

    /// With more listeners and properties: `settings` gives them for the broker's directory. `None`: the test cannot run.
    pub async fn start_with(settings: impl FnOnce(&Path) -> (Vec<Listener>, String)) -> Option<Self> {
        if !super::installed() {
            return None;
        }
        let turn = TURNS.acquire().await.expect("it is never closed");
        let (directory, port, controller) =
            (tempfile::tempdir().expect("a temporary directory"), Port::reserve(), Port::reserve());
        let (listeners, more) = settings(directory.path());
        format(directory.path(), &port, (1, controller.number()), &listeners, &more);
        let mut broker = Self { directory, port, controller: Some(controller), child: None, _turn: Some(turn) };
        broker.restart().await;
        Some(broker)
    }

    /// A second one in the same cluster: node 2, where this is node 1.
    pub async fn join(&self, listeners: &[Listener]) -> Self {
        let (directory, port) = (tempfile::tempdir().expect("a temporary directory"), Port::reserve());
        let controller = self.controller.as_ref().expect("the first has one").number();
        format(directory.path(), &port, (2, controller), listeners, "");
        let mut broker = Self { directory, port, controller: None, child: None, _turn: None };
        broker.restart().await;
        broker
    }

    /// `host:port`
    pub fn address(&self) -> String {
        self.port.address().to_string()
    }

    /// SIGTERM, and waits for its end.
    pub async fn stop(&mut self) {
        self.signal(Signal::TERM);
        let mut child = self.child.take().expect("it runs");
        let deadline = Instant::now() + STOP;
        while child.try_wait().expect("it can be waited for").is_none() {
            assert!(Instant::now() < deadline, "Kafka did not stop within {STOP:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// SIGSTOP: it keeps its connections and answers nothing.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        signal::send(self.child.as_ref().expect("it runs").id(), signal);
    }

    /// Starts it again if a test stopped or killed it.
    pub async fn ensure_running(&mut self) {
        if self.child.is_none() {
            self.restart().await;
        }
    }

    /// `kill -9`
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// On the same port and data; waits until it answers.
    pub async fn restart(&mut self) {
        self.kill();
        let [java, arguments @ ..] = &command(self.directory.path())[..] else { unreachable!("a command") };
        let child = Command::new(java)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log(self.directory.path()))
            .stderr(log(self.directory.path()))
            .spawn()
            .expect("java is installed");
        self.child = Some(child);
        answers(&self.address(), self.directory.path()).await;
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A broker that ends with this process, however that ends: a shell waits for the end of its input, which is ours.
pub async fn start_shared() -> String {
    let directory = tempfile::tempdir().expect("a temporary directory").keep();
    let (port, controller) = (Port::reserve(), Port::reserve());
    format(&directory, &port, (1, controller.number()), &[], "");
    let watcher = Command::new("sh")
        .args(["-c", r#""$@" </dev/null & read -r _; kill -9 $!; rm -rf "$DIRECTORY""#, "sh"])
        .args(command(&directory))
        .env("DIRECTORY", &directory)
        .stdin(Stdio::piped())
        .stdout(log(&directory))
        .stderr(log(&directory))
        .spawn()
        .expect("there is a shell");
    let address = port.address().to_string();
    answers(&address, &directory).await;
    // Their sockets and pipes stay open until this process ends.
    std::mem::forget((watcher, port, controller));
    address
}

/// A program of Kafka's by the name of its class; needs the jars.
pub fn tool(class: &str) -> Command {
    let java = java();
    let mut command = Command::new(&java[0]);
    command.args(&java[1..]).arg(class).stdin(Stdio::null());
    command
}

pub fn libs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/kafka/libs")
}

fn command(directory: &Path) -> Vec<String> {
    let mut command = java();
    command.extend(["kafka.Kafka".into(), directory.join("server.properties").display().to_string()]);
    command
}

/// Small, and quick to start: tests/kafka/archive.sh makes the archive. Without it, the classes are read from the jars.
fn java() -> Vec<String> {
    let (path, archive) = (format!("{}/*", libs().display()), libs().with_file_name("classes.jsa"));
    let archive = format!("-XX:SharedArchiveFile={}", archive.display());
    let options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", &archive, "-Xlog:disable", "-cp", &path];
    [&["java"], &options[..]].concat().into_iter().map(str::to_owned).collect()
}

fn log(directory: &Path) -> File {
    File::options().create(true).append(true).open(directory.join("kafka.log")).expect("a log file")
}

/// Node 1 is the controller, too.
fn format(directory: &Path, port: &Port, (node, controller): (u8, u16), others: &[Listener], more: &str) {
    let port = port.number();
    let (roles, controlling) = match node {
        1 => ("broker,controller", format!(",CONTROLLER://127.0.0.1:{controller}")),
        _ => ("broker", String::new()),
    };
    let join = |one: &dyn Fn(&Listener) -> String| others.iter().map(one).collect::<Vec<_>>().concat();
    let listening = join(&|other| format!(",{}://127.0.0.1:{}", other.name, other.port));
    // A certificate is for a name.
    let advertised = join(&|other| format!(",{}://localhost:{}", other.name, other.advertised));
    let protocols = join(&|other| format!(",{}:{}", other.name, other.protocol));
    let data = directory.join("data");
    let properties = format!(
        "process.roles={roles}
node.id={node}
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port}{controlling}{listening}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{advertised}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT{protocols}
log.dirs={}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
# After kill -9 its own old session must end before it is let in again.
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
{more}",
        data.display()
    );
    let file = directory.join("server.properties");
    fs::write(&file, properties).expect("it is written");
    let mut command = java();
    command.extend(["kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c"].map(str::to_owned));
    let formatted = Command::new(&command[0]).args(&command[1..]).arg(&file).output().expect("java is installed");
    assert!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stderr));
}

async fn answers(address: &str, directory: &Path) {
    let deadline = Instant::now() + START;
    while let Err(error) = client::ping(address).await {
        let log = || fs::read_to_string(directory.join("kafka.log")).unwrap_or_default();
        assert!(Instant::now() < deadline, "Kafka did not answer within {START:?}: {error}\n{}", log());
    }
}
