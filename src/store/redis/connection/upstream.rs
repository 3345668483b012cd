//! The upstream of a connection: one address, a server of a cluster, or the master that sentinels name.

use std::time::Duration;

use redis::{
    Client,
    aio::{MultiplexedConnection, PubSub},
};
use tokio::time::{Instant, timeout};

#[cfg(test)]
use super::link::simulated;
use super::{
    ANSWER_TIMEOUT,
    link::{hint, open},
    mastership::Mastership,
    sentinel::Sentinels,
};
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
    /// The server of a simulation.
    #[cfg(test)]
    Simulated(std::sync::Arc<punctual_model::Links>),
}

#[cfg(test)]
impl From<std::sync::Arc<punctual_model::Links>> for Upstream {
    fn from(links: std::sync::Arc<punctual_model::Links>) -> Self {
        Self { place: UpstreamPlace::Simulated(links), mastership: Mastership::default() }
    }
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

    /// The server of a cluster has not been a primary since `at`.
    pub(super) fn depose(&self, at: Instant) {
        self.mastership.moved(at);
    }

    /// The number of the database.
    pub fn database(&self) -> i64 {
        match &self.place {
            UpstreamPlace::Address(client) => client.get_connection_info().redis_settings().db(),
            UpstreamPlace::Member(_) | UpstreamPlace::Sentinels(_) => 0,
            #[cfg(test)]
            UpstreamPlace::Simulated(_) => 0,
        }
    }

    /// The sentinels; `None` if the upstream has none.
    pub fn sentinels(&self) -> Option<&Sentinels> {
        match &self.place {
            UpstreamPlace::Address(_) | UpstreamPlace::Member(_) => None,
            #[cfg(test)]
            UpstreamPlace::Simulated(_) => None,
            UpstreamPlace::Sentinels(sentinels) => Some(sentinels),
        }
    }

    /// Follows changes of the master that sentinels report, while polled. Never returns.
    pub async fn follow(&self) {
        match &self.place {
            UpstreamPlace::Address(_) | UpstreamPlace::Member(_) => std::future::pending().await,
            #[cfg(test)]
            UpstreamPlace::Simulated(_) => std::future::pending().await,
            UpstreamPlace::Sentinels(sentinels) => sentinels.follow(&self.mastership).await,
        }
    }

    /// Opens a new link. The caller bounds the total time; a link to one server takes at most `longest`.
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
            #[cfg(test)]
            UpstreamPlace::Simulated(links) => simulated::open(links).await,
        }
    }

    /// Why a link may not have been made in time.
    pub(super) fn hint(&self) -> &'static str {
        match &self.place {
            UpstreamPlace::Address(client) | UpstreamPlace::Member(client) => hint(client),
            UpstreamPlace::Sentinels(_) => "",
            #[cfg(test)]
            UpstreamPlace::Simulated(_) => "",
        }
    }

    /// A client for the server that a new link would lead to.
    ///
    /// # Errors
    /// Those of `connect`.
    pub async fn client(&self, longest: Duration) -> Result<Client, StoreError> {
        match &self.place {
            UpstreamPlace::Address(client) | UpstreamPlace::Member(client) => Ok(client.clone()),
            UpstreamPlace::Sentinels(sentinels) => {
                sentinels.master(&self.mastership, longest).await.map(|(client, _)| client)
            }
            #[cfg(test)]
            UpstreamPlace::Simulated(_) => unreachable!("it has links only"),
        }
    }

    /// Opens a subscription. Finding the server and connecting take `longest` each at most. Also returns when connecting
    /// began: a change of the master that is detected while connecting concerns the subscription.
    ///
    /// # Errors
    /// The text of the failure.
    pub async fn subscribe(&self, longest: Duration) -> Result<(Instant, PubSub), String> {
        #[cfg(test)]
        if let UpstreamPlace::Simulated(links) = &self.place {
            let subscription = simulated::subscribe(links).await.map_err(|error| error.to_string())?;
            return Ok((Instant::now(), subscription));
        }
        let client = self.client(longest).await.map_err(|error| error.to_string())?;
        let begun = Instant::now();
        match timeout(longest, client.get_async_pubsub()).await {
            Ok(Ok(subscription)) => Ok((begun, subscription)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer in {longest:?}")),
        }
    }

    /// Returns once the server of a link made at `made` is deposed.
    pub(super) async fn deposed(&self, made: Instant) {
        match &self.place {
            // A demoted server reports that itself.
            UpstreamPlace::Address(_) => std::future::pending().await,
            #[cfg(test)]
            UpstreamPlace::Simulated(_) => std::future::pending().await,
            UpstreamPlace::Member(_) | UpstreamPlace::Sentinels(_) => self.mastership.deposed(made).await,
        }
    }

    /// Returns once a link made at `made` is to be replaced.
    pub async fn outdated(&self, made: Instant) {
        self.mastership.outdated(made).await;
    }
}
