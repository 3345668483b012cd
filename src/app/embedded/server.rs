//! The process of one redis-server: its start or takeover, its exit, its stop.

use std::{
    env,
    ffi::OsStr,
    fs::{File, TryLockError},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use redis::{InfoDict, RedisResult};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::{Child, Command},
    sync::oneshot,
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use super::{EmbeddedError, Home, lock_file};

/// Redis first, because most machines have it.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// Maximum time of a start without progress. Loading a large append-only file continues while it progresses.
const START_TIMEOUT: Duration = Duration::from_mins(1);

/// Maximum time for a reply.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval of checks of a server that starts or loads.
const LOOKS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];

/// Interval of log lines about loading.
const LOADING_LOG_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum time for a server to write its data and exit: half of the default `shutdown_timeout`.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Length of the end of the log that an error shows, in bytes.
const LOG_TAIL: u64 = 600;

/// A server that has replied.
#[derive(Debug)]
pub struct RedisProcess {
    pid: u32,
    /// `None` for a server that was taken over.
    child: Option<Child>,
    gone: oneshot::Receiver<()>,
}

impl RedisProcess {
    /// Starts a server, or takes over the running one. Returns when it replies.
    pub async fn start(home: &Home) -> Result<Self, EmbeddedError> {
        loop {
            let lock = lock_file(&lock_path(home))?;
            let child = match lock.try_lock() {
                Ok(()) => Some(spawn(home, lock)?),
                Err(TryLockError::WouldBlock) => None,
                Err(TryLockError::Error(source)) => {
                    return Err(EmbeddedError::Io { path: lock_path(home), source });
                }
            };
            let mut gone = when_gone(home)?;
            match (until_it_answers(home, &mut gone).await, child) {
                (Ok(pid), child) => {
                    if child.is_none() {
                        set_max_memory(home).await;
                    }
                    info!(pid, directory = %home.path.display(), taken_over = child.is_none(), "embedded Redis runs");
                    return Ok(Self { pid, child, gone });
                }
                // The server to take over was about to exit.
                (Err(EmbeddedError::Exited(_)), None) => {}
                (Err(error), None) => return Err(error),
                (Err(error), Some(mut child)) => {
                    // The child may have exited by itself.
                    let _ = child.kill().await;
                    return Err(error);
                }
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until the server has exited. Cancel-safe.
    pub async fn exited(&mut self) {
        // An error means that the waiting thread has ended, which happens only after the server has exited.
        let _ = (&mut self.gone).await;
        if let Some(child) = &mut self.child {
            // The lock is free, so the process has exited: this takes its exit status.
            let _ = child.wait().await;
        }
    }

    /// Asks the server to exit; kills it at the timeout.
    pub async fn stop(mut self, home: &Home) {
        shut_down(home).await;
        if timeout(STOP_TIMEOUT, self.exited()).await.is_ok() {
            return;
        }
        warn!(pid = self.pid, "the embedded redis-server did not end in time; killing it");
        // The process still holds its lock, so its id was not reused.
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = timeout(STOP_TIMEOUT, self.exited()).await;
    }
}

/// A server that was taken over may have been started with another limit.
async fn set_max_memory(home: &Home) {
    let set = timeout(ANSWER_TIMEOUT, async {
        let mut connection = connect(home).await?;
        redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(home.max_memory).exec_async(&mut connection).await
    });
    if !matches!(set.await, Ok(Ok(()))) {
        warn!("the embedded redis-server keeps the `redis.max_memory` that it was started with");
    }
}

/// Asks the server to write its data and exit. The server replies only if it refuses.
pub async fn shut_down(home: &Home) {
    let asked = timeout(STOP_TIMEOUT, async {
        let mut connection = connect(home).await?;
        redis::cmd("SHUTDOWN").query_async::<()>(&mut connection).await
    });
    if let Ok(Err(error)) = asked.await
        && error.code().is_some()
    {
        warn!(%error, "the embedded redis-server refused to end");
    }
}

fn lock_path(home: &Home) -> PathBuf {
    home.path.join("redis.lock")
}

fn log_path(home: &Home) -> PathBuf {
    home.path.join("redis.log")
}

/// `lock` is locked. The child inherits it as its standard input, which it never reads.
fn spawn(home: &Home, lock: File) -> Result<Child, EmbeddedError> {
    let program = program()?;
    let at = |path: PathBuf| move |source| EmbeddedError::Io { path, source };
    let log = File::options().create(true).append(true).mode(0o600).open(log_path(home)).map_err(at(log_path(home)))?;
    let errors = log.try_clone().map_err(at(log_path(home)))?;
    let mut command = Command::new(&program);
    command
        .args(["--port", "0", "--unixsocketperm", "700", "--unixsocket"])
        .arg(&home.socket)
        .arg("--dir")
        .arg(&home.path)
        .args(["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""])
        .args(["--maxmemory-policy", "noeviction", "--daemonize", "no", "--maxmemory"])
        .arg(home.max_memory.to_string())
        .current_dir(&home.path)
        // The environment may hold secrets that the child does not need.
        .env_clear()
        .env("PATH", env::var_os("PATH").unwrap_or_default())
        // Ctrl-C in a terminal goes to the whole process group, but only punctual must stop Redis.
        .process_group(0)
        .stdin(Stdio::from(lock))
        .stdout(Stdio::from(log))
        .stderr(Stdio::from(errors));
    command.spawn().map_err(at(program))
}

/// The server program on the PATH of this process.
pub fn program() -> Result<PathBuf, EmbeddedError> {
    find(&env::var_os("PATH").unwrap_or_default()).ok_or(EmbeddedError::NotInstalled)
}

/// The first server program on the search path.
fn find(search: &OsStr) -> Option<PathBuf> {
    let executable =
        |path: &PathBuf| path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
    let in_directories =
        |program: &&str| env::split_paths(search).map(|directory| directory.join(program)).find(executable);
    PROGRAMS.iter().find_map(in_directories)
}

/// Resolves when the server's lock is free. The thread waits in the kernel, at most until this process ends.
fn when_gone(home: &Home) -> Result<oneshot::Receiver<()>, EmbeddedError> {
    let lock = lock_file(&lock_path(home))?;
    let (tell, gone) = oneshot::channel();
    let wait = move || {
        while lock.lock().is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {}
        drop(lock);
        // An error means that the handle was dropped.
        let _ = tell.send(());
    };
    let thread = std::thread::Builder::new().name("redis-exit".into()).spawn(wait);
    thread.map_err(|source| EmbeddedError::Io { path: lock_path(home), source })?;
    Ok(gone)
}

/// The reply of a server about its state.
enum Answer {
    Ready { pid: u32 },
    Loading { bytes: u64, percent: String },
}

/// Returns the process id of the server once its data is loaded.
async fn until_it_answers(home: &Home, gone: &mut oneshot::Receiver<()>) -> Result<u32, EmbeddedError> {
    let [starting, loading] = LOOKS;
    let mut deadline = Instant::now() + START_TIMEOUT;
    let mut logged = Instant::now();
    let mut loaded = 0;
    loop {
        let answer = tokio::select! {
            _ = &mut *gone => return Err(EmbeddedError::Exited(log_tail(&log_path(home)))),
            answer = timeout(ANSWER_TIMEOUT, ask(home)) => answer,
        };
        let pause = match answer {
            Ok(Ok(Answer::Ready { pid })) => return Ok(pid),
            Ok(Ok(Answer::Loading { bytes, percent })) => {
                if bytes > loaded {
                    (loaded, deadline) = (bytes, Instant::now() + START_TIMEOUT);
                }
                if logged.elapsed() >= LOADING_LOG_INTERVAL {
                    info!(percent, "embedded Redis is loading its data");
                    logged = Instant::now();
                }
                loading
            }
            Ok(Err(_)) | Err(_) => starting,
        };
        if Instant::now() >= deadline {
            return Err(EmbeddedError::Silent(home.path.clone()));
        }
        sleep(pause).await;
    }
}

async fn ask(home: &Home) -> RedisResult<Answer> {
    let mut connection = connect(home).await?;
    let info: InfoDict = redis::cmd("INFO").query_async(&mut connection).await?;
    if info.get::<u8>("loading") == Some(1) {
        let bytes = info.get("loading_loaded_bytes").unwrap_or(0);
        return Ok(Answer::Loading { bytes, percent: info.get("loading_loaded_perc").unwrap_or_default() });
    }
    redis::cmd("PING").query_async::<()>(&mut connection).await?;
    info.get("process_id")
        .map(|pid| Answer::Ready { pid })
        .ok_or_else(|| (redis::ErrorKind::UnexpectedReturnType, "INFO names no process_id").into())
}

async fn connect(home: &Home) -> RedisResult<redis::aio::MultiplexedConnection> {
    redis::Client::open(home.url())?.get_multiplexed_async_connection().await
}

/// The last lines of a log, for an error.
fn log_tail(path: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL)))?;
        let mut tail = Vec::new();
        file.read_to_end(&mut tail)?;
        Ok(tail)
    };
    match read() {
        Ok(tail) => String::from_utf8_lossy(&tail).trim().replace('\n', " | "),
        Err(error) => format!("(`{}`: {error})", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_program_is_found_on_the_path_if_it_can_be_executed() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let search = env::join_paths([first.path(), second.path()]).unwrap();
        let install = |directory: &Path, program: &str, mode| {
            let path = directory.join(program);
            File::options().create(true).append(true).mode(mode).open(&path).unwrap();
            path
        };
        assert_eq!(find(&search), None);
        install(first.path(), "redis-server", 0o600);
        assert_eq!(find(&search), None);
        let valkey = install(first.path(), "valkey-server", 0o700);
        assert_eq!(find(&search), Some(valkey));
        let redis = install(second.path(), "redis-server", 0o700);
        assert_eq!(find(&search), Some(redis));
    }
}
