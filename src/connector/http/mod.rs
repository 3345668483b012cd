//! An HTTP endpoint: one POST for each message.
//!
//! A bounded number of `workers` take messages from routes and paths in turn. Each sends over its own HTTP/1 connection
//! or over a shared HTTP/2 connection. `request` builds the request, `webhook` signs it, `delivery` sends it, `outcome`
//! classifies the result, `reply` reads the reply within bounds. `wire` and `frames`, below the parsers, note facts
//! that the parsers do not report. `reuse` decides whether connections are kept. The client follows no redirect, uses
//! no proxy of the environment, and keeps no cookies.

mod alarm;
mod body;
mod connection;
mod connector;
mod delivery;
mod errors;
mod frames;
#[cfg(test)]
mod fuzz;
mod http2;
mod outcome;
mod permits;
mod reply;
mod request;
mod reuse;
mod settings;
mod target;
mod webhook;
mod wire;
mod workers;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};

pub use self::settings::{HttpSettings, SigningSecret};
use self::{
    connector::Connector,
    delivery::{Batch, Job, Sender},
    request::RequestFactory,
    workers::Workers,
};
use crate::{
    sink::{Delivery, Domain, Report, Sink},
    time::wall_clock,
};

/// The wall clock, for the time of signatures and for dates in `Retry-After`.
pub type WallClock = fn() -> SystemTime;

pub struct HttpSink {
    sender: Arc<Sender>,
    workers: Arc<Workers>,
}

impl HttpSink {
    /// # Errors
    /// The setting that cannot be used. Nothing is connected yet.
    pub fn new(config: &HttpSettings) -> Result<Self, String> {
        Self::with_clock(config, wall_clock)
    }

    /// # Errors
    /// The setting that cannot be used. Nothing is connected yet.
    pub fn with_clock(config: &HttpSettings, clock: WallClock) -> Result<Self, String> {
        let max_connections = usize::try_from(config.max_connections.0).unwrap_or(usize::MAX);
        let requests = RequestFactory::new(config)?;
        let connector = Connector::new(requests.base(), &config.tls, max_connections, config.timeout.0)?;
        let sender = Arc::new(Sender { requests, connector, timeout: config.timeout.0, clock });
        Ok(Self { workers: Workers::new(Arc::clone(&sender)), sender })
    }
}

#[async_trait]
impl Sink for HttpSink {
    fn timeout(&self) -> Duration {
        self.sender.timeout
    }

    fn has_destinations(&self) -> bool {
        self.sender.requests.has_destinations()
    }

    fn domain(&self, delivery: &Delivery) -> Option<Domain> {
        self.sender.requests.domain_of(delivery)
    }

    async fn send(&self, batch: Vec<Delivery>, report: Report) {
        let deadline = Instant::now() + self.sender.timeout;
        let (unfinished, all_finished) = oneshot::channel();
        let shared = Arc::new(Batch { deadline, report, _unfinished: unfinished });
        let jobs = batch.into_iter().enumerate();
        self.workers.push(jobs.map(|(index, delivery)| Job { index, delivery, batch: Arc::clone(&shared) }));
        drop(shared);
        // Resolves, with an error, when the last job has dropped the sender.
        let _ = all_finished.await;
    }

    /// Connects, with TLS if the URL is https. Sends no request, because any method can have an effect.
    async fn check(&self) -> Result<(), String> {
        let Sender { connector, timeout: limit, .. } = &*self.sender;
        match timeout(*limit, connector.stream()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(format!("{}: {}", connector.address(), error.text())),
            Err(_) => Err(format!("{}: not connected within {limit:?}", connector.address())),
        }
    }

    fn give_back(&self, route: &Arc<str>) {
        self.workers.give_back(route);
    }

    fn stop(&self) {
        self.workers.stop();
    }
}

impl Drop for HttpSink {
    fn drop(&mut self) {
        self.workers.stop();
    }
}
