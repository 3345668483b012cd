use std::{sync::Arc, time::Duration};

use redis::Client;

use super::{Cluster, Connection, Sentinels, Servers, Upstream};

/// The servers of the queue's Redis. Cheap to clone.
#[derive(Clone)]
pub enum Topology {
    /// One server: that of an address, or the master that sentinels name.
    Single(Arc<Upstream>),
    Cluster(Arc<Cluster>),
}

impl From<Client> for Topology {
    fn from(client: Client) -> Self {
        Self::Single(Arc::new(client.into()))
    }
}

impl Topology {
    /// `None` without sentinels.
    pub fn sentinels(&self) -> Option<&Sentinels> {
        match self {
            Self::Single(upstream) => upstream.sentinels(),
            Self::Cluster(_) => None,
        }
    }

    /// Follows changes of the master or the cluster while it is polled. Never returns.
    pub async fn follow(&self) {
        match self {
            Self::Single(upstream) => upstream.follow().await,
            Self::Cluster(cluster) => cluster.follow().await,
        }
    }

    /// New connections, which connect at their first command. `timeout` of one command, connecting included.
    pub fn servers(&self, timeout: Duration) -> Servers {
        match self {
            Self::Single(upstream) => Arc::new(Connection::to(upstream.clone(), timeout)).into(),
            Self::Cluster(cluster) => Servers::of_cluster(cluster.clone(), timeout),
        }
    }
}
