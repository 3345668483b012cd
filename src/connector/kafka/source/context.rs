//! What librdkafka calls back while the consumer is polled.
//!
//! A change of the assignment is only noted here: the poller answers it once what it has read is in Redis.

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

pub type Client = BaseConsumer<Context>;

#[derive(Clone, Debug)]
pub enum Change {
    Assigned(TopicPartitionList),
    Revoked(TopicPartitionList),
}

impl Change {
    /// The group goes on only after it.
    pub fn answer(&self, client: &Client) -> KafkaResult<()> {
        match (self, client.rebalance_protocol()) {
            (Self::Assigned(list), RebalanceProtocol::Cooperative) => client.incremental_assign(list),
            (Self::Revoked(list), RebalanceProtocol::Cooperative) => client.incremental_unassign(list),
            (Self::Assigned(list), _) => client.assign(list),
            (Self::Revoked(_), _) => client.unassign(),
        }
    }
}

pub struct Context {
    pub reports: Reports,
    /// Events that were served: a poll that returns nothing after one may have left others.
    served: AtomicU64,
    commit_failed: AtomicBool,
    closing: AtomicBool,
    changes: Mutex<Vec<Change>>,
}

impl Context {
    pub fn new(name: String) -> Self {
        Self {
            reports: Reports::new(name),
            served: AtomicU64::new(0),
            commit_failed: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            changes: Mutex::default(),
        }
    }

    pub fn served(&self) -> u64 {
        self.served.load(Relaxed)
    }

    /// The first one that was not answered.
    pub fn change(&self) -> Option<Change> {
        self.lock().first().cloned()
    }

    /// `change` was.
    pub fn answered(&self) {
        self.lock().remove(0);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Change>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since it was asked for the last time.
    pub fn commit_failed(&self) -> bool {
        self.commit_failed.swap(false, Relaxed)
    }

    /// From now on nobody has anything to finish. A change without an answer would keep the client from closing.
    pub fn close(&self, client: &Client) {
        self.closing.store(true, Relaxed);
        for change in mem::take(&mut *self.lock()) {
            // It leaves either way.
            let _ = change.answer(client);
        }
    }

    fn serve(&self) {
        self.served.fetch_add(1, Relaxed);
    }
}

impl ConsumerContext for Context {
    fn rebalance(&self, client: &BaseConsumer<Self>, event: RDKafkaRespErr, list: &mut TopicPartitionList) {
        self.serve();
        let change = match event {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => Change::Assigned(list.clone()),
            _ => Change::Revoked(list.clone()),
        };
        if self.closing.load(Relaxed) {
            // It leaves either way.
            let _ = change.answer(client);
        } else {
            self.lock().push(change);
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, _offsets: &TopicPartitionList) {
        self.serve();
        if let Err(error) = result {
            tracing::debug!(%error, "offsets were not committed");
            self.commit_failed.store(true, Relaxed);
        }
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        self.serve();
        self.reports.log(level, facility, text);
    }

    fn stats_raw(&self, statistics: &[u8]) {
        self.serve();
        self.reports.statistics(statistics);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.serve();
        self.reports.error(&error, reason);
    }
}
