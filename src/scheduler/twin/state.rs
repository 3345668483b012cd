//! The twin's partitions and what moves messages within them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use tokio::time::Instant;

use super::Faults;
use crate::{
    message::MessageId,
    outcome::DeadReason,
    port::{Bell, Claim, ClaimMode, ClaimRequest, Claimed, Lease, Partition, Recovered, Settled, Token},
    time::{ServerClock, UnixMillis},
};

/// A crash makes dead when it brings the count to this: two among others, three alone.
const DEADLY_CRASHES: u32 = 5;

/// Calls at one instant of the paused clock that can only be a busy loop.
const BUSY_LOOP: u32 = 2_000;

#[derive(Default)]
pub struct State {
    pub partitions: HashMap<Partition, Queue>,
    pub bells: Vec<(Partition, Arc<Bell>)>,
    pub lists: HashMap<String, Vec<Bytes>>,
    pub faults: Faults,
    pub last_token: u64,
    pub calls: BTreeMap<&'static str, u32>,
    pub instant: Option<(Instant, u32)>,
}

#[derive(Default)]
pub struct Queue {
    pub paused: bool,
    pub pending: BTreeSet<(u64, MessageId)>,
    pub unack: BTreeMap<MessageId, u64>,
    pub bodies: HashMap<MessageId, Bytes>,
    pub failures: HashMap<MessageId, u32>,
    pub crashes: HashMap<MessageId, u32>,
    pub dead: BTreeMap<MessageId, (DeadReason, String)>,
    pub claims: HashMap<MessageId, u32>,
    pub most_unacked: usize,
}

impl Queue {
    pub fn is_suspect(&self, id: &MessageId) -> bool {
        self.crashes.get(id).is_some_and(|crashes| *crashes >= 2)
    }

    /// Whether the lease is its message's current one.
    pub fn holds(&self, lease: &Lease) -> bool {
        self.unack.get(&lease.id) == Some(&lease.token.0)
    }

    /// Takes the message from its claim, when it is the current one.
    pub fn settle(&mut self, lease: &Lease) -> Settled {
        if !self.holds(lease) {
            return Settled::Stale;
        }
        self.unack.remove(&lease.id);
        self.crashes.remove(&lease.id);
        Settled::Done
    }

    pub fn forget(&mut self, id: &MessageId) {
        self.bodies.remove(id);
        self.failures.remove(id);
    }
}

impl State {
    pub fn count_call(&mut self, kind: &'static str) {
        *self.calls.entry(kind).or_default() += 1;
        let now = Instant::now();
        let at_once = self.instant.filter(|(at, _)| *at == now).map_or(0, |(_, calls)| calls);
        assert!(at_once < BUSY_LOOP, "a busy loop around `{kind}`");
        self.instant = Some((now, at_once + 1));
    }

    pub fn next_token(&mut self, deadline: u64) -> u64 {
        self.last_token = deadline.max(self.last_token + 1);
        self.last_token
    }

    /// Rings when the head became earlier.
    pub fn make_pending(&mut self, partition: &Partition, id: MessageId, score: u64) {
        let queue = self.partitions.entry(partition.clone()).or_default();
        let earlier = queue.pending.first().is_none_or(|(head, _)| score < *head);
        queue.pending.insert((score, id));
        if earlier {
            self.ring(partition);
        }
    }

    pub fn ring(&self, partition: &Partition) {
        for (of, bell) in &self.bells {
            if of == partition && !self.faults.deaf {
                bell.ring();
            }
        }
    }

    pub fn claim(&mut self, partition: &Partition, request: ClaimRequest, now: u64, sent: Instant) -> Claim {
        let token = self.next_token(now + u64::try_from(request.lease.as_micros()).unwrap());
        let queue = self.partitions.entry(partition.clone()).or_default();
        let due = queue.pending.range(..=(now / 1000, MessageId::parse(&"~".repeat(128)).unwrap()));
        let due: Vec<_> = due.cloned().collect();
        let others = || due.iter().filter(|(_, id)| !queue.is_suspect(id)).cloned();
        let chosen: Vec<_> = match request.mode {
            _ if queue.paused => Vec::new(),
            // Suspects take places of the limit, too.
            ClaimMode::Ordinary => {
                due.iter().take(request.limit as usize).filter(|(_, id)| !queue.is_suspect(id)).cloned().collect()
            }
            ClaimMode::Probe { skip } => others().nth(skip as usize).or(others().next()).into_iter().collect(),
            ClaimMode::Suspect => due.iter().filter(|(_, id)| queue.is_suspect(id)).take(1).cloned().collect(),
        };
        let suspects = match request.mode {
            ClaimMode::Suspect => 0,
            _ if queue.paused => 0,
            _ => u32::try_from(due.len() - others().count()).unwrap(),
        };
        let mut bytes = 0;
        let mut messages = Vec::new();
        for (score, id) in chosen {
            let body = queue.bodies[&id].clone();
            bytes += body.len() as u64;
            if bytes > request.max_bytes && !messages.is_empty() {
                break;
            }
            queue.pending.remove(&(score, id.clone()));
            queue.unack.insert(id.clone(), token);
            *queue.claims.entry(id.clone()).or_default() += 1;
            let failures = queue.failures.get(&id).copied().unwrap_or(0);
            messages.push(Claimed { id, body, failures, not_before: UnixMillis::new(score).unwrap() });
        }
        queue.most_unacked = queue.most_unacked.max(queue.unack.len());
        Claim {
            clock: ServerClock { micros: now, taken: sent },
            token: Token(token),
            messages,
            paused: queue.paused,
            next_due: queue.pending.first().and_then(|(due, _)| UnixMillis::new(*due)),
            next_lease: queue.unack.values().min().copied(),
            suspects,
            orphans: 0,
        }
    }

    pub fn recover(&mut self, partition: &Partition, now: u64) -> Recovered {
        let queue = self.partitions.entry(partition.clone()).or_default();
        let expired: Vec<_> =
            queue.unack.iter().filter(|(_, token)| **token <= now).map(|(id, _)| id.clone()).collect();
        let mut recovered = Recovered::default();
        for id in expired {
            let queue = self.partitions.entry(partition.clone()).or_default();
            queue.unack.remove(&id);
            recovered.expired += 1;
            let crashes = queue.crashes.entry(id.clone()).or_default();
            *crashes += 1;
            if *crashes >= DEADLY_CRASHES {
                queue.dead.insert(id, (DeadReason::Crash, String::new()));
                recovered.dead += 1;
            } else {
                self.make_pending(partition, id, now / 1000);
            }
        }
        recovered
    }

    pub fn settle_all<T>(
        &mut self,
        partition: &Partition,
        items: &[T],
        lease: impl Fn(&T) -> &Lease,
        mut then: impl FnMut(&mut Self, &T),
    ) -> Vec<Settled> {
        let mut verdicts = Vec::with_capacity(items.len());
        for item in items {
            let queue = self.partitions.entry(partition.clone()).or_default();
            let verdict = queue.settle(lease(item));
            if verdict == Settled::Done {
                then(self, item);
            }
            verdicts.push(verdict);
        }
        verdicts
    }

    pub fn queue(&mut self, partition: &Partition) -> &mut Queue {
        self.partitions.entry(partition.clone()).or_default()
    }
}
