//! The callbacks that librdkafka makes while the consumer is polled.
//!
//! A rebalance is only recorded here. The poller applies it after the records that it has read are in Redis.

use std::{
    mem,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use parking_lot::{Mutex, MutexGuard};
use rdkafka::{
    TopicPartitionList,
    consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol},
    error::KafkaResult,
    types::RDKafkaRespErr,
};

use crate::connector::kafka::Callbacks;

pub type Client = BaseConsumer<ConsumerCallbacks>;

/// A change of the assignment.
#[derive(Clone, Debug)]
pub enum Rebalance {
    Assigned(TopicPartitionList),
    Revoked(TopicPartitionList),
}

impl Rebalance {
    /// Completes the rebalance. The group waits for it.
    pub fn apply(&self, client: &Client) -> KafkaResult<()> {
        match (self, client.rebalance_protocol()) {
            (Self::Assigned(list), RebalanceProtocol::Cooperative) => client.incremental_assign(list),
            (Self::Revoked(list), RebalanceProtocol::Cooperative) => client.incremental_unassign(list),
            (Self::Assigned(list), _) => client.assign(list),
            (Self::Revoked(_), _) => client.unassign(),
        }
    }
}

pub type ConsumerCallbacks = Callbacks<ConsumerState>;

/// Data that a consumer's own callbacks leave for the poller.
#[derive(Default)]
pub struct ConsumerState {
    closing: AtomicBool,
    /// Not applied yet, oldest first.
    rebalances: Mutex<Vec<Rebalance>>,
}

impl ConsumerCallbacks {
    /// The oldest rebalance that was not applied.
    pub fn next_rebalance(&self) -> Option<Rebalance> {
        self.lock().first().cloned()
    }

    /// Removes the rebalance that `next_rebalance` returned.
    pub fn finish_rebalance(&self) {
        self.lock().remove(0);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Rebalance>> {
        self.state.rebalances.lock()
    }

    /// Applies rebalances at once from now on: an unapplied one would block the close of the client.
    pub fn close(&self, client: &Client) {
        self.state.closing.store(true, Relaxed);
        for rebalance in mem::take(&mut *self.lock()) {
            // The client leaves the group anyway.
            let _ = rebalance.apply(client);
        }
    }
}

impl ConsumerContext for ConsumerCallbacks {
    fn rebalance(&self, client: &BaseConsumer<Self>, event: RDKafkaRespErr, list: &mut TopicPartitionList) {
        self.count_call();
        let rebalance = match event {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => Rebalance::Assigned(list.clone()),
            _ => Rebalance::Revoked(list.clone()),
        };
        if self.state.closing.load(Relaxed) {
            // The client leaves the group anyway.
            let _ = rebalance.apply(client);
        } else {
            self.lock().push(rebalance);
        }
    }
}
