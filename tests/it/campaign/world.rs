//! All processes of a campaign: three instances, a watched Redis, an endpoint.

use std::{fs, time::Duration};

use tokio::{sync::Mutex, time::Instant};

use super::{
    Settings,
    brokers::Brokers,
    endpoint::Endpoint,
    producers::{QUEUE, SET},
    routes,
};
use crate::{
    program::eventually,
    support::{RedisServer, http, punctual::Punctual, sentinels::WatchedRedis},
};

pub const INSTANCES: usize = 3;
/// The list on the Redis of the queue.
pub const KEY: &str = "campaign:jobs";
pub const REPLICAS: usize = 2;
/// A message in flight returns after this time, in milliseconds.
pub const LEASE: u64 = 5000;
/// Until all instances are ready again.
const READY: Duration = Duration::from_secs(30);

pub struct World {
    pub instances: Vec<Mutex<Punctual>>,
    /// Addresses of the API, by instance.
    pub bases: Vec<String>,
    pub redis: Mutex<WatchedRedis>,
    /// Ports of the servers of Redis.
    pub ports: Vec<u16>,
    pub endpoint: Endpoint,
    /// `None`: they are not installed.
    pub brokers: Option<Brokers>,
    /// Held by the fault that decides how the endpoint behaves.
    pub endpoint_turn: Mutex<()>,
}

/// Memory and open files of an instance.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub resident_kib: u64,
    pub files: usize,
}

impl World {
    pub async fn start(settings: &Settings) -> Self {
        let (redis, endpoint) = (WatchedRedis::start(REPLICAS).await, Endpoint::start());
        let brokers = Brokers::start().await;
        let configuration = configuration(&redis, &endpoint, brokers.as_ref());
        let mut instances = Vec::new();
        for _ in 0..INSTANCES {
            instances.push(Punctual::start_program(settings.program.clone(), &configuration).await);
        }
        Self {
            bases: instances.iter().map(|instance| instance.url("")).collect(),
            instances: instances.into_iter().map(Mutex::new).collect(),
            ports: redis.servers.iter().map(RedisServer::port).collect(),
            redis: Mutex::new(redis),
            endpoint,
            brokers,
            endpoint_turn: Mutex::default(),
        }
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
        routes::all(self.brokers.is_some()).map(|route| route.name).collect()
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

fn configuration(redis: &WatchedRedis, endpoint: &Endpoint, brokers: Option<&Brokers>) -> String {
    let route = |route: &routes::Route| {
        let routes::Route { name, sink, settings, .. } = route;
        format!(
            "  {name}: {{ sink: {sink}, {settings}, lease: {LEASE}ms, remember: {{ for: 1h }}, \
             history: {{ for: 1h, max: 1000000 }}, \
             retry: {{ max_attempts: 1000, initial: 100ms, max: 1s }} }}\n"
        )
    };
    let head = format!(
        "redis: {{ {}, timeout: 3s, durability: {{ replicas: {REPLICAS} }} }}\n\
         server: {{ request_timeout: 4s }}\nmax_sleep: 5s\n\
         sinks:\n  hook: {{ type: http, url: '{}', timeout: 2s }}\n  \
         jobs: {{ type: redis_list, key: '{KEY}', format: envelope, timeout: 2s }}\n",
        redis.setting(""),
        endpoint.url(),
    );
    let sources = format!(
        "  from-set: {{ type: sorted_set, key: '{SET}', unit: milliseconds, poll: 200ms, route: from-set }}\n  \
         from-library: {{ type: delayqueue, name: {QUEUE}, hash_tag: false, poll: 200ms, route: from-library }}\n{}",
        brokers.map(Brokers::sources).unwrap_or_default()
    );
    let sinks = brokers.map(Brokers::sinks).unwrap_or_default();
    let routes: String = routes::all(brokers.is_some()).map(route).collect();
    format!("{head}{sinks}sources:\n{sources}routes:\n{routes}")
}
