//! The callbacks that librdkafka makes while the consumer is polled.
//!
//! A rebalance is only recorded here. The poller applies it after the records that it has read are in Redis.

use std::{
    mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use rdkafka::{
    ClientContext, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol},
    error::{KafkaError, KafkaResult},
    types::RDKafkaRespErr,
};

use crate::connector::kafka::Reports;

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

pub struct ConsumerCallbacks {
    pub reports: Reports,
    /// A poll that ran callbacks may return no record although more is queued.
    events: AtomicU64,
    commit_failed: AtomicBool,
    closing: AtomicBool,
    /// Not applied yet, oldest first.
    rebalances: Mutex<Vec<Rebalance>>,
}

impl ConsumerCallbacks {
    /// `name`: brokers and topics, for the logs.
    pub fn new(name: String) -> Self {
        Self {
            reports: Reports::new(name),
            events: AtomicU64::new(0),
            commit_failed: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            rebalances: Mutex::default(),
        }
    }

    /// Number of callbacks so far.
    pub fn events(&self) -> u64 {
        self.events.load(Relaxed)
    }

    /// The oldest rebalance that was not applied.
    pub fn next_rebalance(&self) -> Option<Rebalance> {
        self.lock().first().cloned()
    }

    /// Removes the rebalance that `next_rebalance` returned.
    pub fn finish_rebalance(&self) {
        self.lock().remove(0);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Rebalance>> {
        self.rebalances.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a commit failed since the last call.
    pub fn take_commit_failed(&self) -> bool {
        self.commit_failed.swap(false, Relaxed)
    }

    /// Applies rebalances at once from now on: one that is not applied would block the close of the client.
    pub fn close(&self, client: &Client) {
        self.closing.store(true, Relaxed);
        for rebalance in mem::take(&mut *self.lock()) {
            // The client leaves the group anyway.
            let _ = rebalance.apply(client);
        }
    }

    fn count_event(&self) {
        self.events.fetch_add(1, Relaxed);
    }
}

impl ConsumerContext for ConsumerCallbacks {
    fn rebalance(&self, client: &BaseConsumer<Self>, event: RDKafkaRespErr, list: &mut TopicPartitionList) {
        self.count_event();
        let rebalance = match event {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => Rebalance::Assigned(list.clone()),
            _ => Rebalance::Revoked(list.clone()),
        };
        if self.closing.load(Relaxed) {
            // The client leaves the group anyway.
            let _ = rebalance.apply(client);
        } else {
            self.lock().push(rebalance);
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, _offsets: &TopicPartitionList) {
        self.count_event();
        if let Err(error) = result {
            tracing::debug!(%error, "offsets were not committed");
            self.commit_failed.store(true, Relaxed);
        }
    }
}

impl ClientContext for ConsumerCallbacks {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        self.count_event();
        self.reports.log(level, facility, text);
    }

    fn stats_raw(&self, statistics: &[u8]) {
        self.count_event();
        self.reports.statistics(statistics);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.count_event();
        self.reports.error(&error, reason);
    }
}
