//! The store of waiting messages. `redis` keeps them in Redis; `memory` keeps them in plain maps, for tests.

mod answer;
mod attempt;
mod claim;
mod edit;
mod flow;
/// The in-memory store, with which tests compare the Redis store.
#[cfg(any(test, feature = "testing"))]
pub mod memory;
pub mod redis;
mod schedule;
mod selection;
mod settlement;
mod wake;

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::message::{MessageId, OccurrenceMessage};

pub use self::{
    answer::{Cancelled, Found, NewDue, Pause, Rescheduled, ScheduleStatus, Scheduled, Snapshot},
    attempt::{FailedAttempt, MAX_ATTEMPT_ERROR_BYTES, PastAttempt},
    claim::{Claim, ClaimRequest, Claimed, CutLeases, Death, Deaths, Lease, Recovered, Suspects, Token},
    edit::{Changes, Edit, Edited, NewKey, revision},
    flow::{FieldChange, FlowChange, FlowRules, FlowState, PARKED, RouteFlow},
    schedule::{NextOccurrence, RunResult, ScheduleChange, ScheduleDefinition, ScheduleOwner, ScheduleState},
    selection::{
        BulkProgress, DeadAction, DeadGroup, DeadWork, Expiry, Filter, Order, PageRequest, PendingAction, PendingWork,
        Selection, Spread,
    },
    settlement::{ClaimEnd, NEVER, Planned, Sent, Settled, Settlement, Transfer, Transferred},
    wake::{WakeReason, WakeSignal},
};

/// One partition of a route's queue: its index (from 0) and the route's number of partitions. Each number of partitions
/// has its own keys, so that messages can be moved from one number to another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition {
    pub route: Arc<str>,
    pub index: u16,
    pub count: u16,
}

impl Partition {
    /// All partitions of a route with `count` partitions.
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

/// Why a call of the store failed.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum StoreError {
    /// Redis cannot be reached, or cannot run the call now. Whether the call was carried out is unknown. `kind` is the
    /// label of `punctual_redis_errors_total`.
    #[error("redis {kind}: {text}")]
    Unavailable { kind: &'static str, text: String },
    /// One of the route's keys holds a value of another type: an operator must act.
    #[error("redis wrong_type: {text}")]
    WrongType { text: String },
    /// A script refused the request; nothing was written.
    #[error("refused: {slug}: {text}")]
    Refused { slug: String, text: String },
}

/// `kind` of a call that the user is not allowed to make.
const DENIED: &str = "noperm";

impl StoreError {
    /// Whether the user lacks a right. A script that is denied a command changes nothing.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Unavailable { kind: DENIED, .. })
    }

    /// Whether the user lacks the right to a key, as far as the text shows it: that to a command is denied otherwise.
    pub fn is_denied_key(&self) -> bool {
        matches!(self, Self::Unavailable { kind: DENIED, text } if text.contains("access"))
    }
}

/// Every method answers within the store's own timeout, and is safe to repeat.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    async fn claim(&self, partition: &Partition, request: ClaimRequest) -> Result<Claim, StoreError>;
    /// Moves messages with an expired lease back to pending, due since the lease expired, or to dead after the last
    /// crash (`DeadReason::Crash`).
    async fn recover(&self, partition: &Partition) -> Result<Recovered, StoreError>;
    /// Finds leases that end later than `longest` from now. No claim made now gives such a lease: the store's clock has
    /// stepped back. Leases that also end later than `from`, in microseconds, expire now.
    async fn cut_leases(
        &self,
        partition: &Partition,
        longest: Duration,
        from: Option<u64>,
    ) -> Result<CutLeases, StoreError>;

    /// One result per settlement, in order; at most 1000 settlements a call. A settlement, also a stale one, proves
    /// that the process of the claim is alive: it resets the crash count of its message.
    async fn settle(&self, partition: &Partition, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError>;
    /// Settles in a call that is not bundled with others: for many settlements, or when the route cannot continue
    /// without the permits that they free.
    async fn settle_alone(
        &self,
        partition: &Partition,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>, StoreError> {
        self.settle(partition, settlements).await
    }
    /// Stores an occurrence that died as a dead letter of its own, unless it is stored already. `partition`: any partition of
    /// its route. Returns false, and stores nothing, if another message has its id.
    async fn bury_occurrence(
        &self,
        partition: &Partition,
        occurrence: &OccurrenceMessage,
        death: Death,
        error: &str,
    ) -> Result<bool, StoreError>;
    /// Pushes to any lists; an error of one list does not affect the others. The caller bounds the bytes of all values.
    async fn transfer(&self, partition: &Partition, transfers: &[Transfer]) -> Result<Vec<Transferred>, StoreError>;
    /// Makes every instance poll now, because messages are overdue and this instance has no capacity.
    async fn wake_all(&self, partition: &Partition) -> Result<(), StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_right_to_a_key_is_told_from_one_to_a_command() {
        let error = |kind, text: &str| StoreError::Unavailable { kind, text: text.to_owned() };
        let key = error(DENIED, "no permissions to access one of the keys");
        let command = error(DENIED, "no permissions to run the 'zadd' command");
        let other = error("io", "no access");
        let facts = |error: &StoreError| [error.is_denied(), error.is_denied_key()];
        assert_eq!([&key, &command, &other].map(facts), [[true, true], [true, false], [false, false]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_bundles_no_calls_settles_alone_as_it_settles() {
        let store = memory::MemoryStore::new(memory::PartitionSettings::default());
        let partition = Partition { route: "r".into(), index: 0, count: 1 };
        let lease = Lease { id: MessageId::parse("a").unwrap(), token: Token(1), bytes: 0 };
        store.update(&partition, |rows, _| rows.unack.insert("a", 1));
        let settlements = [Settlement::new(lease, ClaimEnd::Ack)];
        for settled in [Settled::Done, Settled::Stale] {
            assert_eq!(store.settle_alone(&partition, &settlements).await, Ok(vec![settled]));
        }
    }

    #[test]
    fn deaths_have_a_number_and_the_first_id() {
        let deaths = Deaths::of(["a", "b", "c"]);
        assert_eq!((deaths.count, deaths.sample.unwrap().as_str()), (3, "a"));
        assert_eq!(Deaths::of([]), Deaths::default());
        let statuses = [
            (ScheduleStatus::Scheduled, "scheduled"),
            (ScheduleStatus::Exists(crate::message::State::Dead), "exists"),
            (ScheduleStatus::Replaced, "replaced"),
            (ScheduleStatus::Revived, "replaced"),
            (ScheduleStatus::InFlight, "in_flight"),
            (ScheduleStatus::Known, "known"),
        ];
        for (status, text) in statuses {
            assert_eq!(status.as_str(), text);
        }
    }
}
