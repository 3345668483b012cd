use std::ops::RangeInclusive;

use redis::{FromRedisValue, RedisResult};

use super::apart;
use crate::support::{Authority, RedisServer, port::Port};

/// Silence after which a node is down for another one, in milliseconds.
const NODE_TIMEOUT: &str = "1000";

/// A server of a cluster.
pub struct Node {
    pub server: RedisServer,
    pub id: String,
    pub is_frozen: bool,
    pub is_cut_off: bool,
    /// Port of the cluster's bus.
    bus: Port,
}

/// A node as another one sees it: a line of `CLUSTER NODES`.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub id: String,
    pub port: u16,
    pub is_primary: bool,
    /// The id of its primary, or `-`.
    pub follows: String,
    pub slots: Vec<RangeInclusive<u16>>,
}

impl Node {
    /// Knows no other one. With an authority it takes TLS alone, and is named `localhost` to clients; without one
    /// it has more settings, and environment variables.
    pub async fn start(authority: Option<&Authority>, more: &[&str], environment: &[(String, String)]) -> Self {
        let bus = Port::reserve();
        let bus_port = bus.number().to_string();
        // Without a delay for further replicas, and with a cluster of its own.
        let settings = [
            "--cluster-enabled",
            "yes",
            "--cluster-port",
            &bus_port,
            "--cluster-node-timeout",
            NODE_TIMEOUT,
            "--repl-diskless-sync-delay",
            "0",
        ];
        let named = [
            "--tls-cluster",
            "yes",
            "--cluster-announce-hostname",
            "localhost",
            "--cluster-preferred-endpoint-type",
            "hostname",
        ];
        let environment = [environment, &[(apart::BUS.to_owned(), bus_port.clone())]].concat();
        let server = match authority {
            Some(authority) => RedisServer::start_encrypted(&[&settings[..], &named].concat(), authority).await,
            None => RedisServer::start_on(Port::reserve(), &[&settings[..], more].concat(), &environment).await,
        };
        let mut node = Self { server, id: String::new(), is_frozen: false, is_cut_off: false, bus };
        node.id = node.ask(&["MYID"]).await.expect("an id");
        node
    }

    /// Whether it can answer, and knows what the others know.
    pub fn answers(&self) -> bool {
        self.server.running().is_some() && !self.is_frozen && !self.is_cut_off
    }

    /// The ports of clients and of the bus.
    pub fn ports(&self) -> [u16; 2] {
        [self.server.port(), self.bus.number()]
    }

    /// A subcommand of `CLUSTER`.
    pub async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        let link = self.server.link().await;
        let mut link = link.ok_or((redis::ErrorKind::Io, "the node does not answer"))?;
        redis::cmd("CLUSTER").arg(words).query_async(&mut link).await
    }

    /// Begins a handshake.
    pub async fn meet(&self, other: &Self) -> RedisResult<()> {
        self.ask(&["MEET", "127.0.0.1", &other.server.port().to_string(), &other.bus.number().to_string()]).await
    }

    /// Each node that it knows, also itself. `None` while it does not answer, or knows one only by its address.
    pub async fn nodes(&self) -> Option<Vec<Seen>> {
        let lines: String = self.ask(&["NODES"]).await.ok()?;
        lines.lines().map(Seen::parse).collect()
    }

    /// Whether it serves: as a primary with `replicas` replicas, all in step, or as a replica in step.
    pub async fn serves(&self, replicas: usize) -> bool {
        let state: Option<String> = self.ask(&["INFO"]).await.ok();
        let info = self.server.replication().await.unwrap_or_default();
        let in_step = info.matches("state=online").count() == replicas;
        let is_up = info.contains("role:master") || info.contains("master_link_status:up");
        state.is_some_and(|state| state.contains("cluster_state:ok")) && in_step && is_up
    }
}

impl Seen {
    /// `None` for a node in a handshake: its id is not known yet.
    fn parse(line: &str) -> Option<Self> {
        // <id> <ip:port@bus> <flags> <primary> <ping sent> <pong received> <epoch> <link> <slots>...
        let words: Vec<&str> = line.split_whitespace().collect();
        let flags: Vec<&str> = words[2].split(',').collect();
        let (address, _) = words[1].split_once('@').expect("a bus port");
        let (_, port) = address.rsplit_once(':').expect("a port");
        let slots = words[8..].iter().filter(|slots| !slots.starts_with('[')).map(|slots| {
            let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
            first.parse().expect("a slot")..=last.parse().expect("a slot")
        });
        (!flags.contains(&"handshake")).then(|| Self {
            id: words[0].to_owned(),
            port: port.parse().expect("a port"),
            is_primary: flags.contains(&"master"),
            follows: words[3].to_owned(),
            slots: slots.collect(),
        })
    }

    pub fn has(&self, slot: u16) -> bool {
        self.slots.iter().any(|slots| slots.contains(&slot))
    }
}
