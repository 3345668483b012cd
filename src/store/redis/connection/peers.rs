//! For tests: servers of the model, each behind a port of its own, alone or as a cluster. The clock is the real one.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use punctual_model::{LinkFaults, Links, Reply, Server};
use tokio::{
    io::copy_bidirectional,
    net::TcpListener,
    task::AbortHandle,
    time::{Instant, sleep},
};

use super::{Cluster, RedisEndpoint, ServerAddress};
use crate::tls::TlsFiles;

/// For an event that must come, on a busy machine.
pub const SOON: Duration = Duration::from_secs(10);

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

    /// How many commands came, also those that are not executed yet.
    pub fn received(&self) -> u64 {
        self.links.received()
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

/// The primaries that one of them names, each with the same number of slots.
pub type Named = Arc<Mutex<Vec<ServerAddress>>>;

/// The answer to the question for the map.
pub fn map(named: &Named, command: &str) -> Option<Reply> {
    let named = named.lock();
    let count = i64::try_from(named.len()).unwrap().max(1);
    let share = 16384 / count;
    let range = |(place, primary): (i64, &ServerAddress)| {
        let last = if place + 1 == count { 16383 } else { (place + 1) * share - 1 };
        let server = Reply::Array(vec![Reply::bulk(&*primary.host), Reply::Int(primary.port.into())]);
        Reply::Array(vec![Reply::Int(place * share), Reply::Int(last), server])
    };
    (command == QUESTION).then(|| Reply::Array((0..).zip(&*named).map(range).collect()))
}

/// Servers of a cluster.
pub struct Members {
    pub peers: Vec<Peer>,
    /// The primaries that each of them names.
    pub named: Vec<Named>,
}

/// The question for the map.
pub const QUESTION: &str = "CLUSTER SLOTS";

impl Members {
    /// All name the first one.
    pub async fn start<const N: usize>() -> Self {
        let (mut peers, mut named) = (Vec::new(), Vec::new());
        for _ in 0..N {
            let of_one = Named::default();
            let answer = of_one.clone();
            peers.push(Peer::start(move |command| map(&answer, command)).await);
            named.push(of_one);
        }
        let members = Self { peers, named };
        members.name(0);
        members
    }

    /// All servers name this one for all slots.
    pub fn name(&self, place: usize) {
        self.name_each(std::slice::from_ref(self.address(place)));
    }

    /// All servers name each of them for its share.
    pub fn spread(&self) {
        let all: Vec<_> = self.peers.iter().map(|peer| peer.address.clone()).collect();
        self.name_each(&all);
    }

    fn name_each(&self, primaries: &[ServerAddress]) {
        for of_one in &self.named {
            primaries.clone_into(&mut of_one.lock());
        }
    }

    pub fn cluster(&self) -> Arc<Cluster> {
        let endpoints: Vec<_> = self.peers.iter().map(Peer::endpoint).collect();
        Arc::new(Cluster::new(&endpoints).unwrap())
    }

    /// How often each was asked for the map.
    pub fn asked(&self) -> Vec<usize> {
        self.peers.iter().map(|peer| peer.count(QUESTION)).collect()
    }

    pub fn address(&self, place: usize) -> &ServerAddress {
        &self.peers[place].address
    }
}
