//! A directory and an address for the demo.

use std::{
    fs::{self, DirBuilder},
    io,
    net::SocketAddr,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use tokio::net::TcpListener;

/// Deleted on drop.
pub struct Workplace {
    directory: PathBuf,
    listen: SocketAddr,
}

impl Workplace {
    /// With a configuration whose only sink is `receiver`, a URL.
    pub async fn new(receiver: &str) -> io::Result<Self> {
        let directory = std::env::temp_dir().join(format!("punctual-demo-{:016x}", rand::random::<u64>()));
        DirBuilder::new().mode(0o700).create(&directory)?;
        let workplace = Self { directory, listen: free().await? };
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
        self.directory.join("data/redis.sock")
    }

    /// Of the API.
    pub fn url(&self) -> String {
        format!("http://{}", self.listen)
    }

    fn configuration(&self, receiver: &str) -> String {
        // JSON text is YAML text, whatever the name of the directory.
        let data = serde_json::Value::from(self.directory.join("data").to_string_lossy());
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

/// The kernel gives a port again only after all others.
async fn free() -> io::Result<SocketAddr> {
    TcpListener::bind(("127.0.0.1", 0)).await?.local_addr()
}
