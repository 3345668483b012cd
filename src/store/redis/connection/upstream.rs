//! What a connection leads to: one address, a server of a cluster, or the master that sentinels name.

use std::time::Duration;

use redis::{Client, aio::MultiplexedConnection};
use tokio::time::Instant;

use super::{ANSWER_TIMEOUT, link::open, mastership::Mastership, sentinel::Sentinels};
use crate::store::StoreError;

/// Shared by all connections to the same Redis.
pub struct Upstream {
    place: UpstreamPlace,
    pub(super) mastership: Mastership,
}

enum UpstreamPlace {
    Address(Client),
    /// A server of a cluster.
    Member(Client),
    Sentinels(Sentinels),
}

impl From<Client> for Upstream {
    fn from(client: Client) -> Self {
        Self { place: UpstreamPlace::Address(client), mastership: Mastership::default() }
    }
}

impl From<Sentinels> for Upstream {
    fn from(sentinels: Sentinels) -> Self {
        Self { place: UpstreamPlace::Sentinels(sentinels), mastership: Mastership::default() }
    }
}

impl Upstream {
    /// A server of a cluster.
    pub(super) fn of_member(client: Client) -> Self {
        Self { place: UpstreamPlace::Member(client), mastership: Mastership::default() }
    }

    /// A server of a cluster is no primary any more since `at`.
    pub(super) fn depose(&self, at: Instant) {
        self.mastership.moved(at);
    }

    /// The number of the database.
    pub fn database(&self) -> i64 {
        match &self.place {
            UpstreamPlace::Address(client) => client.get_connection_info().redis_settings().db(),
            UpstreamPlace::Member(_) | UpstreamPlace::Sentinels(_) => 0,
        }
    }

    /// `None` where there are none.
    pub fn sentinels(&self) -> Option<&Sentinels> {
        match &self.place {
            UpstreamPlace::Address(_) | UpstreamPlace::Member(_) => None,
            UpstreamPlace::Sentinels(sentinels) => Some(sentinels),
        }
    }

    /// Learns of other masters from sentinels while it is polled. Never returns.
    pub async fn follow(&self) {
        match &self.place {
            UpstreamPlace::Address(_) | UpstreamPlace::Member(_) => std::future::pending().await,
            UpstreamPlace::Sentinels(sentinels) => sentinels.follow(&self.mastership).await,
        }
    }

    /// A new link. The caller bounds the time; a part of it takes at most `longest`.
    ///
    /// # Errors
    /// `Unavailable`: nothing was sent.
    pub(super) async fn connect(&self, longest: Duration) -> Result<MultiplexedConnection, StoreError> {
        match &self.place {
            UpstreamPlace::Address(client) => open(client, longest).await,
            // Another server may have its slots by now.
            UpstreamPlace::Member(client) => open(client, longest.min(ANSWER_TIMEOUT)).await,
            UpstreamPlace::Sentinels(sentinels) => {
                sentinels.master(&self.mastership, longest).await.map(|(_, link)| link)
            }
        }
    }

    /// A client for what a new link would lead to.
    ///
    /// # Errors
    /// As for `connect`.
    pub async fn client(&self, longest: Duration) -> Result<Client, StoreError> {
        match &self.place {
            UpstreamPlace::Address(client) | UpstreamPlace::Member(client) => Ok(client.clone()),
            UpstreamPlace::Sentinels(sentinels) => {
                sentinels.master(&self.mastership, longest).await.map(|(client, _)| client)
            }
        }
    }

    /// Returns once another server is the master than the one to which a link was made at `made`.
    pub(super) async fn deposed(&self, made: Instant) {
        match &self.place {
            // One that was demoted answers so itself.
            UpstreamPlace::Address(_) => std::future::pending().await,
            UpstreamPlace::Member(_) | UpstreamPlace::Sentinels(_) => self.mastership.deposed(made).await,
        }
    }

    /// Returns once a link made at `made` is to be replaced.
    pub async fn outdated(&self, made: Instant) {
        self.mastership.outdated(made).await;
    }
}
