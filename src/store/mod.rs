//! Where messages wait. `redis` keeps them in Redis, `memory` in plain maps, for tests.

mod answer;
mod claim;
/// The queue in memory, which tests compare Redis with.
#[cfg(any(test, feature = "testing"))]
pub mod memory;
pub mod redis;
mod selection;
mod settlement;
mod wake;

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::message::MessageId;

pub use self::{
    answer::{Cancelled, Found, Pause, Rescheduled, ScheduleStatus, Scheduled, Snapshot},
    claim::{Claim, ClaimRequest, Claimed, CutLeases, Deaths, Lease, Recovered, Suspects, Token},
    selection::{DeadAction, DeadGroup, DeadProgress, DeadWork, Expiry, Filter, Selection},
    settlement::{ClaimEnd, Settled, Settlement, Transfer, Transferred},
    wake::{WakeReason, WakeSignal},
};

/// One partition of a route's queue, by its index (from 0) and the number of partitions. Each number of partitions has keys of
/// its own, so that messages can be moved from one number to another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition {
    pub route: Arc<str>,
    pub index: u16,
    pub count: u16,
}

impl Partition {
    /// All partitions of a route that has `count`.
    pub fn all(route: &Arc<str>, count: u16) -> impl Iterator<Item = Self> + use<> {
        let route = route.clone();
        (0..count).map(move |index| Self { route: route.clone(), index, count })
    }

    /// The partition that the id belongs to when the same route has `count` partitions.
    #[must_use]
    pub fn among(&self, count: u16, id: &MessageId) -> Self {
        Self { route: self.route.clone(), index: id.partition(count), count }
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}/{}", self.route, self.index, self.count)
    }
}

/// Why the store did not do it.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum StoreError {
    /// Redis cannot be reached, or cannot do it now; whether it did is unknown. `kind` is the label of
    /// `punctual_redis_errors_total`.
    #[error("redis {kind}: {text}")]
    Unavailable { kind: &'static str, text: String },
    /// A value of another type at one of the route's keys: an operator must act.
    #[error("redis wrong_type: {text}")]
    WrongType { text: String },
    /// A script refused the request; nothing was written.
    #[error("refused: {slug}: {text}")]
    Refused { slug: String, text: String },
}

/// Every method answers within the store's own timeout, and is safe to repeat.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    async fn claim(&self, partition: &Partition, request: ClaimRequest) -> Result<Claim, StoreError>;
    /// Moves expired leases back to pending, due now, or to dead after the last crash (`DeadReason::Crash`).
    async fn recover(&self, partition: &Partition) -> Result<Recovered, StoreError>;
    /// Looks for leases that end later than `longest` from now, which no claim of now could have given: the store's clock
    /// stepped back. Those that also end later than `from`, in microseconds, expire now.
    async fn cut_leases(
        &self,
        partition: &Partition,
        longest: Duration,
        from: Option<u64>,
    ) -> Result<CutLeases, StoreError>;

    /// One result per lease, in order; at most 1000 a call. A settlement, also a stale one, proves that the process
    /// of the claim is alive: it resets the crash count of its message.
    async fn settle(&self, partition: &Partition, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError>;
    /// The same, in a call of its own: for many settlements, or where their route stands still without the permits.
    async fn settle_alone(
        &self,
        partition: &Partition,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>, StoreError> {
        self.settle(partition, settlements).await
    }
    /// Pushes to any lists; an error of one list does not affect the others. The caller bounds the bytes of all values.
    async fn transfer(&self, partition: &Partition, transfers: &[Transfer]) -> Result<Vec<Transferred>, StoreError>;
    /// Makes every instance poll now: messages are overdue and this one has no capacity.
    async fn wake_all(&self, partition: &Partition) -> Result<(), StoreError>;
}
