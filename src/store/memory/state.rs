//! The twin's partitions and what moves messages within them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use super::Faults;
use crate::{
    message::{DeadReason, MessageId, codec},
    store::{
        Bell, Claim, ClaimRequest, Claimed, End, Lease, Partition, Recovered, Settled, Settlement, Suspects, Token,
    },
    time::{ServerClock, UnixMillis},
};

/// A crash makes dead when it brings the count to this: two among others, three alone.
const DEADLY_CRASHES: u32 = 5;

/// Between suspects that are put off, in milliseconds.
const SPACING: u64 = 20;

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
    /// By instance: number and token of its last claim that took messages.
    pub last_claims: HashMap<u64, (u64, u64)>,
    /// Instance and time of the last of all.
    pub latest: Option<(u64, u64)>,
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

    pub fn claimed(&self, id: &MessageId, score: u64) -> Claimed {
        Claimed {
            id: id.clone(),
            body: self.bodies[id].clone(),
            failures: self.failures.get(id).copied().unwrap_or(0),
            not_before: UnixMillis::new(score).unwrap(),
            suspect: self.is_suspect(id),
        }
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

    pub fn call_all(&self, partition: &Partition) {
        for (of, bell) in &self.bells {
            if of == partition && !self.faults.deaf {
                bell.call();
            }
        }
    }

    pub fn claim(&mut self, partition: &Partition, request: ClaimRequest, now: u64, sent: Instant) -> Claim {
        let mut token = self.next_token(now + u64::try_from(request.lease.as_micros()).unwrap());
        let queue = self.partitions.entry(partition.clone()).or_default();
        let (number, last) = queue.last_claims.get(&request.claimant).copied().unwrap_or_default();
        let taken_elsewhere = queue.latest.filter(|(instance, _)| *instance != request.claimant).map(|(_, at)| at);
        let (mut bytes, mut suspects) = (0, 0);
        let mut messages = Vec::new();
        if number == request.sequence {
            let ids: Vec<_> =
                queue.unack.iter().filter(|(_, token)| **token == last).map(|(id, _)| id.clone()).collect();
            if last > now {
                token = last;
            } else if !ids.is_empty() {
                queue.unack.extend(ids.iter().map(|id| (id.clone(), token)));
                queue.last_claims.insert(request.claimant, (number, token));
            }
            for id in ids {
                let score = codec::decode(&queue.bodies[&id]).map_or(0, |message| message.due.get());
                messages.push(queue.claimed(&id, score));
            }
        } else if number < request.sequence && !queue.paused {
            let due = queue.pending.range(..=(now / 1000, MessageId::parse(&"~".repeat(128)).unwrap()));
            let mut chosen: Vec<_> = due.take(request.limit as usize).cloned().collect();
            match request.suspects {
                Suspects::One => {
                    if let Some(suspect) = chosen.iter().find(|(_, id)| queue.is_suspect(id)).cloned() {
                        chosen = vec![suspect];
                    }
                }
                Suspects::PutOff(pause) => {
                    let mut at = now / 1000 + u64::try_from(pause.as_millis()).unwrap();
                    let (put_off, others): (Vec<_>, _) = chosen.into_iter().partition(|(_, id)| queue.is_suspect(id));
                    chosen = others;
                    for (score, id) in put_off {
                        suspects += 1;
                        at += SPACING;
                        queue.pending.remove(&(score, id.clone()));
                        queue.pending.insert((at, id));
                    }
                }
            }
            for (score, id) in chosen {
                bytes += queue.bodies[&id].len() as u64;
                if bytes > request.max_bytes && !messages.is_empty() {
                    break;
                }
                queue.pending.remove(&(score, id.clone()));
                queue.unack.insert(id.clone(), token);
                *queue.claims.entry(id.clone()).or_default() += 1;
                messages.push(queue.claimed(&id, score));
            }
            if !messages.is_empty() {
                queue.last_claims.insert(request.claimant, (request.sequence, token));
                queue.latest = Some((request.claimant, now));
            }
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
            taken_elsewhere,
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

    pub fn settle(&mut self, partition: &Partition, Settlement { lease, end }: &Settlement, now: u64) -> Settled {
        let queue = self.queue(partition);
        let verdict = queue.settle(lease);
        queue.crashes.remove(&lease.id);
        if verdict == Settled::Stale {
            return verdict;
        }
        let id = lease.id.clone();
        let after = |delay: &Duration| now / 1000 + u64::try_from(delay.as_millis()).unwrap();
        match end {
            End::Ack => queue.forget(&id),
            End::Retry { delay, .. } => {
                *queue.failures.entry(id.clone()).or_default() += 1;
                self.make_pending(partition, id, after(delay));
            }
            End::Bury { reason, error } => drop(queue.dead.insert(id, (*reason, error.clone()))),
            End::Release { at } => self.make_pending(partition, id, at.get()),
            End::Defer { pause } => self.make_pending(partition, id, after(pause)),
        }
        verdict
    }

    pub fn queue(&mut self, partition: &Partition) -> &mut Queue {
        self.partitions.entry(partition.clone()).or_default()
    }
}
