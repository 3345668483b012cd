//! For tests: the store over a model of Redis in the process, on the paused clock.

use std::{sync::Arc, time::Duration};

use punctual_model::{Links, Server};
use tokio::time::Instant;

use super::{
    RedisStore, RouteSettings,
    connection::{Connection, Upstream},
};
use crate::store::{ClaimRequest, Suspects};

/// The clock of the model when a test begins: milliseconds since the epoch.
pub const EPOCH: u64 = 1_700_000_000_000;

/// Before all keys.
pub const PREFIX: &str = "p";

pub struct Simulated {
    pub server: Arc<Server>,
    pub links: Arc<Links>,
    pub store: Arc<RedisStore>,
}

impl Simulated {
    pub async fn start(routes: impl IntoIterator<Item = RouteSettings>) -> Self {
        let started = Instant::now();
        let passed = move || u64::try_from(started.elapsed().as_micros()).expect("a short time");
        let server = Server::new(move || EPOCH * 1000 + passed());
        let links = Links::new(&server, 1);
        let store = Arc::new(RedisStore::new(Arc::new(connection(&links)), PREFIX, routes));
        store.register().await.expect("the routes are registered");
        Self { server, links, store }
    }

    /// Another store, as that of another instance, with routes of its own.
    pub async fn serving(&self, routes: impl IntoIterator<Item = RouteSettings>) -> Arc<RedisStore> {
        let store = Arc::new(self.store.serving(routes));
        store.register().await.expect("the routes are registered");
        store
    }

    /// Another connection to the server.
    pub fn connection(&self) -> Connection {
        connection(&self.links)
    }

    /// A claim of all that is due, with a lease of a minute. `sequence`: of this claim in its partition.
    pub fn claim_of_all(sequence: u64) -> ClaimRequest {
        ClaimRequest {
            claimant: 1,
            sequence,
            again: false,
            backlog: true,
            suspects: Suspects::Few,
            max_suspects: 10,
            limit: 1000,
            max_bytes: 1 << 40,
            lease: Duration::from_mins(1),
        }
    }

    pub fn execute(&self, command: &[&str]) {
        let command: Vec<Vec<u8>> = command.iter().map(|word| word.as_bytes().to_vec()).collect();
        self.server.execute(&command);
    }

    /// Calls of scripts so far.
    pub fn calls(&self) -> u64 {
        self.server.counts().scripts
    }
}

fn connection(links: &Arc<Links>) -> Connection {
    Connection::to(Arc::new(Upstream::from(links.clone())), Duration::from_secs(1))
}
