//! The in-memory store: the transitions of the Lua scripts on plain maps, with tokio's clock. It is for tests, also for
//! those of programs that embed punctual. `tests/it/store` compares it with Redis after each of a series of random
//! operations.

mod claim;
mod dead;
mod definition;
mod ends;
mod flow;
mod flow_checks;
mod flow_keys;
mod history;
mod partition;
mod recurring;
mod schedule;
mod settle;
mod sorted_set;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

pub use self::{
    definition::MemorySchedule,
    flow_keys::{MemoryFlows, SHUT},
    history::{BLOCK, MemoryHistory},
    partition::{MemoryPartition, PartitionSettings},
    settle::MemoryLists,
    sorted_set::SortedSet,
};
use super::{
    Claim, ClaimRequest, CutLeases, Death, Partition, Recovered, Settled, Settlement, Store, StoreError, Transfer,
    Transferred, WakeSignal,
};
use crate::{message::OccurrenceMessage, time::ServerClock};

/// Start of the clock, in microseconds since the epoch: November 2023.
const EPOCH: u64 = 1_700_000_000_000_000;

/// A partition is created by its first use. No call fails or is delayed.
#[derive(Debug)]
pub struct MemoryStore {
    started: Instant,
    /// Microseconds by which the clock was stepped back.
    behind: AtomicU64,
    settings: PartitionSettings,
    content: Mutex<Content>,
}

#[derive(Debug, Default)]
struct Content {
    partitions: BTreeMap<Partition, MemoryPartition>,
    lists: MemoryLists,
    subscriptions: Vec<(Partition, Arc<WakeSignal>)>,
    wake_ups_lost: bool,
}

impl MemoryStore {
    /// An empty store; `settings` apply to every partition.
    pub fn new(settings: PartitionSettings) -> Self {
        Self { started: Instant::now(), behind: AtomicU64::new(0), settings, content: Mutex::default() }
    }

    /// Microseconds since the epoch on the store's clock.
    pub fn now(&self) -> u64 {
        let elapsed = u64::try_from(self.started.elapsed().as_micros()).expect("less than 500,000 years");
        EPOCH + elapsed - self.behind.load(Ordering::Relaxed)
    }

    /// Steps the store's clock back, at most to 1970.
    pub fn step_back(&self, by: Duration) {
        self.behind.fetch_add(u64::try_from(by.as_micros()).expect("less than 500,000 years"), Ordering::Relaxed);
    }

    /// The signal of a scheduler that listens to `partition`.
    pub fn subscribe(&self, partition: &Partition) -> Arc<WakeSignal> {
        let signal = Arc::new(WakeSignal::default());
        signal.set_listening(true);
        self.content().subscriptions.push((partition.clone(), Arc::clone(&signal)));
        signal
    }

    /// Sets whether wake-ups are lost from now on, as those of Redis can be.
    pub fn lose_wake_ups(&self, wake_ups_lost: bool) {
        self.content().wake_ups_lost = wake_ups_lost;
    }

    /// A copy of the partition's content.
    pub fn partition(&self, partition: &Partition) -> MemoryPartition {
        self.content().partitions.get(partition).cloned().unwrap_or_default()
    }

    pub fn partitions(&self) -> BTreeMap<Partition, MemoryPartition> {
        self.content().partitions.clone()
    }

    /// Runs one transition, and passes it the time in microseconds. Wakes the partition's schedulers if the head became
    /// earlier or the route was resumed.
    pub fn update<T>(&self, partition: &Partition, change: impl FnOnce(&mut MemoryPartition, u64) -> T) -> T {
        let now = self.now();
        let mut content = self.content();
        let content = &mut *content;
        let rows = content.partitions.entry(partition.clone()).or_default();
        let (before, paused) = (rows.next_look(), rows.paused);
        let reply = change(rows, now);
        let earlier = rows.next_look().is_some_and(|now| before.is_none_or(|before| now < before));
        if earlier || (paused && !rows.paused) {
            content.notify(partition, WakeSignal::notify);
        }
        reply
    }

    /// Reads or changes the lists.
    pub fn lists<T>(&self, change: impl FnOnce(&mut MemoryLists) -> T) -> T {
        change(&mut self.content().lists)
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock()
    }
}

impl Content {
    fn notify(&self, partition: &Partition, notify: impl Fn(&WakeSignal)) {
        if self.wake_ups_lost {
            return;
        }
        self.subscriptions.iter().filter(|(of, _)| of == partition).for_each(|(_, signal)| notify(signal));
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn claim(&self, partition: &Partition, request: ClaimRequest) -> Result<Claim, StoreError> {
        let taken = Instant::now();
        Ok(self.update(partition, |rows, micros| rows.claim(&request, ServerClock { micros, taken }, self.settings)))
    }

    async fn recover(&self, partition: &Partition) -> Result<Recovered, StoreError> {
        Ok(self.update(partition, |rows, now| rows.recover(now, self.settings)))
    }

    async fn cut_leases(
        &self,
        partition: &Partition,
        longest: Duration,
        from: Option<u64>,
    ) -> Result<CutLeases, StoreError> {
        Ok(self.update(partition, |rows, now| rows.cut_leases(longest, from, now)))
    }

    async fn settle(&self, partition: &Partition, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        Ok(self.update(partition, |rows, now| rows.settle(settlements, now, self.settings)))
    }

    async fn bury_occurrence(
        &self,
        partition: &Partition,
        occurrence: &OccurrenceMessage,
        death: Death,
        error: &str,
    ) -> Result<bool, StoreError> {
        let partition = partition.among(partition.count, &occurrence.id);
        let buried = [(occurrence.clone().into(), error.to_owned())];
        Ok(self.update(&partition, |rows, now| {
            rows.bury(death, &buried, now, self.settings).contains(&true) || rows.has(occurrence)
        }))
    }

    async fn transfer(&self, partition: &Partition, transfers: &[Transfer]) -> Result<Vec<Transferred>, StoreError> {
        let now = self.now();
        let content = &mut *self.content();
        let rows = content.partitions.entry(partition.clone()).or_default();
        Ok(rows.transfer(transfers, &mut content.lists, now, self.settings))
    }

    async fn wake_all(&self, partition: &Partition) -> Result<(), StoreError> {
        self.content().notify(partition, WakeSignal::notify_overdue);
        Ok(())
    }
}
