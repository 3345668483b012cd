//! The network of an instance: a fault proxy to each server of Redis, and to each sentinel.
//!
//! A sentinel names servers by the addresses that replicas and sentinels use, a server of a cluster names the others by their
//! own. A translator replaces them by those of the proxies of the instance.

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy},
    net::{TcpListener, TcpStream},
    sync::Mutex,
    task::{JoinHandle, JoinSet},
};

use super::store::Store;
use crate::support::{
    cluster::ClusterRedis,
    port::Port,
    proxy::Proxy,
    sentinels::{MASTER, WatchedRedis},
};

pub struct Network {
    /// The setting of `redis` that names servers or sentinels.
    pub setting: String,
    servers: Vec<Proxy>,
    sentinels: Vec<Proxy>,
    translators: Vec<JoinHandle<()>>,
    /// Held by the fault that decides how it behaves.
    pub turn: Mutex<()>,
}

impl Network {
    pub fn start(redis: &Store) -> Self {
        match redis {
            Store::Sentinels(redis) => Self::to_watched(redis),
            Store::Cluster(cluster) => Self::to_cluster(cluster),
        }
    }

    fn to_watched(redis: &WatchedRedis) -> Self {
        let servers: Vec<Proxy> = redis.servers.iter().map(|server| Proxy::start(server.port())).collect();
        let names: Vec<_> =
            (0..servers.len()).map(|place| name(redis.announced(place), servers[place].port())).collect();
        let (sentinels, translators) = translated(&redis.sentinel_ports(), |_| names.clone(), is_name_of_sentinel);
        let urls = urls(&sentinels);
        let setting = format!("sentinel: {{ urls: [{urls}], master: {MASTER} }}");
        Self { setting, servers, sentinels, translators, turn: Mutex::default() }
    }

    fn to_cluster(cluster: &ClusterRedis) -> Self {
        let ports: Vec<u16> = (0..cluster.count()).map(|place| cluster.server(place).port()).collect();
        let names =
            |proxies: &[Proxy]| ports.iter().zip(proxies).map(|(port, proxy)| name(*port, proxy.port())).collect();
        let (servers, translators) = translated(&ports, names, is_name_of_cluster);
        let setting = format!("cluster: {{ urls: [{}] }}", urls(&servers[..2]));
        Self { setting, servers, sentinels: Vec::new(), translators, turn: Mutex::default() }
    }

    /// All, or those to servers alone; on a cluster those to half of the servers.
    pub fn paths(&self, is_all: bool) -> Vec<&Proxy> {
        let count = if is_all || !self.sentinels.is_empty() { self.servers.len() } else { self.servers.len() / 2 };
        self.servers[..count].iter().chain(self.sentinels.iter().filter(|_| is_all)).collect()
    }
}

fn urls(proxies: &[Proxy]) -> String {
    proxies.iter().map(|proxy| format!("'redis://127.0.0.1:{}'", proxy.port())).collect::<Vec<_>>().join(", ")
}

/// A proxy to each of these ports, with a translator behind it.
fn translated(
    ports: &[u16],
    names: impl Fn(&[Proxy]) -> Vec<Name>,
    is_name: IsName,
) -> (Vec<Proxy>, Vec<JoinHandle<()>>) {
    let listeners: Vec<Port> = ports.iter().map(|_| Port::reserve()).collect();
    let proxies: Vec<Proxy> = listeners.iter().map(|listener| Proxy::start(listener.number())).collect();
    let names = names(&proxies);
    let translators = listeners
        .into_iter()
        .zip(ports)
        .map(|(listener, port)| tokio::spawn(translate(listener.listen(), *port, names.clone(), is_name)))
        .collect();
    (proxies, translators)
}

impl Drop for Network {
    fn drop(&mut self) {
        for translator in &self.translators {
            translator.abort();
        }
    }
}

type Name = ([u8; 5], [u8; 5]);
/// Whether a line has a name, by the line before it.
type IsName = fn(&[u8], &[u8]) -> bool;

fn is_name_of_sentinel(_: &[u8], _: &[u8]) -> bool {
    true
}

/// In `CLUSTER SLOTS` a port follows its address. Payloads are left as they are.
fn is_name_of_cluster(before: &[u8], line: &[u8]) -> bool {
    (before == b"127.0.0.1\r\n" && line.starts_with(b":")) || line.starts_with(b"-MOVED ") || line.starts_with(b"-ASK ")
}

/// Ports of the same length: a reply keeps its length.
fn name(announced: u16, path: u16) -> Name {
    let digits = |port: u16| port.to_string().into_bytes().try_into().expect("a port of five digits");
    (digits(announced), digits(path))
}

async fn translate(listener: TcpListener, port: u16, names: Vec<Name>, is_name: IsName) {
    let mut links = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        while links.try_join_next().is_some() {}
        let names = names.clone();
        links.spawn(async move {
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let ((mut client_in, mut client_out), (server_in, mut server_out)) =
                (client.into_split(), server.into_split());
            let down = async move {
                let (mut replies, mut before, mut line) = (BufReader::new(server_in), Vec::new(), Vec::new());
                while replies.read_until(b'\n', &mut line).await.is_ok_and(|length| length > 0) {
                    if is_name(&before, &line) {
                        rename(&mut line, &names);
                    }
                    if client_out.write_all(&line).await.is_err() {
                        return;
                    }
                    std::mem::swap(&mut before, &mut line);
                    line.clear();
                }
            };
            tokio::select! { _ = copy(&mut client_in, &mut server_out) => {}, () = down => {} }
        });
    }
}

fn rename(line: &mut [u8], names: &[Name]) {
    let mut at = 0;
    while let Some(part) = line.get_mut(at..at + 5) {
        match names.iter().find(|(announced, _)| part == announced) {
            Some((_, path)) => {
                part.copy_from_slice(path);
                at += 5;
            }
            None => at += 1,
        }
    }
}
