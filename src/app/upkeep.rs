//! The work beside deliveries: dead letters and old ends are evicted, lost messages restored, routes moved, and schedules set.

use std::sync::Arc;

use tokio::sync::watch;

use super::{
    forwarder::{self, Forwarder, Passes},
    historian,
    janitor::{self, Janitor},
    mover, restorer,
    schedules::{self, FileSchedules},
};
use crate::{incidents::Incidents, queue::Queue, store::redis::RedisStore};

pub struct Upkeep {
    /// For the routes that limit their dead letters.
    pub janitors: Vec<Janitor>,
    /// For the routes that forward them.
    pub forwarders: Vec<Forwarder>,
    pub passes: Arc<Passes>,
    /// Routes with their number of partitions.
    pub partitions: Vec<(Arc<str>, u16)>,
    pub file: FileSchedules,
}

impl Upkeep {
    /// Runs until `stop`.
    pub async fn run(
        self,
        queue: Arc<Queue>,
        store: Arc<RedisStore>,
        incidents: Incidents,
        stop: watch::Receiver<bool>,
    ) {
        let registered = queue.registered();
        tokio::join!(
            janitor::run(self.janitors, store.clone(), incidents.clone(), stop.clone()),
            forwarder::run(self.forwarders, store.clone(), queue.clone(), stop.clone()),
            historian::run(self.partitions.clone(), store.clone(), stop.clone()),
            restorer::run(self.partitions, store.clone(), stop.clone()),
            mover::run(store, incidents, stop.clone()),
            schedules::run(self.file, queue, registered, stop),
        );
    }
}
