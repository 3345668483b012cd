use std::{
    fs,
    path::PathBuf,
    process::{Child, Stdio},
    time::Duration,
};

use punctual::tls::TlsFiles;
use redis::{FromRedisValue, Value};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::{Authority, RedisServer, port::Port, proxy::Proxy, redis_tls, servers};

/// The name that the sentinels have for the master.
pub const MASTER: &str = "orders";
/// A user of the sentinels, with `RIGHTS`. The default user may do anything.
pub const CREDENTIALS: &str = "username: punctual, password: of-sentinels";
/// As in docs/failover.md.
pub const RIGHTS: &str = "resetchannels +subscribe +sentinel|get-master-addr-by-name &+switch-master &+promoted-slave";
/// Silence after which a server is down, in milliseconds.
const DOWN_AFTER: u32 = 1000;
/// Maximum time until sentinels know each other and all replicas, or name another master. A sentinel that was busy for two seconds
/// does nothing for 30.
const MAX_WAIT: Duration = Duration::from_mins(1);
/// Lines of each sentinel's log that a failure shows.
const SHOWN: usize = 30;

/// A master with replicas, and three sentinels that watch it. All are killed on drop.
pub struct WatchedRedis {
    /// The first one began as master.
    pub servers: Vec<RedisServer>,
    /// In front of each server, for its replicas and the sentinels; empty: they reach the servers themselves.
    pub paths: Vec<Proxy>,
    sentinels: Vec<Sentinel>,
}

impl WatchedRedis {
    pub const SENTINELS: usize = 3;

    pub async fn start(replicas: usize) -> Self {
        Self::begin(replicas, None).await
    }

    /// All of them are reached over TLS alone, with certificates of `authority` on both sides.
    pub async fn start_encrypted(replicas: usize, authority: &Authority) -> Self {
        Self::begin(replicas, Some(authority)).await
    }

    /// Replicas and sentinels reach each server through a proxy, which also gives it its address. With more settings of the
    /// servers, and environment variables.
    pub async fn start_apart(replicas: usize, settings: &[&str], environment: &[(String, String)]) -> Self {
        let (mut servers, mut paths) = (Vec::new(), Vec::<Proxy>::new());
        for _ in 0..=replicas {
            let port = Port::reserve();
            let path = Proxy::start(port.number());
            let announced = path.port().to_string();
            let master = paths.first().map(|path| path.port().to_string());
            let mut arguments = vec!["--repl-diskless-sync-delay", "0"];
            arguments.extend(["--replica-announce-ip", "127.0.0.1", "--replica-announce-port", &announced]);
            arguments.extend(master.iter().flat_map(|master| ["--replicaof", "127.0.0.1", master]));
            arguments.extend(settings);
            servers.push(RedisServer::start_on(port, &arguments, environment).await);
            paths.push(path);
        }
        Self::watch(servers, paths, None).await
    }

    async fn begin(replicas: usize, authority: Option<&Authority>) -> Self {
        let server = async |arguments: &[&str]| {
            // By default the master waits five seconds for further replicas before it sends its data.
            let arguments = [&["--repl-diskless-sync-delay", "0"], arguments].concat();
            match authority {
                Some(authority) => RedisServer::start_encrypted(&arguments, authority).await,
                None => RedisServer::start_with(&arguments).await,
            }
        };
        let mut servers = vec![server(&[]).await];
        let master = servers[0].port().to_string();
        for _ in 0..replicas {
            servers.push(server(&["--replicaof", "127.0.0.1", &master]).await);
        }
        Self::watch(servers, Vec::new(), authority).await
    }

    async fn watch(servers: Vec<RedisServer>, paths: Vec<Proxy>, authority: Option<&Authority>) -> Self {
        let replicas = servers.len() - 1;
        let master = paths.first().map_or(servers[0].port(), Proxy::port);
        let sentinels = (0..Self::SENTINELS).map(|_| Sentinel::start(master, authority)).collect();
        let watched = Self { servers, paths, sentinels };
        watched
            .until("they know each other and all replicas", async |sentinel| {
                let fields: Vec<String> = sentinel.ask(&["MASTER", MASTER]).await?;
                let field =
                    |name: &str| fields.iter().position(|field| field == name).map(|at| fields[at + 1].as_str());
                let all = (Self::SENTINELS - 1).to_string();
                let known =
                    field("num-other-sentinels") == Some(&all) && field("num-slaves") == Some(&replicas.to_string());
                let up = replicas == 0 || sentinel.replicas().await? == replicas;
                (known && up).then_some(())
            })
            .await;
        watched
    }

    /// The setting `redis.sentinel`, with `more` in it.
    pub fn setting(&self, more: &str) -> String {
        let urls: Vec<String> =
            self.sentinels.iter().map(|one| format!("'{}://127.0.0.1:{}'", one.scheme(), one.port())).collect();
        format!("sentinel: {{ urls: [{}], master: {MASTER}{more} }}", urls.join(", "))
    }

    /// Ports of the sentinels.
    pub fn sentinel_ports(&self) -> Vec<u16> {
        self.sentinels.iter().map(Sentinel::port).collect()
    }

    /// The port of the server at `place`, as sentinels and replicas know it.
    pub fn announced(&self, place: usize) -> u16 {
        self.paths.get(place).map_or(self.servers[place].port(), Proxy::port)
    }

    /// The place in `servers` of the one that all sentinels name.
    pub async fn master(&self) -> usize {
        self.until("they agree", async |sentinel| sentinel.master().await).await;
        // One that is busy can answer only the next time.
        let deadline = Instant::now() + MAX_WAIT;
        let port = loop {
            if let Some(port) = self.sentinels[0].master().await {
                break port;
            }
            assert!(Instant::now() < deadline, "the first sentinel does not answer within {MAX_WAIT:?}");
            sleep(Duration::from_millis(10)).await;
        };
        (0..self.servers.len()).find(|place| self.announced(*place) == port).expect("one of the servers")
    }

    /// Waits until the sentinels, all of them, name another server than that at `before`, and returns its place.
    pub async fn switched(&self, before: usize) -> usize {
        let port = self.announced(before);
        let other = async |sentinel: &Sentinel| sentinel.master().await.filter(|master| *master != port);
        self.until("they name another master", other).await;
        self.master().await
    }

    /// `SENTINEL FAILOVER`: as an operator asks for it.
    pub async fn fail_over(&self) {
        assert!(self.try_fail_over().await, "a fail-over begins");
    }

    /// `false`: the sentinel refuses, as for some time after the last fail-over.
    pub async fn try_fail_over(&self) -> bool {
        self.sentinels[0].ask::<Value>(&["FAILOVER", MASTER]).await.is_some()
    }

    /// Waits until a replica is promoted. Returns the number of unsettled messages that it has at that time, of the
    /// partition with this tag.
    pub async fn promoted_has(&self, tag: &str) -> usize {
        let (tags, deadline) = ([tag.to_owned()], Instant::now() + MAX_WAIT);
        loop {
            for server in &self.servers[1..] {
                if let Some(count) = server.unsettled(&tags).await {
                    return count;
                }
            }
            assert!(Instant::now() < deadline, "none is promoted");
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// `kill -9` of the sentinel at `place`.
    pub fn kill_sentinel(&mut self, place: usize) {
        self.sentinels[place].kill();
    }

    /// Makes one sentinel forget the others and name this server, as one that was cut off.
    pub async fn mislead(&self, place: usize, port: u16) {
        let sentinel = &self.sentinels[place];
        let _: Value = sentinel.ask(&["REMOVE", MASTER]).await.expect("removed");
        // As many votes as it cannot have: it never acts.
        let _: Value =
            sentinel.ask(&["MONITOR", MASTER, "127.0.0.1", &port.to_string(), "9"]).await.expect("monitored");
    }

    /// The ACL log of the sentinel at `place`: commands that it refused.
    pub async fn denied(&self, place: usize) -> Vec<Value> {
        let mut connection = self.sentinels[place].connection().await.expect("it answers");
        redis::cmd("ACL").arg("LOG").query_async(&mut connection).await.expect("a log")
    }

    /// Until `look` finds it on each sentinel that runs.
    async fn until<T>(&self, what: &str, look: impl AsyncFn(&Sentinel) -> Option<T>) {
        let deadline = Instant::now() + MAX_WAIT;
        for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.child.is_some()) {
            while look(sentinel).await.is_none() {
                let logs = || self.sentinels.iter().map(Sentinel::log).collect::<String>();
                assert!(Instant::now() < deadline, "sentinels, not within {MAX_WAIT:?}: {what}\n{}", logs());
                sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

impl Drop for WatchedRedis {
    fn drop(&mut self) {
        // A frozen one could not be waited for otherwise on some systems.
        for server in &self.servers {
            if server.running().is_some() {
                server.resume();
            }
        }
    }
}

struct Sentinel {
    /// Its file, which it rewrites.
    directory: TempDir,
    port: Port,
    /// Files of its clients; empty where it is not encrypted.
    tls: TlsFiles,
    child: Option<Child>,
}

impl Sentinel {
    fn start(master: u16, authority: Option<&Authority>) -> Self {
        let mut sentinel = Self {
            directory: tempfile::tempdir().expect("a temporary directory"),
            port: Port::reserve(),
            tls: authority.map(redis_tls::client_files).unwrap_or_default(),
            child: None,
        };
        let file = sentinel.directory.path().join("sentinel.conf");
        let places = match authority {
            Some(authority) => redis_tls::server_settings(authority, sentinel.port()),
            None => vec![("port", sentinel.port().to_string())],
        };
        let places: String =
            places.into_iter().flat_map(|(name, value)| [name.to_owned(), " ".into(), value, "\n".into()]).collect();
        let lines = format!(
            "{places}bind 127.0.0.1\ndir {}\nuser punctual on >of-sentinels -@all {RIGHTS}\nsentinel monitor {MASTER} 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds {MASTER} {DOWN_AFTER}\nsentinel failover-timeout {MASTER} 6000\n\
             sentinel parallel-syncs {MASTER} 2\n",
            sentinel.directory.path().display()
        );
        fs::write(&file, lines).expect("its file is written");
        let log = fs::File::create(sentinel.log_file()).expect("a log file");
        let child = servers::redis_server()
            .arg(&file)
            .arg("--sentinel")
            .stdin(Stdio::null())
            .stdout(log)
            .spawn()
            .expect("redis-server is installed");
        sentinel.child = Some(child);
        sentinel
    }

    fn log_file(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// The end of what it wrote.
    fn log(&self) -> String {
        let log = fs::read_to_string(self.log_file()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let shown = lines[lines.len().saturating_sub(SHOWN)..].join("\n");
        format!("sentinel at {}:\n{shown}\n", self.port())
    }

    fn port(&self) -> u16 {
        self.port.number()
    }

    fn scheme(&self) -> &'static str {
        if self.tls.is_empty() { "redis" } else { "rediss" }
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// `None` while it does not answer, or refuses.
    async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> Option<T> {
        redis::cmd("SENTINEL").arg(words).query_async(&mut self.connection().await?).await.ok()
    }

    async fn connection(&self) -> Option<redis::aio::MultiplexedConnection> {
        redis_tls::client_at(self.port(), &self.tls).get_multiplexed_async_connection().await.ok()
    }

    async fn master(&self) -> Option<u16> {
        let (_, port): (String, u16) = self.ask(&["GET-MASTER-ADDR-BY-NAME", MASTER]).await?;
        Some(port)
    }

    /// Those that are in step.
    async fn replicas(&self) -> Option<usize> {
        let all: Vec<Vec<String>> = self.ask(&["REPLICAS", MASTER]).await?;
        let up = |fields: &&Vec<String>| {
            fields.windows(2).any(|pair| pair[0] == "master-link-status" && pair[1] == "ok")
                && fields.windows(2).any(|pair| pair[0] == "flags" && pair[1] == "slave")
        };
        Some(all.iter().filter(up).count())
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.kill();
    }
}
