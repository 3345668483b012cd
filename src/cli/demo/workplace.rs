//! The directory and the address of a demo.

use std::{
    fs::{self, DirBuilder},
    io,
    net::SocketAddr,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::net::TcpListener;

/// Maximum time for Redis and the instance to start, and for the Redis of a killed demo to stop.
pub const START: Duration = Duration::from_secs(20);
/// Pause between two checks of Redis or the instance.
pub const POLL: Duration = Duration::from_millis(20);

/// The directory is deleted on drop.
pub struct Workplace {
    pub number: u64,
    directory: PathBuf,
    listen: SocketAddr,
}

impl Workplace {
    /// Creates the directory with a configuration. Its only sink is the URL `receiver`.
    pub async fn new(receiver: &str) -> io::Result<Self> {
        let number = rand::random();
        let directory = directory_of(number);
        DirBuilder::new().mode(0o700).create(&directory)?;
        let workplace = Self { number, directory, listen: free().await? };
        fs::write(workplace.file(), workplace.configuration(receiver))?;
        Ok(workplace)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn file(&self) -> PathBuf {
        self.directory.join("punctual.yaml")
    }

    /// The socket exists once the private Redis listens.
    pub fn redis_socket(&self) -> PathBuf {
        data_of(&self.directory).join("redis.sock")
    }

    /// The URL of the API.
    pub fn url(&self) -> String {
        format!("http://{}", self.listen)
    }

    fn configuration(&self, receiver: &str) -> String {
        // JSON text is valid YAML, whatever characters the name of the directory has.
        let data = serde_json::Value::from(data_of(&self.directory).to_string_lossy());
        format!(
            "redis: {{ url: embedded, data_dir: {data} }}\nserver: {{ listen: '{}' }}\nlog: {{ level: error }}\n\
             sinks: {{ receiver: {{ type: http, url: '{receiver}' }} }}\nroutes: {{ demo: {{ sink: receiver }} }}\n",
            self.listen
        )
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        // A failure does no harm: the directory is a temporary one.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The directory of the demo of this number.
pub fn directory_of(number: u64) -> PathBuf {
    std::env::temp_dir().join(format!("punctual-demo-{number:016x}"))
}

/// The data directory of the private Redis.
pub fn data_of(directory: &Path) -> PathBuf {
    directory.join("data")
}

/// A free port. The kernel assigns a port again only after all others.
async fn free() -> io::Result<SocketAddr> {
    TcpListener::bind(("127.0.0.1", 0)).await?.local_addr()
}
