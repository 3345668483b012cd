//! The store in memory: the same transitions as the scripts make, on tokio's clock, with faults to order.

mod state;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::{Instant, sleep};

use self::state::State;
use crate::{
    message::{DeadReason, MessageId, Metadata, StoredMessage, codec},
    store::{
        Bell, Claim, ClaimRequest, Partition, Recovered, Settled, Settlement, Store, StoreError, Transfer, Transferred,
    },
    time::UnixMillis,
};

/// Messages of one call, at most.
const MAX_CALL: usize = 1000;

/// What can be called, as `Faults::only` and `Twin::calls` name it.
const KINDS: [&str; 5] = ["claim", "recover", "settle", "transfer", "call"];

/// The twin's clock at its start, in microseconds.
const EPOCH: u64 = 1_700_000_000_000_000;

pub struct Twin {
    started: Instant,
    state: Mutex<State>,
    rng: Mutex<StdRng>,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Share of the calls that fail before they change anything.
    pub before: f64,
    /// Share of the calls whose reply is lost.
    pub after: f64,
    /// The only calls to which these two and `wrong_type` happen, where it is set.
    pub only: Option<&'static str>,
    /// Longest way there, and back.
    pub latency: Duration,
    /// What the reply of a claim takes.
    pub claim_reply: Duration,
    pub down: bool,
    pub wrong_type: bool,
    /// The list that takes nothing.
    pub refusing_list: Option<&'static str>,
    pub deaf: bool,
}

impl Twin {
    pub fn new(seed: u64) -> Arc<Self> {
        let rng = Mutex::new(StdRng::seed_from_u64(seed));
        Arc::new(Self { started: Instant::now(), state: Mutex::default(), rng })
    }

    /// For one instance more.
    pub fn next_seed(&self) -> u64 {
        self.rng.lock().unwrap().random()
    }

    /// Microseconds on its clock.
    pub fn now(&self) -> u64 {
        EPOCH + u64::try_from(self.started.elapsed().as_micros()).unwrap()
    }

    pub fn subscribe(&self, partition: &Partition) -> Arc<Bell> {
        let bell = Arc::new(Bell::default());
        bell.set_listening(true);
        self.state.lock().unwrap().bells.push((partition.clone(), Arc::clone(&bell)));
        bell
    }

    pub fn set_faults(&self, faults: Faults) {
        assert!(faults.only.is_none_or(|only| KINDS.contains(&only)), "{faults:?}");
        self.state.lock().unwrap().faults = faults;
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
        let id = MessageId::parse(id).unwrap();
        let mut state = self.state.lock().unwrap();
        let queue = state.partitions.entry(partition.clone()).or_default();
        queue.bodies.insert(id.clone(), body);
        state.make_pending(partition, id, due);
    }

    pub fn pause(&self, partition: &Partition, paused: bool) {
        let mut state = self.state.lock().unwrap();
        state.partitions.entry(partition.clone()).or_default().paused = paused;
        state.ring(partition);
    }

    /// As an operator or another instance would take it away.
    pub fn lose_lease(&self, partition: &Partition, id: &str) {
        let id = MessageId::parse(id).unwrap();
        let mut state = self.state.lock().unwrap();
        let token = state.next_token(self.now() + 60_000_000);
        state.partitions.get_mut(partition).unwrap().unack.insert(id, token);
    }

    /// Crashes that an earlier process left behind.
    pub fn set_crashes(&self, partition: &Partition, id: &str, crashes: u32) {
        let mut state = self.state.lock().unwrap();
        let queue = state.partitions.get_mut(partition).unwrap();
        queue.crashes.insert(MessageId::parse(id).unwrap(), crashes);
    }

    /// Numbers of (pending, unack, dead).
    pub fn count(&self, partition: &Partition) -> (usize, usize, usize) {
        let mut state = self.state.lock().unwrap();
        let queue = state.partitions.entry(partition.clone()).or_default();
        (queue.pending.len(), queue.unack.len(), queue.dead.len())
    }

    /// What waits, with the times from which it may be claimed, in epoch milliseconds.
    pub fn pending(&self, partition: &Partition) -> Vec<(u64, String)> {
        let state = self.state.lock().unwrap();
        let queue = state.partitions.get(partition).unwrap();
        queue.pending.iter().map(|(at, id)| (*at, id.to_string())).collect()
    }

    pub fn most_unacked(&self, partition: &Partition) -> usize {
        self.state.lock().unwrap().partitions.get(partition).map_or(0, |queue| queue.most_unacked)
    }

    pub fn failures(&self, partition: &Partition, id: &str) -> u32 {
        let state = self.state.lock().unwrap();
        let queue = state.partitions.get(partition).unwrap();
        queue.failures.get(&MessageId::parse(id).unwrap()).copied().unwrap_or(0)
    }

    pub fn claims(&self, partition: &Partition, id: &str) -> u32 {
        let state = self.state.lock().unwrap();
        let queue = state.partitions.get(partition).unwrap();
        queue.claims.get(&MessageId::parse(id).unwrap()).copied().unwrap_or(0)
    }

    pub fn dead(&self, partition: &Partition) -> BTreeMap<String, (DeadReason, String)> {
        let state = self.state.lock().unwrap();
        let queue = state.partitions.get(partition).unwrap();
        queue.dead.iter().map(|(id, why)| (id.to_string(), why.clone())).collect()
    }

    pub fn list(&self, key: &str) -> Vec<Bytes> {
        self.state.lock().unwrap().lists.get(key).cloned().unwrap_or_default()
    }

    /// Calls of one kind so far.
    pub fn calls(&self, kind: &str) -> u32 {
        self.state.lock().unwrap().calls.get(kind).copied().unwrap_or(0)
    }

    pub fn all_calls(&self) -> u32 {
        self.state.lock().unwrap().calls.values().sum()
    }

    /// A live id is in exactly one place, and its body is there.
    pub fn check(&self) {
        for queue in self.state.lock().unwrap().partitions.values() {
            let pending: BTreeSet<_> = queue.pending.iter().map(|(_, id)| id.clone()).collect();
            assert_eq!(pending.len(), queue.pending.len());
            assert!(pending.iter().all(|id| !queue.unack.contains_key(id) && !queue.dead.contains_key(id)));
            assert!(queue.unack.keys().all(|id| !queue.dead.contains_key(id)));
            assert_eq!(pending.len() + queue.unack.len() + queue.dead.len(), queue.bodies.len());
        }
    }

    async fn call<T>(
        &self,
        kind: &'static str,
        change: impl FnOnce(&mut State, u64) -> Result<T, StoreError> + Send,
    ) -> Result<T, StoreError> {
        let away = || StoreError::Unavailable { kind: "io", text: "ordered by the test".into() };
        let (faults, hit, there, back, fails_before, fails_after) = {
            let mut state = self.state.lock().unwrap();
            state.count_call(kind);
            let faults = state.faults;
            let mut rng = self.rng.lock().unwrap();
            let there = faults.latency.mul_f64(rng.random());
            let back = faults.latency.mul_f64(rng.random());
            let hit = faults.only.is_none_or(|only| only == kind);
            (faults, hit, there, back, hit & rng.random_bool(faults.before), hit & rng.random_bool(faults.after))
        };
        if !there.is_zero() {
            sleep(there).await;
        }
        if faults.down || fails_before {
            return Err(away());
        }
        if faults.wrong_type && hit {
            return Err(StoreError::WrongType { text: kind.into() });
        }
        let reply = change(&mut self.state.lock().unwrap(), self.now());
        let back = if kind == "claim" { back + faults.claim_reply } else { back };
        if !back.is_zero() {
            sleep(back).await;
        }
        if fails_after { Err(away()) } else { reply }
    }
}

#[async_trait]
impl Store for Twin {
    async fn claim(&self, partition: &Partition, request: ClaimRequest) -> Result<Claim, StoreError> {
        assert!((1..=MAX_CALL).contains(&(request.limit as usize)));
        let sent = Instant::now();
        self.call("claim", |state, now| Ok(state.claim(partition, request, now, sent))).await
    }

    async fn recover(&self, partition: &Partition) -> Result<Recovered, StoreError> {
        self.call("recover", |state, now| Ok(state.recover(partition, now))).await
    }

    async fn settle(&self, partition: &Partition, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        assert!((1..=MAX_CALL).contains(&settlements.len()));
        self.call("settle", |state, now| {
            Ok(settlements.iter().map(|settlement| state.settle(partition, settlement, now)).collect())
        })
        .await
    }

    async fn transfer(&self, partition: &Partition, transfers: &[Transfer]) -> Result<Vec<Transferred>, StoreError> {
        self.call("transfer", |state, _| {
            let refusing = state.faults.refusing_list;
            let one = |Transfer { lease, list, value }: &Transfer| {
                let queue = state.queue(partition);
                if refusing == Some(&**list) && queue.holds(lease) {
                    return Transferred::Refused("WRONGTYPE".into());
                }
                if queue.settle(lease) == Settled::Stale {
                    return Transferred::Stale;
                }
                queue.forget(&lease.id);
                state.lists.entry(list.to_string()).or_default().push(value.clone());
                Transferred::Done
            };
            Ok(transfers.iter().map(one).collect())
        })
        .await
    }

    async fn call_all(&self, partition: &Partition) -> Result<(), StoreError> {
        self.call("call", |state, _| {
            state.call_all(partition);
            Ok(())
        })
        .await
    }
}
