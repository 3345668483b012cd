//! `redis.url: embedded`: a private redis-server child. Its data, socket and log are in `redis.data_dir`.
//!
//! Two locks protect the directory. A process holds each for its whole life, and the kernel frees it:
//! - `punctual.lock` is held by this process: one instance per directory.
//! - `redis.lock` is held by the child, which inherits it as its standard input. Free: no server runs, so one can be
//!   started. Held: a server runs, possibly started by another process, and is taken over. Waiting for the lock detects
//!   its death.

use std::{
    fs::{DirBuilder, File, Metadata, Permissions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    net::UnixStream,
    sync::{oneshot, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tracing::{error, info};

use self::server::RedisProcess;

mod server;

/// Delay before a server that died is started again, and the maximum delay after failed starts.
const RESTART_DELAYS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(10)];

/// Maximum length of the path of a Unix socket, in bytes: `sun_path` in `<sys/un.h>` without the closing NUL.
const MAX_SOCKET_PATH: usize = 107;

/// Maximum time for the server of another process to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    #[error(
        "neither redis-server nor valkey-server is on the PATH: install one (Debian: apt-get install redis-server), \
         or set redis.url to a server that runs already"
    )]
    NotInstalled,
    #[error("`{}` is in use by another punctual: each needs its own redis.data_dir", .0.display())]
    InUse(PathBuf),
    #[error("the path `{}` is longer than the {MAX_SOCKET_PATH} bytes of a Unix socket: set a shorter redis.data_dir", .0.display())]
    PathTooLong(PathBuf),
    #[error("`{}` belongs to user {owner}, and punctual runs as user {user}: its owner could read and change what is kept in it", path.display())]
    Foreign { path: PathBuf, owner: u32, user: u32 },
    #[error("`{}` is a symbolic link: redis.data_dir must hold none, whatever they lead to would be written to", .0.display())]
    Link(PathBuf),
    #[error("`{}`: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("the embedded redis-server ended at its start; its log says: {0}")]
    Exited(String),
    #[error("the embedded redis-server in `{}` does not answer; see redis.log there", .0.display())]
    Silent(PathBuf),
    #[error("no embedded Redis runs in `{}`: start `punctual serve`, or set redis.url", .0.display())]
    NotRunning(PathBuf),
}

/// Whether the server can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbeddedState {
    Running {
        /// Its process id.
        pid: u32,
    },
    /// The server died, and is being started again.
    Down,
}

/// A running server. Dropping this leaves the server running, for the next instance to take over.
#[derive(Debug)]
pub struct Embedded {
    url: String,
    state: watch::Receiver<EmbeddedState>,
    stop: oneshot::Sender<()>,
    supervisor: JoinHandle<()>,
}

impl Embedded {
    /// Starts a server in `data_dir`, or takes over the running one, and waits until its data is loaded: up to a minute
    /// without progress. From then on a server that dies is started again.
    pub async fn start(data_dir: &Path) -> Result<Self, EmbeddedError> {
        Self::start_in(Home::open(data_dir)?).await
    }

    /// Like `start`, in a directory that is already locked.
    pub async fn start_in(home: Home) -> Result<Self, EmbeddedError> {
        let server = RedisProcess::start(&home).await?;
        let url = home.url();
        let (set_state, state) = watch::channel(EmbeddedState::Running { pid: server.pid() });
        let (stop, stopped) = oneshot::channel();
        let supervisor = tokio::spawn(supervise(home, server, set_state, stopped));
        Ok(Self { url, state, stop, supervisor })
    }

    /// `unix://` and the path of the socket.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Notifies when the server dies and when it runs again.
    pub fn state(&self) -> watch::Receiver<EmbeddedState> {
        self.state.clone()
    }

    /// Stops the server after it has written its data; kills it after a few seconds.
    pub async fn stop(self) {
        // An error means that the supervisor has ended, which happens only after a stop.
        let _ = self.stop.send(());
        let _ = self.supervisor.await;
    }
}

/// The URL of the server that another process, `punctual serve`, runs in `data_dir`.
pub async fn running_url(data_dir: &Path) -> Result<String, EmbeddedError> {
    let not_running = || EmbeddedError::NotRunning(data_dir.to_owned());
    let path = data_dir.canonicalize().map_err(|_| not_running())?;
    let socket = socket_path(&path)?;
    match timeout(CONNECT_TIMEOUT, UnixStream::connect(&socket)).await {
        Ok(Ok(_)) => Ok(url_of(&socket)),
        _ => Err(not_running()),
    }
}

/// Checks that a server program is installed.
pub fn check_installed() -> Result<(), EmbeddedError> {
    server::program().map(|_| ())
}

async fn supervise(
    home: Home,
    mut server: RedisProcess,
    state: watch::Sender<EmbeddedState>,
    mut stop: oneshot::Receiver<()>,
) {
    let [shortest, longest] = RESTART_DELAYS;
    let mut delay = shortest;
    loop {
        tokio::select! {
            () = server.exited() => {}
            asked = &mut stop => {
                if asked.is_ok() {
                    server.stop(&home).await;
                }
                return;
            }
        }
        error!(pid = server.pid(), directory = %home.path.display(), "the embedded redis-server died; starting it again");
        state.send_replace(EmbeddedState::Down);
        server = loop {
            tokio::select! {
                () = sleep(delay) => {}
                _ = &mut stop => return,
            }
            tokio::select! {
                started = RedisProcess::start(&home) => match started {
                    Ok(server) => break server,
                    Err(error) => {
                        error!(%error, "the embedded redis-server could not be started again");
                        delay = longest.min(delay * 2);
                    }
                },
                asked = &mut stop => {
                    if asked.is_ok() {
                        server::shut_down(&home).await;
                    }
                    return;
                }
            }
        };
        delay = shortest;
        info!(pid = server.pid(), "the embedded redis-server is back");
        state.send_replace(EmbeddedState::Running { pid: server.pid() });
    }
}

/// Stops a server that was still loading its data when its start was given up.
pub async fn shut_down(data_dir: &Path) -> Result<(), EmbeddedError> {
    server::shut_down(&Home::open(data_dir)?).await;
    Ok(())
}

/// The directory of a server, locked for this process.
#[derive(Debug)]
pub struct Home {
    /// Absolute.
    path: PathBuf,
    socket: PathBuf,
    /// Memory limit of the server in bytes; 0: no limit.
    max_memory: u64,
    _lock: File,
}

impl Home {
    /// Creates the directory if it does not exist. Only this user can read it.
    pub fn open(data_dir: &Path) -> Result<Self, EmbeddedError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| EmbeddedError::Io { path, source }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(data_dir).map_err(at(data_dir))?;
        let path = data_dir.canonicalize().map_err(at(data_dir))?;
        let metadata = path.metadata().map_err(at(&path))?;
        check_owner(&path, &metadata)?;
        if metadata.permissions().mode() & 0o077 != 0 {
            std::fs::set_permissions(&path, Permissions::from_mode(0o700)).map_err(at(&path))?;
        }
        // From here on no other user can create entries. Entries from before are checked.
        for entry in path.read_dir().map_err(at(&path))? {
            let entry = entry.map_err(at(&path))?.path();
            let metadata = entry.symlink_metadata().map_err(at(&entry))?;
            if metadata.is_symlink() {
                return Err(EmbeddedError::Link(entry));
            }
            check_owner(&entry, &metadata)?;
        }
        let socket = socket_path(&path)?;
        let lock = lock_file(&path.join("punctual.lock"))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, socket, max_memory: 0, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(EmbeddedError::InUse(path)),
            Err(TryLockError::Error(source)) => Err(EmbeddedError::Io { path, source }),
        }
    }

    /// Limits the memory of the server, in bytes. At the limit, new messages are refused.
    #[must_use]
    pub fn with_max_memory(self, max_memory: u64) -> Self {
        Self { max_memory, ..self }
    }

    /// The URL of the server that will listen here: `unix://` and the path of the socket.
    pub fn url(&self) -> String {
        url_of(&self.socket)
    }
}

fn check_owner(path: &Path, metadata: &Metadata) -> Result<(), EmbeddedError> {
    let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
    if owner == user { Ok(()) } else { Err(EmbeddedError::Foreign { path: path.to_owned(), owner, user }) }
}

fn lock_file(path: &Path) -> Result<File, EmbeddedError> {
    let file = File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(path);
    file.map_err(|source| EmbeddedError::Io { path: path.to_owned(), source })
}

fn socket_path(directory: &Path) -> Result<PathBuf, EmbeddedError> {
    let socket = directory.join("redis.sock");
    if socket.as_os_str().len() > MAX_SOCKET_PATH { Err(EmbeddedError::PathTooLong(socket)) } else { Ok(socket) }
}

fn url_of(socket: &Path) -> String {
    let url = url::Url::from_file_path(socket).expect("the path is absolute");
    format!("unix{}", url.as_str().trim_start_matches("file"))
}
