//! Connections to servers of the model, each behind a port of its own. The clock is the real one.

pub mod cluster;
mod links;
mod sentinels;
mod servers;

use std::{future::Future, sync::Arc, time::Duration};

use parking_lot::Mutex;
use punctual_model::{LinkFaults, Links, Reply, Server};
use tokio::{
    io::copy_bidirectional,
    net::TcpListener,
    task::AbortHandle,
    time::{Instant, sleep, timeout},
};

use super::*;
use crate::tls::TlsFiles;

/// For what happens soon, on a busy machine.
const SOON: Duration = Duration::from_secs(10);
/// For what must not happen.
const NEVER: Duration = Duration::from_millis(50);

/// A server of the model behind a port.
pub struct Peer {
    pub server: Arc<Server>,
    pub links: Arc<Links>,
    pub address: ServerAddress,
    accepting: AbortHandle,
    commands: Arc<Mutex<Vec<String>>>,
}

impl Peer {
    /// `replies` to commands, which are joined by spaces; `None`: that of the model.
    pub async fn start(replies: impl Fn(&str) -> Option<Reply> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = ServerAddress { host: "127.0.0.1".into(), port: listener.local_addr().unwrap().port() };
        let server = Server::new(|| 0);
        let links = Links::new(&server, 1);
        let to_server = links.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut link = to_server.connect().expect("links are made");
                tokio::spawn(async move { copy_bidirectional(&mut client, &mut link).await });
            }
        });
        let accepting = accepting.abort_handle();
        let peer = Self { server, links, address, accepting, commands: Arc::default() };
        peer.replies(replies);
        peer
    }

    /// Other replies from now on.
    pub fn replies(&self, replies: impl Fn(&str) -> Option<Reply> + Send + 'static) {
        let commands = self.commands.clone();
        self.server.reply_with(move |command| {
            let command = command.join(" ");
            let reply = replies(&command);
            commands.lock().push(command);
            reply
        });
    }

    /// How often a command with this beginning came.
    pub fn count(&self, begin: &str) -> usize {
        self.commands.lock().iter().filter(|command| command.starts_with(begin)).count()
    }

    /// Accepts connections and answers nothing from now on.
    pub fn freeze(&self) {
        self.links.set_faults(LinkFaults { latency: Duration::from_hours(1000), ..LinkFaults::default() });
    }

    /// Ends all connections and refuses new ones from now on.
    pub async fn refuse(&self) {
        self.accepting.abort();
        self.links.end_all();
        until("the port is closed", || self.accepting.is_finished()).await;
    }

    pub fn endpoint(&self) -> RedisEndpoint {
        RedisEndpoint {
            url: format!("redis://{}", self.address).into(),
            username: None,
            password: None,
            tls: TlsFiles::default(),
        }
    }
}

/// Waits until it holds.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < SOON, "not yet: {what}");
        sleep(Duration::from_millis(2)).await;
    }
}

/// Whether it ends at once.
async fn is_over(end: impl Future<Output = ()>) -> bool {
    timeout(NEVER, end).await.is_ok()
}

async fn get(servers: &Servers) -> Result<Option<String>, StoreError> {
    servers.run("k", redis::cmd("GET").arg("k")).await
}

/// The kind and the text of an error.
fn unavailable<T: std::fmt::Debug>(result: Result<T, StoreError>) -> (&'static str, String) {
    match result {
        Err(StoreError::Unavailable { kind, text }) => (kind, text),
        other => panic!("{other:?}"),
    }
}
