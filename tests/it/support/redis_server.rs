use std::{
    process::{Child, Stdio},
    time::Duration,
};

use punctual::tls::TlsFiles;
use redis::Value;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::{Authority, port::Port, redis_tls, servers, signal};

/// Maximum time until a replica is in step.
const IN_STEP: Duration = Duration::from_secs(30);

/// A `redis-server` with an append-only file; killed on drop.
pub struct RedisServer {
    directory: TempDir,
    port: Port,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    /// Files of its clients; empty where it is not encrypted.
    tls: TlsFiles,
    child: Option<Child>,
}

impl RedisServer {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// `arguments` as on redis-server's command line, e.g. `["--maxmemory", "10mb"]`.
    pub async fn start_with(arguments: &[&str]) -> Self {
        Self::start_at(Port::reserve(), arguments, &[], TlsFiles::default()).await
    }

    /// On this port, and with environment variables.
    pub async fn start_on(port: Port, arguments: &[&str], environment: &[(String, String)]) -> Self {
        Self::start_at(port, arguments, environment, TlsFiles::default()).await
    }

    /// Reached over TLS alone, with certificates of `authority` on both sides.
    pub async fn start_encrypted(arguments: &[&str], authority: &Authority) -> Self {
        let port = Port::reserve();
        let settings = redis_tls::server_settings(authority, port.number());
        let settings: Vec<[String; 2]> =
            settings.into_iter().map(|(name, value)| [format!("--{name}"), value]).collect();
        let settings: Vec<&str> = settings.iter().flatten().map(String::as_str).collect();
        Self::start_at(port, &[arguments, &settings].concat(), &[], redis_tls::client_files(authority)).await
    }

    async fn start_at(port: Port, arguments: &[&str], environment: &[(String, String)], tls: TlsFiles) -> Self {
        let mut server = Self {
            directory: tempfile::tempdir().expect("a temporary directory"),
            port,
            arguments: arguments.iter().map(ToString::to_string).collect(),
            environment: environment.to_vec(),
            tls,
            child: None,
        };
        server.restart().await;
        server
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port.number())
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server runs").id()
    }

    /// Its process id, while it runs.
    pub fn running(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// As `kill -9` does it: nothing is flushed.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it (again) on the same port and data, and waits until it answers.
    pub async fn restart(&mut self) {
        self.kill();
        let child = servers::redis_server()
            .args([
                "--port",
                &self.port.number().to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "yes",
            ])
            // Before 7.0 there is no such setting: DEBUG is allowed.
            .args(["--enable-debug-command", "yes"].iter().filter(|_| servers::redis_version() >= (7, 0)))
            .arg("--dir")
            .arg(self.directory.path())
            .args(&self.arguments)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        self.child = Some(child);
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.ping().await.is_err() {
            assert!(Instant::now() < deadline, "redis-server did not answer within 10 s");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Kills it and starts it without its data, as if its disk had been lost.
    pub async fn restart_empty(&mut self) {
        self.kill();
        let path = |name| self.directory.path().join(name);
        // A directory of files from 7.0 on.
        let removed = if servers::redis_version() >= (7, 0) {
            std::fs::remove_dir_all(path("appendonlydir"))
        } else {
            std::fs::remove_file(path("appendonly.aof"))
        };
        removed.expect("an append-only file");
        self.restart().await;
    }

    /// A plain connection for looking at what is stored.
    pub async fn connection(&self) -> redis::aio::MultiplexedConnection {
        let client = self.client();
        // Its own default, 500 ms, is short for a machine that is busy with other tests.
        let patient = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
        client.get_multiplexed_async_connection_with_config(&patient).await.expect("the server answers")
    }

    /// `None` while it does not answer. A server that changes its role closes its connections.
    pub async fn link(&self) -> Option<redis::aio::MultiplexedConnection> {
        self.client().get_multiplexed_async_connection().await.ok()
    }

    /// SIGSTOP: it keeps its connections and answers nothing.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Waits until it is a replica in step with its master.
    pub async fn replicates(&self) {
        let deadline = Instant::now() + IN_STEP;
        loop {
            let info = self.replication().await.unwrap_or_default();
            if info.contains("role:slave") && info.contains("master_link_status:up") {
                return;
            }
            assert!(Instant::now() < deadline, "no replica within {IN_STEP:?}: {info}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// The messages of the partitions with these hash tags that wait or are in flight. `None` while it does not answer or is
    /// a replica.
    pub async fn unsettled(&self, tags: &[String]) -> Option<usize> {
        let mut asked = redis::pipe();
        asked.cmd("ROLE");
        for tag in tags {
            asked.zcard(format!("{tag}:pending")).zcard(format!("{tag}:unack"));
        }
        let answers: Vec<Value> = asked.query_async(&mut self.link().await?).await.ok()?;
        let (role, counts) = answers.split_first()?;
        let role: Vec<Value> = redis::from_redis_value(role.clone()).ok()?;
        if !matches!(&role[0], Value::BulkString(role) if role == b"master") {
            return None;
        }
        counts.iter().map(|count| redis::from_redis_value::<usize>(count.clone()).ok()).sum()
    }

    /// `INFO replication`; `None` while it does not answer.
    pub async fn replication(&self) -> Option<String> {
        redis::cmd("INFO").arg("replication").query_async(&mut self.link().await?).await.ok()
    }

    fn signal(&self, signal: Signal) {
        signal::send(self.pid(), signal);
    }

    fn client(&self) -> redis::Client {
        redis_tls::client_at(self.port(), &self.tls)
    }

    async fn ping(&self) -> redis::RedisResult<()> {
        let mut connection = self.client().get_multiplexed_async_connection().await?;
        redis::cmd("PING").query_async(&mut connection).await
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}
