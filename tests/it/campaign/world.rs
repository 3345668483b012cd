//! All processes of a campaign: three instances, a watched Redis, an endpoint.

use std::{fs, time::Duration};

use tokio::{sync::Mutex, time::Instant};

use super::{
    Settings,
    brokers::Brokers,
    clock::Clock,
    endpoint::Endpoint,
    kinds::{KINDS, Kind},
    network::Network,
};
use crate::{
    program::eventually,
    support::{RedisServer, http, proxy::Proxy, punctual::Punctual, sentinels::WatchedRedis},
};

pub const INSTANCES: usize = 3;
/// The list on the Redis of the queue.
pub const KEY: &str = "campaign:jobs";
const REPLICAS: usize = 2;
/// A message in flight returns after this time, in milliseconds.
pub const LEASE: u64 = 5000;
/// Routes to the endpoint, into the list, and to the brokers.
const ROUTES: [(&str, &str); 4] = [("web", "hook"), ("jobs", "jobs"), ("topic", "topic"), ("queue", "queue")];
/// Those that need no broker.
const WITHOUT_BROKERS: usize = 2;
pub const PARTITIONS: usize = 2;
/// The user of the instances, with the rights of docs/redis.md.
pub const USER: &str = "punctual";
const RIGHTS: &str = "~punctual:routes ~{punctual:* ~campaign:jobs resetchannels &{punctual:* -@all +ping +select +info +eval +evalsha \
    +script|load +publish +subscribe +time +exists +get +set +del +unlink +hget +hgetall +hmget +hset +hdel +hlen +hstrlen +hscan \
    +zadd +zrem +zremrangebyrank +zremrangebyscore +zcard +zcount +zscore +zmscore +zrange +zrangebyscore +zrangebylex +zlexcount \
    +type +rpush +ltrim +multi +role +wait";
/// Until all instances are ready again.
const READY: Duration = Duration::from_secs(30);

pub struct World {
    pub instances: Vec<Mutex<Punctual>>,
    /// Addresses of the API, by instance.
    pub bases: Vec<String>,
    pub redis: Mutex<WatchedRedis>,
    /// Ports of the servers of Redis.
    pub ports: Vec<u16>,
    /// Of the servers of Redis.
    pub clock: Clock,
    /// Between each instance and Redis.
    pub networks: Vec<Network>,
    pub endpoint: Endpoint,
    pub endpoint_path: Proxy,
    /// `None`: they are not installed.
    pub brokers: Option<Brokers>,
    turns: [Mutex<()>; KINDS.len()],
}

/// Memory and open files of an instance.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub resident_kib: u64,
    pub files: usize,
}

impl World {
    pub async fn start(settings: &Settings) -> Self {
        let clock = Clock::start();
        let user: Vec<&str> = ["--user", USER, "on", ">secret"].into_iter().chain(RIGHTS.split_whitespace()).collect();
        let (redis, endpoint) =
            (WatchedRedis::start_apart(REPLICAS, &user, &clock.environment()).await, Endpoint::start());
        let endpoint_path = Proxy::start(endpoint.port());
        let brokers = Brokers::start().await;
        let (mut networks, mut instances) = (Vec::new(), Vec::new());
        for _ in 0..INSTANCES {
            let network = Network::start(&redis);
            let configuration = configuration(&network, endpoint_path.port(), brokers.as_ref());
            instances.push(Punctual::start_program(settings.program.clone(), &configuration).await);
            networks.push(network);
        }
        Self {
            bases: instances.iter().map(|instance| instance.url("")).collect(),
            instances: instances.into_iter().map(Mutex::new).collect(),
            ports: redis.servers.iter().map(RedisServer::port).collect(),
            redis: Mutex::new(redis),
            clock,
            networks,
            endpoint,
            endpoint_path,
            brokers,
            turns: Default::default(),
        }
    }

    /// Held by a fault that must not overlap with another one of its kind.
    pub fn turn(&self, kind: Kind) -> &Mutex<()> {
        let index = KINDS.iter().position(|(one, _)| *one == kind).expect("a kind");
        &self.turns[index]
    }

    /// Waits until replicas follow the primary, and all instances are ready.
    pub async fn is_well(&self) {
        let redis = self.redis.lock().await;
        let primary = redis.master().await;
        for (place, server) in redis.servers.iter().enumerate() {
            if place != primary {
                server.replicates().await;
            }
        }
        let client = http::client();
        let deadline = Instant::now() + READY;
        for base in &self.bases {
            let left = deadline.saturating_duration_since(Instant::now());
            eventually("an instance is ready", left, async || {
                let answer = client.get(format!("{base}/readyz")).send().await.ok()?;
                (answer.status() == 200).then_some(())
            })
            .await;
        }
    }

    pub fn routes(&self) -> Vec<&'static str> {
        routes(self.brokers.as_ref()).iter().map(|(route, _)| *route).collect()
    }

    /// The port of the primary that the sentinels name.
    pub async fn primary(&self) -> u16 {
        let redis = self.redis.lock().await;
        redis.servers[redis.master().await].port()
    }

    pub async fn usage(&self) -> Vec<Usage> {
        let mut all = Vec::new();
        for instance in &self.instances {
            let pid = instance.lock().await.pid().as_raw_nonzero();
            let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
            let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
            let resident_kib = resident.trim().trim_end_matches(" kB").parse().expect("a number");
            let files = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count();
            all.push(Usage { resident_kib, files });
        }
        all
    }

    /// The log of each instance up to now.
    pub async fn logs(&self) -> Vec<String> {
        let mut all = Vec::new();
        for instance in &self.instances {
            all.push(instance.lock().await.log());
        }
        all
    }
}

fn routes(brokers: Option<&Brokers>) -> &'static [(&'static str, &'static str)] {
    if brokers.is_some() { &ROUTES } else { &ROUTES[..WITHOUT_BROKERS] }
}

fn configuration(network: &Network, endpoint: u16, brokers: Option<&Brokers>) -> String {
    let route = |(route, sink): &(&str, &str)| {
        format!(
            "  {route}: {{ sink: {sink}, partitions: {PARTITIONS}, lease: {LEASE}ms, remember: {{ for: 1h }}, \
             retry: {{ max_attempts: 1000, initial: 100ms, max: 1s }} }}\n"
        )
    };
    let head = format!(
        "redis: {{ {}, username: {USER}, password: secret, timeout: 3s, durability: {{ replicas: {REPLICAS} }} }}\n\
         server: {{ request_timeout: 4s }}\nmax_sleep: 5s\n\
         sinks:\n  hook: {{ type: http, url: 'http://127.0.0.1:{endpoint}/due', timeout: 2s }}\n  \
         jobs: {{ type: redis_list, key: '{KEY}', format: envelope, timeout: 2s }}\n",
        network.setting(),
    );
    let sinks = brokers.map(Brokers::sinks).unwrap_or_default();
    let routes: String = routes(brokers).iter().map(route).collect();
    format!("{head}{sinks}routes:\n{routes}")
}
