//! The network of an instance: a fault proxy to each server of Redis, and to each sentinel.
//!
//! A sentinel names servers by the addresses that replicas and sentinels use. A translator replaces them by those of the
//! proxies of the instance.

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy},
    net::{TcpListener, TcpStream},
    sync::Mutex,
    task::{JoinHandle, JoinSet},
};

use crate::support::{
    port::Port,
    proxy::Proxy,
    sentinels::{MASTER, WatchedRedis},
};

pub struct Network {
    servers: Vec<Proxy>,
    sentinels: Vec<Proxy>,
    translators: Vec<JoinHandle<()>>,
    /// Held by the fault that decides how it behaves.
    pub turn: Mutex<()>,
}

impl Network {
    pub fn start(redis: &WatchedRedis) -> Self {
        let servers: Vec<Proxy> = redis.servers.iter().map(|server| Proxy::start(server.port())).collect();
        let names: Vec<_> =
            (0..servers.len()).map(|place| name(redis.announced(place), servers[place].port())).collect();
        let (mut sentinels, mut translators) = (Vec::new(), Vec::new());
        for sentinel in redis.sentinel_ports() {
            let port = Port::reserve();
            sentinels.push(Proxy::start(port.number()));
            translators.push(tokio::spawn(translate(port.listen(), sentinel, names.clone())));
        }
        Self { servers, sentinels, translators, turn: Mutex::default() }
    }

    /// The setting `redis.sentinel`.
    pub fn setting(&self) -> String {
        let urls: Vec<String> =
            self.sentinels.iter().map(|proxy| format!("'redis://127.0.0.1:{}'", proxy.port())).collect();
        format!("sentinel: {{ urls: [{}], master: {MASTER} }}", urls.join(", "))
    }

    /// To the servers, and perhaps also to the sentinels.
    pub fn paths(&self, with_sentinels: bool) -> Vec<&Proxy> {
        self.servers.iter().chain(self.sentinels.iter().filter(|_| with_sentinels)).collect()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for translator in &self.translators {
            translator.abort();
        }
    }
}

type Name = ([u8; 5], [u8; 5]);

/// Ports of the same length: a reply keeps its length.
fn name(announced: u16, path: u16) -> Name {
    let digits = |port: u16| port.to_string().into_bytes().try_into().expect("a port of five digits");
    (digits(announced), digits(path))
}

async fn translate(listener: TcpListener, sentinel: u16, names: Vec<Name>) {
    let mut links = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        while links.try_join_next().is_some() {}
        let names = names.clone();
        links.spawn(async move {
            let Ok(server) = TcpStream::connect(("127.0.0.1", sentinel)).await else { return };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let ((mut client_in, mut client_out), (server_in, mut server_out)) =
                (client.into_split(), server.into_split());
            let down = async move {
                let (mut replies, mut line) = (BufReader::new(server_in), Vec::new());
                while replies.read_until(b'\n', &mut line).await.is_ok_and(|length| length > 0) {
                    rename(&mut line, &names);
                    if client_out.write_all(&line).await.is_err() {
                        return;
                    }
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
