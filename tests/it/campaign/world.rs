//! All processes of a campaign: three instances, a watched Redis, an endpoint.

use std::{
    fs,
    sync::{Arc, Mutex as StdMutex},
    time::Duration,
};

use serde_json::Value;
use tokio::{sync::Mutex, time::Instant};

use super::{
    Settings,
    brokers::Brokers,
    clock::Clock,
    configuration::{Age, Configuration},
    elsewhere::Elsewhere,
    endpoint::Endpoint,
    kinds::{KINDS, Kind},
    network::Network,
    routes::{self, Route},
    store::{Shape, Store},
    writers::Writers,
};
use crate::{
    program::eventually,
    support::{
        http,
        proxy::Proxy,
        punctual::{Punctual, Unread},
    },
};

pub const INSTANCES: usize = 3;
/// The list on the Redis of the queue.
pub const KEY: &str = "campaign:jobs";
/// A message in flight returns after this time, in milliseconds.
pub const LEASE: u64 = 5000;
/// Maximum time until all instances are ready again.
const READY: Duration = Duration::from_secs(30);

pub struct World {
    pub instances: Vec<Mutex<Punctual>>,
    /// The standard errors of the instances.
    pub errors: Vec<Option<Arc<Unread>>>,
    pub configurations: Vec<Configuration>,
    /// Addresses of the API, by instance.
    pub bases: Vec<String>,
    pub redis: Mutex<Store>,
    /// The place of the primary that the sentinels named last.
    pub expected: Mutex<usize>,
    /// Ports of the servers of Redis.
    pub ports: Vec<u16>,
    pub writers: Writers,
    /// The wall clock of the servers of Redis.
    pub clock: Clock,
    /// Between each instance and Redis.
    pub networks: Vec<Network>,
    pub endpoint: Endpoint,
    pub endpoint_path: Proxy,
    pub elsewhere: Elsewhere,
    /// `None`: they are not installed.
    pub brokers: Option<Brokers>,
    pub routes: Vec<&'static Route>,
    pub shape: Shape,
    /// Number of replicas that have a message before a call is answered.
    pub replicas: usize,
    turns: [Mutex<()>; KINDS.len()],
}

/// A text of a message in a listing.
pub fn text_of(message: &Value, name: &str) -> String {
    message[name].as_str().unwrap_or_default().to_owned()
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
        let (redis, endpoint) = (Store::start(settings.shape, &clock).await, Endpoint::start());
        let endpoint_path = Proxy::start(endpoint.port());
        let (elsewhere, brokers) = (Elsewhere::start().await, Brokers::start().await);
        let sinks = elsewhere.sink() + &brokers.as_ref().map(Brokers::sinks).unwrap_or_default();
        let routes = routes::all(settings.shape, brokers.is_some());
        let replicas = if settings.is_durable { redis.replicas() } else { 0 };
        let (mut networks, mut configurations, mut instances) = (Vec::new(), Vec::new(), Vec::new());
        for instance in 0..INSTANCES {
            let network = Network::start(&redis);
            let configuration = Configuration {
                instance,
                redis: network.setting.clone(),
                replicas,
                endpoint: endpoint_path.port(),
                sinks: sinks.clone(),
                sources: brokers.as_ref().map(Brokers::sources).unwrap_or_default(),
                routes: routes.clone(),
                partitions: StdMutex::default(),
            };
            let text = configuration.text(Age::Current);
            instances.push(Punctual::start_program(settings.program.clone(), &text).await);
            configurations.push(configuration);
            networks.push(network);
        }
        Self {
            bases: instances.iter().map(|instance| instance.url("")).collect(),
            errors: instances.iter().map(Punctual::unread).collect(),
            instances: instances.into_iter().map(Mutex::new).collect(),
            configurations,
            ports: redis.ports(),
            writers: Writers::new(&redis, settings.is_durable),
            redis: Mutex::new(redis),
            expected: Mutex::default(),
            clock,
            networks,
            endpoint,
            endpoint_path,
            elsewhere,
            brokers,
            routes,
            shape: settings.shape,
            replicas,
            turns: std::array::from_fn(|_| Mutex::default()),
        }
    }

    /// Held by a fault that must not overlap with another one of its kind.
    pub fn turn(&self, kind: Kind) -> &Mutex<()> {
        let index = KINDS.iter().position(|(one, _)| *one == kind).expect("a kind");
        &self.turns[index]
    }

    /// Waits until replicas follow the primary, and all instances are ready.
    pub async fn is_well(&self) {
        self.redis.lock().await.is_well().await;
        let deadline = Instant::now() + READY;
        for instance in 0..INSTANCES {
            self.is_ready(instance, deadline.saturating_duration_since(Instant::now())).await;
        }
    }

    /// Waits until the instance is ready.
    pub async fn is_ready(&self, instance: usize, max_wait: Duration) {
        let (client, path) = (http::client(), format!("{}/readyz", self.bases[instance]));
        eventually("an instance is ready", max_wait, async || {
            let answer = client.get(&path).send().await.ok()?;
            (answer.status() == 200).then_some(())
        })
        .await;
    }

    /// Names of the routes.
    pub fn names(&self) -> Vec<&'static str> {
        self.routes.iter().map(|route| route.name).collect()
    }

    /// All messages of all routes in the pages of a listing with this query. All instances must be ready.
    pub async fn messages(&self, query: &str) -> Vec<Value> {
        let (client, mut all) = (http::client(), Vec::new());
        for route in self.names() {
            let mut cursor = String::new();
            loop {
                let path = format!("/v1/routes/{route}/messages?{query}&limit=1000{cursor}");
                let answer = client.get(format!("{}{path}", self.bases[0])).send().await.expect("it is well");
                let page: Value = serde_json::from_str(&answer.text().await.expect("a page")).expect("JSON");
                all.extend(page["messages"].as_array().unwrap_or_else(|| panic!("{path}: {page}")).iter().cloned());
                match page["cursor"].as_str() {
                    Some(next) => cursor = format!("&cursor={next}"),
                    None => break,
                }
            }
        }
        all
    }

    /// The port of the one primary.
    pub async fn primary(&self) -> Option<u16> {
        self.redis.lock().await.primary().await
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
