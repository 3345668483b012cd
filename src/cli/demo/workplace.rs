//! A directory and an address for the demo.

use std::{
    fs::{self, DirBuilder},
    io,
    net::SocketAddr,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::net::TcpListener;

/// Longest start of Redis and the instance, and longest end of a Redis of a demo that was killed.
pub const START: Duration = Duration::from_secs(20);
/// Pause before Redis or the instance is asked again.
pub const POLL: Duration = Duration::from_millis(20);

/// Deleted on drop.
pub struct Workplace {
    pub number: u64,
    directory: PathBuf,
    listen: SocketAddr,
}

impl Workplace {
    /// With a configuration whose only sink is `receiver`, a URL.
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

    /// It exists once the private Redis listens.
    pub fn redis_socket(&self) -> PathBuf {
        data_of(&self.directory).join("redis.sock")
    }

    /// Of the API.
    pub fn url(&self) -> String {
        format!("http://{}", self.listen)
    }

    fn configuration(&self, receiver: &str) -> String {
        // JSON text is YAML text, whatever the name of the directory.
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
        // What is left in a temporary directory does no harm.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The directory of the demo of this number.
pub fn directory_of(number: u64) -> PathBuf {
    std::env::temp_dir().join(format!("punctual-demo-{number:016x}"))
}

/// Of its Redis.
pub fn data_of(directory: &Path) -> PathBuf {
    directory.join("data")
}

/// The kernel gives a port again only after all others.
async fn free() -> io::Result<SocketAddr> {
    TcpListener::bind(("127.0.0.1", 0)).await?.local_addr()
}
