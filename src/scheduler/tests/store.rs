//! The in-memory store with errors, latency and counters between it and the scheduler.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::{Instant, sleep, sleep_until};

use super::sink::StoreClock;
use crate::{
    message::{DeadReason, MessageId, Metadata, OccurrenceMessage, StoredMessage, codec},
    store::{
        Claim, ClaimRequest, CutLeases, Death, NextOccurrence, Partition, Recovered, ScheduleDefinition, Settled,
        Settlement, Store, StoreError, Transfer, Transferred, WakeSignal,
        memory::{MemoryPartition, MemoryStore, PartitionSettings},
    },
    time::UnixMillis,
};

/// Maximum messages of one call.
const MAX_CALL: usize = 1000;

/// Number of calls at one instant of the paused clock that can only be a busy loop.
const BUSY_LOOP: u32 = 2_000;

/// Time between two small calls of a kind and partition. The Redis store makes them wait, to bundle them.
const SMALL_INTERVAL: Duration = Duration::from_millis(2);

/// Maximum messages of a small call.
const SMALL: usize = 255;

/// The kinds of calls, as in `Faults::only` and `TestStore::calls`.
const KINDS: [&str; 6] = ["claim", "cut", "recover", "settle", "transfer", "wake"];

pub struct TestStore {
    memory: MemoryStore,
    observed: Mutex<Observed>,
    rng: Mutex<StdRng>,
}

#[derive(Default)]
struct Observed {
    faults: Faults,
    calls: BTreeMap<&'static str, u32>,
    /// Time of the last call, and calls at that time.
    instant: Option<(Instant, u32)>,
    /// When the next small call may start.
    turns: BTreeMap<(&'static str, Partition), Instant>,
    /// Every lease that a claim returned.
    leases: BTreeSet<(Partition, MessageId, u64)>,
    most_unacked: BTreeMap<Partition, usize>,
    /// In the latest claim.
    max_suspects: usize,
}

/// Injected faults.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent faults")]
pub struct Faults {
    /// Share of the calls that fail before they change anything.
    pub before: f64,
    /// Share of the calls that lose their reply.
    pub after: f64,
    /// If set, the only kind of calls that `before`, `after` and `wrong_type` affect.
    pub only: Option<&'static str>,
    /// Maximum latency of a request, and of its reply.
    pub latency: Duration,
    /// Additional latency of the reply to a claim.
    pub claim_reply: Duration,
    /// The indexes of partitions at which every claim loses its reply.
    pub unanswered: &'static [u16],
    pub down: bool,
    pub wrong_type: bool,
    /// Calls with a settlement of this kind are refused.
    pub refused_end: Option<&'static str>,
    /// A list that refuses every value.
    pub refusing_list: Option<&'static str>,
    /// A list to which the user has no right: a transfer to it changes nothing, also for other lists.
    pub denied_list: Option<&'static str>,
    /// The user has no right to push.
    pub denied_push: bool,
    pub wake_ups_lost: bool,
}

impl TestStore {
    pub fn new(seed: u64) -> Arc<Self> {
        Self::with(seed, PartitionSettings::default())
    }

    pub fn with(seed: u64, settings: PartitionSettings) -> Arc<Self> {
        let rng = Mutex::new(StdRng::seed_from_u64(seed));
        Arc::new(Self { memory: MemoryStore::new(settings), observed: Mutex::default(), rng })
    }

    /// The seed of the next instance.
    pub fn next_seed(&self) -> u64 {
        self.rng.lock().unwrap().random()
    }

    /// Microseconds on the store's clock.
    pub fn now(&self) -> u64 {
        self.memory.now()
    }

    pub fn subscribe(&self, partition: &Partition) -> Arc<WakeSignal> {
        self.memory.subscribe(partition)
    }

    pub fn set_faults(&self, faults: Faults) {
        assert!(faults.only.is_none_or(|only| KINDS.contains(&only)), "{faults:?}");
        self.observed.lock().unwrap().faults = faults;
        self.memory.lose_wake_ups(faults.wake_ups_lost);
        self.memory.lists(|lists| lists.strings = faults.refusing_list.map(str::to_owned).into_iter().collect());
    }

    pub fn schedule(&self, partition: &Partition, id: &str, delay: Duration, metadata: Metadata) {
        let accepted = self.now() / 1000;
        let due = accepted + u64::try_from(delay.as_millis()).unwrap();
        let millis = |at| UnixMillis::new(at).unwrap();
        let (due_at, accepted) = (millis(due), millis(accepted));
        let body =
            codec::encode(&StoredMessage { due: due_at, accepted, metadata, payload: Bytes::from(id.to_owned()) });
        self.schedule_body(partition, id, due, body);
    }

    pub fn schedule_body(&self, partition: &Partition, id: &str, due: u64, body: Bytes) {
        self.memory.update(partition, |rows, _| {
            rows.bytes += body.len() as u64;
            rows.bodies.insert(id.to_owned(), body);
            rows.pending.insert(id, due);
        });
    }

    pub fn set_schedule(&self, partition: &Partition, definition: &ScheduleDefinition, next: NextOccurrence) {
        self.memory.update(partition, |rows, now| {
            rows.set_schedule(definition, None, next, now, PartitionSettings::default())
        });
    }

    /// Makes the definition of a schedule and its message unreadable.
    pub fn damage_schedule(&self, partition: &Partition, id: &str) {
        self.memory.update(partition, |rows, _| {
            let bad = Bytes::from_static(b"\xff");
            let body = rows.bodies.get_mut(id).expect("a body");
            rows.bytes -= body.len() as u64;
            *body = [&body[..17], &bad].concat().into();
            rows.bytes += body.len() as u64;
            rows.schedules.get_mut(id).expect("a definition").tail = bad;
        });
    }

    pub fn pause(&self, partition: &Partition, paused: bool) {
        self.memory.update(partition, |rows, _| rows.paused = paused);
    }

    /// Deletes all dead letters.
    pub fn forget_dead(&self, partition: &Partition) {
        self.memory.update(partition, |rows, _| {
            let dead: Vec<_> = rows.dead.iter().map(|(id, _)| id.to_owned()).collect();
            for id in dead {
                rows.dead.remove(&id);
                rows.bodies.remove(&id);
                rows.errors.remove(&id);
            }
        });
    }

    /// Replaces the lease, as if an operator or another instance had taken over the message.
    pub fn lose_lease(&self, partition: &Partition, id: &str) {
        self.memory.update(partition, |rows, now| rows.unack.insert(id, now + 60_000_000));
    }

    /// Sets the crashes of a message.
    pub fn set_crashes(&self, partition: &Partition, id: &str, crashes: u32) {
        self.memory.update(partition, |rows, _| rows.attempts.insert(id.to_owned(), (0, crashes)));
    }

    fn rows(&self, partition: &Partition) -> MemoryPartition {
        self.memory.partition(partition)
    }

    /// Numbers of (pending, unack, dead).
    pub fn count(&self, partition: &Partition) -> (usize, usize, usize) {
        self.memory.update(partition, |rows, _| (rows.pending.len(), rows.unack.len(), rows.dead.len()))
    }

    /// The pending messages with the times from which they may be claimed, in epoch milliseconds.
    pub fn pending(&self, partition: &Partition) -> Vec<(u64, String)> {
        self.rows(partition).pending.iter().map(|(id, at)| (at, id.to_owned())).collect()
    }

    pub fn most_unacked(&self, partition: &Partition) -> usize {
        self.observed.lock().unwrap().most_unacked.get(partition).copied().unwrap_or(0)
    }

    pub fn max_suspects(&self) -> usize {
        self.observed.lock().unwrap().max_suspects
    }

    pub fn failures(&self, partition: &Partition, id: &str) -> u32 {
        self.rows(partition).failures(id)
    }

    /// Failures of a dead letter.
    pub fn dead_failures(&self, partition: &Partition, id: &str) -> u32 {
        self.rows(partition).errors[id].1
    }

    pub fn claims(&self, partition: &Partition, id: &str) -> usize {
        let observed = self.observed.lock().unwrap();
        observed.leases.iter().filter(|(of, one, _)| of == partition && one.as_str() == id).count()
    }

    /// Reason and error by id.
    pub fn dead(&self, partition: &Partition) -> BTreeMap<String, (DeadReason, String)> {
        let rows = self.rows(partition);
        let why = |id: &str| {
            let (reason, error) = rows.errors[id].2.split_once(": ").unwrap();
            let reason = DeadReason::ALL.into_iter().find(|one| one.as_str() == reason).unwrap();
            (id.to_owned(), (reason, error.to_owned()))
        };
        rows.dead.iter().map(|(id, _)| why(id)).collect()
    }

    pub fn list(&self, key: &str) -> Vec<Bytes> {
        self.memory.lists(|lists| lists.lists.get(key).cloned().unwrap_or_default())
    }

    /// Calls of one kind so far; `settle_shared`: those of `settle` that may wait for others.
    pub fn calls(&self, kind: &str) -> u32 {
        self.observed.lock().unwrap().calls.get(kind).copied().unwrap_or(0)
    }

    pub fn all_calls(&self) -> u32 {
        let calls = &self.observed.lock().unwrap().calls;
        KINDS.iter().filter_map(|kind| calls.get(kind)).sum()
    }

    /// Checks that each live id is in exactly one place and has a body.
    pub fn check(&self) {
        self.memory.partitions().values().for_each(MemoryPartition::check_invariants);
    }

    /// Waits for the turn of a small call.
    async fn turn(&self, kind: &'static str, partition: &Partition) {
        let at = {
            let mut observed = self.observed.lock().unwrap();
            let next = observed.turns.entry((kind, partition.clone())).or_insert_with(Instant::now);
            let at = Instant::now().max(*next);
            *next = at + SMALL_INTERVAL;
            at
        };
        sleep_until(at).await;
    }

    async fn call<T>(
        &self,
        kind: &'static str,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let faults = self.observed.lock().unwrap().count(kind);
        let hit = faults.only.is_none_or(|only| only == kind);
        let (there, back, fails_before, fails_after) = {
            let mut rng = self.rng.lock().unwrap();
            let there = faults.latency.mul_f64(rng.random());
            let back = faults.latency.mul_f64(rng.random());
            (there, back, hit & rng.random_bool(faults.before), hit & rng.random_bool(faults.after))
        };
        if !there.is_zero() {
            sleep(there).await;
        }
        if faults.down || fails_before {
            return Err(unavailable());
        }
        if faults.wrong_type && hit {
            return Err(StoreError::WrongType { text: kind.into() });
        }
        let reply = call.await;
        let back = if kind == "claim" { back + faults.claim_reply } else { back };
        if !back.is_zero() {
            sleep(back).await;
        }
        if fails_after { Err(unavailable()) } else { reply }
    }
}

fn unavailable() -> StoreError {
    StoreError::Unavailable { kind: "io", text: "ordered by the test".into() }
}

impl Observed {
    fn count(&mut self, kind: &'static str) -> Faults {
        *self.calls.entry(kind).or_default() += 1;
        let now = Instant::now();
        let at_once = self.instant.filter(|(at, _)| *at == now).map_or(0, |(_, calls)| calls);
        assert!(at_once < BUSY_LOOP, "a busy loop around `{kind}`");
        self.instant = Some((now, at_once + 1));
        self.faults
    }

    fn record(&mut self, partition: &Partition, claim: &Claim, unacked: usize) {
        let leases = claim.messages.iter().map(|one| (partition.clone(), one.id.clone(), claim.token.0));
        self.leases.extend(leases);
        let most = self.most_unacked.entry(partition.clone()).or_default();
        *most = unacked.max(*most);
    }
}

impl TestStore {
    pub fn step_back(&self, by: Duration) {
        self.memory.step_back(by);
    }
}

impl StoreClock for TestStore {
    fn now(&self) -> u64 {
        self.memory.now()
    }
}

#[async_trait]
impl Store for TestStore {
    async fn claim(&self, partition: &Partition, request: ClaimRequest) -> Result<Claim, StoreError> {
        assert!((0..=MAX_CALL).contains(&(request.limit as usize)));
        self.observed.lock().unwrap().max_suspects = request.max_suspects;
        if !request.backlog {
            self.turn("claim", partition).await;
        }
        let sent = Instant::now();
        let is_unanswered = self.observed.lock().unwrap().faults.unanswered.contains(&partition.index);
        let reply = self.call("claim", async {
            let mut claim = self.memory.claim(partition, request).await?;
            claim.clock.taken = sent;
            let (_, unacked, _) = self.count(partition);
            self.observed.lock().unwrap().record(partition, &claim, unacked);
            Ok(claim)
        });
        let reply = reply.await;
        if is_unanswered { Err(unavailable()) } else { reply }
    }

    async fn recover(&self, partition: &Partition) -> Result<Recovered, StoreError> {
        self.call("recover", self.memory.recover(partition)).await
    }

    async fn cut_leases(
        &self,
        partition: &Partition,
        longest: Duration,
        from: Option<u64>,
    ) -> Result<CutLeases, StoreError> {
        self.call("cut", self.memory.cut_leases(partition, longest, from)).await
    }

    async fn settle(&self, partition: &Partition, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        assert!((1..=MAX_CALL).contains(&settlements.len()));
        self.turn("settle", partition).await;
        *self.observed.lock().unwrap().calls.entry("settle_shared").or_default() += 1;
        self.settle_alone(partition, settlements).await
    }

    async fn settle_alone(
        &self,
        partition: &Partition,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>, StoreError> {
        let refused = self.observed.lock().unwrap().faults.refused_end;
        if settlements.iter().any(|one| refused == Some(one.end.name())) {
            return self.call("settle", async { Err(StoreError::WrongType { text: "settle".into() }) }).await;
        }
        self.call("settle", self.memory.settle(partition, settlements)).await
    }

    async fn bury_occurrence(
        &self,
        partition: &Partition,
        occurrence: &OccurrenceMessage,
        death: Death,
        error: &str,
    ) -> Result<bool, StoreError> {
        self.call("bury", self.memory.bury_occurrence(partition, occurrence, death, error)).await
    }

    async fn transfer(&self, partition: &Partition, transfers: &[Transfer]) -> Result<Vec<Transferred>, StoreError> {
        if transfers.len() <= SMALL {
            self.turn("transfer", partition).await;
        }
        let faults = self.observed.lock().unwrap().faults;
        let denied = |text: &str| Err(StoreError::Unavailable { kind: "noperm", text: text.to_owned() });
        if faults.denied_push {
            return self.call("transfer", async { denied("no permissions to run the 'rpush' command") }).await;
        }
        if transfers.iter().any(|one| faults.denied_list == Some(&*one.list)) {
            return self.call("transfer", async { denied("no permissions to access one of the keys") }).await;
        }
        self.call("transfer", self.memory.transfer(partition, transfers)).await
    }

    async fn wake_all(&self, partition: &Partition) -> Result<(), StoreError> {
        self.call("wake", self.memory.wake_all(partition)).await
    }
}
