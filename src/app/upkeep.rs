//! The work beside the deliveries of a route: dead letters and old ends are evicted, dead letters forwarded, lost messages
//! restored, and messages moved to other partitions.

use std::sync::Arc;

use futures::future::OptionFuture;
use tokio::sync::watch;

use super::{
    forwarder::{Forwarder, Passes},
    historian,
    janitor::Janitor,
    mover, restorer,
};
use crate::{config::RouteConfig, incidents::Incidents, queue::Queue, store::WakeSignal, store::redis::RedisStore};

pub struct Upkeep {
    route: Arc<str>,
    partitions: u16,
    /// `None`: all dead letters are kept.
    janitor: Option<Janitor>,
    /// `None`: dead letters are not forwarded.
    forwarder: Option<Forwarder>,
}

impl Upkeep {
    pub fn new(route: &Arc<str>, config: &RouteConfig, passes: &Arc<Passes>) -> Self {
        let partitions = config.partitions;
        let forwarder = config.forward.clone();
        let forwarder = forwarder.map(|to| Forwarder {
            route: route.clone(),
            partitions,
            to,
            signal: Arc::default(),
            passes: passes.clone(),
        });
        Self { route: route.clone(), partitions, janitor: Janitor::new(route, config), forwarder }
    }

    /// Signals to notify when a message of the route becomes dead.
    pub fn signals(&self) -> Vec<Arc<WakeSignal>> {
        let of_janitor = self.janitor.as_ref().map(|janitor| janitor.signal().clone());
        of_janitor.into_iter().chain(self.forwarder.as_ref().map(|forwarder| forwarder.signal.clone())).collect()
    }

    /// Runs until `stop`. `store`: with the route.
    pub async fn run(&self, queue: &Queue, store: &RedisStore, incidents: &Incidents, stop: watch::Receiver<bool>) {
        let evicting = self.janitor.as_ref().map(|janitor| janitor.run(store, incidents, stop.clone()));
        let forwarding = self.forwarder.as_ref().map(|forwarder| forwarder.run(store, queue, stop.clone()));
        tokio::join!(
            OptionFuture::from(evicting),
            OptionFuture::from(forwarding),
            historian::run(&self.route, self.partitions, store, stop.clone()),
            restorer::run(&self.route, self.partitions, store, stop.clone()),
            mover::run(&self.route, store, incidents, stop),
        );
    }
}
