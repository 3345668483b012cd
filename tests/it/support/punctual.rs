use std::{
    fs::{self, File},
    io::{PipeReader, Read, Write, pipe},
    net::SocketAddr,
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{Arc, Condvar, Mutex as StdMutex},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use super::{
    command::{self, Ended},
    http,
    port::Port,
};

/// Maximum duration of a start, up to the first 200 of /readyz, an embedded Redis included.
const START: Duration = Duration::from_secs(20);
/// Maximum duration of a stop: the default `shutdown_timeout`, 10 s, and some more.
const STOP: Duration = Duration::from_secs(20);
/// Maximum wait for lines of the log that the program has not written yet.
const LOGGED: Duration = Duration::from_secs(5);
/// Pause between two polls of /readyz.
const POLL: Duration = Duration::from_millis(10);

/// The real program: `punctual serve` on a port and in a directory of its own. Killed on drop, and an embedded
/// Redis that outlived it is stopped.
pub struct Punctual {
    directory: TempDir,
    port: Port,
    environment: Vec<(String, String)>,
    arguments: Vec<&'static str>,
    program: PathBuf,
    /// `None`: it writes `punctual.log` itself.
    unread: Option<Arc<Unread>>,
    child: Option<Child>,
}

/// Reads the standard error of the program into `punctual.log`, or leaves it unread.
#[derive(Default)]
pub struct Unread {
    is_held: StdMutex<bool>,
    changed: Condvar,
}

impl Unread {
    pub fn hold(&self, is_held: bool) {
        *self.is_held.lock().expect("no panic under this lock") = is_held;
        self.changed.notify_all();
    }

    fn read(&self, mut from: PipeReader, mut to: File) {
        let mut part = vec![0; 16 * 1024];
        loop {
            let held = self.is_held.lock().expect("no panic under this lock");
            drop(self.changed.wait_while(held, |is_held| *is_held).expect("no panic under this lock"));
            match from.read(&mut part) {
                Ok(length) if length > 0 => to.write_all(&part[..length]).expect("written"),
                _ => return,
            }
        }
    }
}

/// How it ended by itself or by a signal.
#[derive(Clone, Copy, Debug)]
pub struct Exit {
    /// `None`: a signal that it did not handle.
    pub code: Option<i32>,
    pub took: Duration,
}

impl Punctual {
    /// With a configuration as YAML, ready to serve. Its `server.listen` and `redis.data_dir` are overridden.
    pub async fn start(configuration: &str) -> Self {
        Self::start_with(configuration, &[]).await
    }

    /// Starts with a configuration and environment variables, ready to serve.
    pub async fn start_with(configuration: &str, environment: &[(&str, &str)]) -> Self {
        let mut punctual = Self::spawn(configuration, environment);
        punctual.ready().await;
        punctual
    }

    /// Another build of the program, ready to serve. Its standard error is a pipe.
    pub async fn start_program(program: PathBuf, configuration: &str) -> Self {
        let mut punctual = Self::prepared(configuration, &[]);
        punctual.program = program;
        punctual.unread = Some(Arc::default());
        punctual.run();
        punctual.ready().await;
        punctual
    }

    /// `punctual serve` and nothing else.
    pub async fn start_without_file() -> Self {
        let mut punctual = Self::new(vec!["serve"], &[]);
        punctual.run();
        punctual.ready().await;
        punctual
    }

    /// `punctual dev` with these options, ready to serve.
    pub async fn start_dev(configuration: &str, options: &[&'static str]) -> Self {
        let mut punctual = Self::prepared(configuration, &[]);
        punctual.arguments[0] = "dev";
        punctual.arguments.extend(options);
        punctual.run();
        punctual.ready().await;
        punctual
    }

    /// Started, but perhaps not ready yet, or never.
    pub fn spawn(configuration: &str, environment: &[(&str, &str)]) -> Self {
        let mut punctual = Self::prepared(configuration, environment);
        punctual.run();
        punctual
    }

    /// Started with another standard error than `punctual.log`; `None`: closed.
    pub fn spawn_with_error(configuration: &str, environment: &[(&str, &str)], error: Option<Stdio>) -> Self {
        let mut punctual = Self::prepared(configuration, environment);
        let mut command = if error.is_some() {
            Command::new(env!("CARGO_BIN_EXE_punctual"))
        } else {
            let mut shell = Command::new("sh");
            shell.args(["-c", "exec \"$0\" \"$@\" 2>&-", env!("CARGO_BIN_EXE_punctual")]);
            shell
        };
        command.stdout(Stdio::null()).stderr(error.unwrap_or_else(Stdio::null));
        punctual.run_as(command);
        punctual
    }

    /// Started with this hard limit of open files.
    pub fn spawn_with_files(configuration: &str, files: usize) -> Self {
        Self::spawn_with_limit(configuration, "-n", files)
    }

    /// Started with a limit, as `ulimit` takes it.
    pub fn spawn_with_limit(configuration: &str, option: &str, limit: usize) -> Self {
        let mut punctual = Self::prepared(configuration, &[]);
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit \"$1\" \"$2\"; shift 2; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_punctual")]);
        shell.args([option, &limit.to_string()]);
        let log = File::create(punctual.path("punctual.log")).expect("a log file");
        shell.stdout(Stdio::null()).stderr(log);
        punctual.run_as(shell);
        punctual
    }

    fn prepared(configuration: &str, environment: &[(&str, &str)]) -> Self {
        let punctual = Self::new(vec!["serve", "-c", "punctual.yaml"], environment);
        fs::write(punctual.path("punctual.yaml"), configuration).expect("the configuration is written");
        punctual
    }

    fn new(arguments: Vec<&'static str>, environment: &[(&str, &str)]) -> Self {
        let port = Port::reserve();
        let own = [("PUNCTUAL__SERVER__LISTEN", &*port.address().to_string()), ("PUNCTUAL__REDIS__DATA_DIR", "data")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let given = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Self {
            directory: tempfile::tempdir().expect("a temporary directory"),
            environment: own.into_iter().chain(given).collect(),
            port,
            arguments,
            program: env!("CARGO_BIN_EXE_punctual").into(),
            unread: None,
            child: None,
        }
    }

    /// `None`: its standard error is a file.
    pub fn unread(&self) -> Option<Arc<Unread>> {
        self.unread.clone()
    }

    /// Another command of the program, beside it: in its directory and with its environment.
    pub async fn command(&self, arguments: &[&str]) -> Ended {
        self.command_with_input(arguments, b"").await
    }

    pub async fn command_with_input(&self, arguments: &[&str], input: &[u8]) -> Ended {
        command::run(self.directory.path(), &self.environment, arguments, input).await
    }

    /// URL of the HTTP API; `path` begins with a slash.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.port.address())
    }

    /// Address of the HTTP API.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    pub fn pid(&self) -> Pid {
        let id = self.child.as_ref().and_then(Child::id).expect("it runs");
        Pid::from_raw(id.try_into().expect("a process id")).expect("not zero")
    }

    /// All that it logged up to now, over restarts.
    pub fn log(&self) -> String {
        let deadline = Instant::now() + LOGGED;
        while self.is_logging() && Instant::now() < deadline {
            std::thread::sleep(POLL / 10);
        }
        fs::read_to_string(self.path("punctual.log")).unwrap_or_default()
    }

    /// Whether lines wait: the thread that writes them runs, or waits for the disk.
    fn is_logging(&self) -> bool {
        let Some(id) = self.child.as_ref().and_then(Child::id) else { return false };
        // Threads end at any time, and a program that has just started has no such thread yet.
        let threads = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
        let mut states = threads.filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
        let state = states.find_map(|state| state.split_once(" (log) ").map(|(_, state)| state.chars().next()));
        matches!(state, Some(Some('R' | 'D')))
    }

    /// A file in its directory, which is its working directory; `redis.data_dir` is `data` in there.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Waits until /readyz says 200.
    pub async fn ready(&mut self) {
        let (client, deadline) = (http::client(), Instant::now() + START);
        loop {
            let answer = client.get(self.url("/readyz")).send().await;
            if answer.is_ok_and(|answer| answer.status() == 200) {
                return;
            }
            let ended = self.child.as_mut().expect("it runs").try_wait().expect("it can be waited for");
            assert!(ended.is_none(), "punctual ended, {}:\n{}", ended.unwrap(), self.log());
            assert!(Instant::now() < deadline, "punctual was not ready within {START:?}:\n{}", self.log());
            sleep(POLL).await;
        }
    }

    /// Waits until it serves, so that it handles signals, but not for long: perhaps it cannot start now.
    pub async fn begun(&self) {
        let (client, deadline) = (http::client(), Instant::now() + LOGGED);
        while client.get(self.url("/livez")).send().await.is_err() && Instant::now() < deadline {
            sleep(POLL).await;
        }
    }

    /// SIGTERM, and how it ended.
    pub async fn terminate(&mut self) -> Exit {
        let started = Instant::now();
        self.signal(Signal::TERM);
        let code = self.ended().await.code();
        Exit { code, took: started.elapsed() }
    }

    /// Waits until it ends by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let child = self.child.as_mut().expect("it runs");
        let Ok(status) = timeout(STOP, child.wait()).await else {
            panic!("punctual did not end within {STOP:?}:\n{}", self.log());
        };
        self.child = None;
        status.expect("it can be waited for")
    }

    /// `kill -9`.
    pub async fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.ended().await;
    }

    /// On the same port, configuration and data; ready to serve.
    pub async fn restart(&mut self) {
        self.launch();
        self.ready().await;
    }

    /// On the same port, configuration and data; perhaps not ready yet.
    pub fn launch(&mut self) {
        assert!(self.child.is_none(), "it still runs");
        self.run();
    }

    /// SIGSTOP: as if its machine stood still.
    pub fn suspend(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs and is ours");
    }

    fn run(&mut self) {
        let log = File::options().create(true).append(true).open(self.path("punctual.log")).expect("a log file");
        let mut command = Command::new(&self.program);
        command.stdout(log.try_clone().expect("a second handle"));
        if let Some(unread) = self.unread.clone() {
            let (reader, writer) = pipe().expect("a pipe");
            command.stderr(writer);
            thread::spawn(move || unread.read(reader, log));
        } else {
            command.stderr(log);
        }
        self.run_as(command);
    }

    fn run_as(&mut self, mut command: Command) {
        command
            .args(&self.arguments)
            .current_dir(self.directory.path())
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .kill_on_drop(true);
        self.child = Some(command.spawn().expect("the program was built"));
    }
}

impl Drop for Punctual {
    fn drop(&mut self) {
        // First the parent, or it would start its Redis again.
        if let Some(child) = &mut self.child {
            // It may have ended already.
            let _ = child.start_kill();
        }
        if let Ok(mut orphan) = UnixStream::connect(self.path("data/redis.sock")) {
            let _ = orphan.write_all(b"SHUTDOWN NOSAVE\r\n");
        }
    }
}
