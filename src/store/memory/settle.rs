//! Ends of claims (lua/settle.lua, lua/transfer.lua).

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::Duration,
};

use bytes::Bytes;

use super::partition::{MemoryPartition, PartitionSettings};
use crate::{
    message::{EndRecord, FlowLimits},
    store::{ClaimEnd, Lease, Sent, Settled, Settlement, Transfer, Transferred},
};

/// The lists of a Redis server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryLists {
    pub lists: BTreeMap<String, Vec<Bytes>>,
    /// Keys that hold a string instead of a list.
    pub strings: BTreeSet<String>,
}

impl MemoryPartition {
    /// Ends the claim when the lease is the current one.
    fn end_claim(&mut self, lease: &Lease) -> Settled {
        if !self.holds(lease) {
            return Settled::Stale;
        }
        self.unack.remove(lease.id.as_str());
        Settled::Done
    }

    /// Whether the lease is the current one of its message.
    fn holds(&self, lease: &Lease) -> bool {
        self.unack.get(lease.id.as_str()) == Some(lease.token.0)
    }

    pub fn settle(&mut self, settlements: &[Settlement], now: u64, settings: PartitionSettings) -> Vec<Settled> {
        let current: Vec<_> = settlements.iter().map(|settlement| self.holds(&settlement.lease)).collect();
        let mut seen = HashSet::new();
        let current = settlements.iter().zip(current).filter(|(one, holds)| *holds && seen.insert(&one.lease.id));
        let ended: Vec<_> = current.map(|(one, _)| one).collect();
        if let Some(flow) = &settings.flow {
            self.settle_flows(flow, &ended, now / 1000);
        }
        let ends = ended.iter().filter_map(|one| self.end_of_claim(one)).collect();
        let has_flows = settings.flow.is_some();
        let settled: Vec<_> =
            settlements.iter().map(|settlement| self.settle_one(settlement, now, has_flows)).collect();
        self.keep_ends(ends, now, settings);
        let acked = |(one, settled): (&'_ Settlement, &Settled)| {
            let is_over = matches!(one.end, ClaimEnd::Ack) || MemoryPartition::recurs(&one.lease.id);
            (*settled == Settled::Done && is_over && self.state(one.lease.id.as_str()).is_none())
                .then(|| one.lease.id.clone())
        };
        let acked: Vec<_> = settlements.iter().zip(&settled).filter_map(acked).collect();
        self.remember(&acked.iter().map(crate::message::MessageId::as_str).collect::<Vec<_>>(), false, now, settings);
        settled
    }

    /// The end of a message of a user that is delivered or dies.
    fn end_of_claim(&self, Settlement { lease, end, record, .. }: &Settlement) -> Option<(String, Bytes)> {
        let id = lease.id.as_str();
        if Self::recurs(&lease.id) {
            return None;
        }
        let status = record.as_ref().and_then(|record| record.status);
        let body = self.bodies.get(id).cloned().unwrap_or_default();
        let record = EndRecord::of(&body, self.failures(id)).with_status(status);
        let entry = match end {
            ClaimEnd::Ack => record.delivered(id),
            ClaimEnd::Bury { reason, error } => record.dead(id, *reason, error),
            _ => return None,
        };
        Some((id.to_owned(), entry))
    }

    /// `ended`: settlements of current leases.
    fn settle_flows(&mut self, flow: &FlowLimits, ended: &[&Settlement], now: u64) {
        let (mut back, mut hold) = (BTreeMap::new(), BTreeMap::new());
        for Settlement { lease, end, .. } in ended {
            let name = self.name_of_flow(lease.id.as_str());
            let (unsent, pause) = match end {
                ClaimEnd::Ack => (false, None),
                ClaimEnd::Bury { .. } if Self::recurs(&lease.id) => (false, None),
                ClaimEnd::Bury { reason, .. } => (!reason.is_attempted(), None),
                ClaimEnd::Release { .. } | ClaimEnd::Defer { sent: Sent::No, .. } | ClaimEnd::Plan(_) => {
                    let took_slot = self.flow_of(lease.id.as_str()).1 != "0" || !Self::recurs(&lease.id);
                    (took_slot, None)
                }
                ClaimEnd::Retry { hold, .. } | ClaimEnd::Defer { sent: Sent::Yes { hold }, .. } => (false, *hold),
            };
            if unsent {
                *back.entry(name.clone()).or_default() += 1;
            }
            if let Some(pause) = pause {
                let until = (now + u64::try_from(pause.as_millis()).expect("a delay in range")) * 1000;
                let known: &mut u64 = hold.entry(name).or_default();
                *known = (*known).max(until);
            }
        }
        let leaves = |end: &ClaimEnd| matches!(end, ClaimEnd::Ack | ClaimEnd::Bury { .. } | ClaimEnd::Plan(_));
        let stays = |end: &ClaimEnd| flow.ordered && !leaves(end);
        let leaving: Vec<_> =
            ended.iter().filter(|one| !stays(&one.end)).map(|one| (one.lease.id.as_str(), 0)).collect();
        self.depart(&leaving, now);
        self.shift_slots(flow, &back, &hold, now * 1000);
    }

    /// A settlement, also a stale one, proves that the process of the claim is alive: the crash count is reset.
    fn settle_one(&mut self, settlement: &Settlement, now: u64, has_flows: bool) -> Settled {
        let (id, settled) = (settlement.lease.id.as_str(), self.end_claim(&settlement.lease));
        let failures = self.failures(id);
        self.set_failures(id, failures);
        if settled == Settled::Stale {
            return settled;
        }
        let now = now / 1000;
        let after = |delay: Duration| now + u64::try_from(delay.as_millis()).expect("a delay in range");
        let occurrence = match &settlement.end {
            ClaimEnd::Plan(plan) => Some(('m', Some(plan))),
            ClaimEnd::Ack if Self::recurs(&settlement.lease.id) => Some(('d', None)),
            ClaimEnd::Bury { .. } if Self::recurs(&settlement.lease.id) => Some(('x', None)),
            _ => None,
        };
        if let Some((kind, plan)) = occurrence {
            if !self.recur(id, now, kind, plan, has_flows) {
                self.delete(id);
            }
            return settled;
        }
        if let ClaimEnd::Retry { .. } | ClaimEnd::Bury { .. } = &settlement.end {
            self.keep_attempt(id, now, settlement.attempt.as_ref());
        }
        match &settlement.end {
            ClaimEnd::Ack | ClaimEnd::Plan(_) => self.delete(id),
            ClaimEnd::Retry { delay, error, .. } => {
                self.set_failures(id, failures + 1);
                self.errors.insert(id.to_owned(), (now, failures + 1, error.clone()));
                self.pending.insert(id, after(*delay));
            }
            ClaimEnd::Bury { reason, error } => {
                let attempted = reason.is_attempted();
                self.bytes = self.bytes.saturating_sub(self.size(id));
                let error = format!("{}: {error}", reason.as_str());
                self.bury_at(id, now, failures + u32::from(attempted), error);
            }
            ClaimEnd::Release { at } => self.pending.insert(id, at.get()),
            ClaimEnd::Defer { pause, .. } => self.pending.insert(id, after(*pause)),
        }
        settled
    }

    pub fn transfer(
        &mut self,
        transfers: &[Transfer],
        lists: &mut MemoryLists,
        now: u64,
        settings: PartitionSettings,
    ) -> Vec<Transferred> {
        let (mut refused, mut done, mut ends) = (HashSet::new(), Vec::new(), Vec::new());
        let mut transfer_one = |Transfer { lease, list, value, record }: &Transfer| {
            // A lease that is named again in one call is stale.
            if refused.contains(&lease.id) || !self.holds(lease) {
                return Transferred::Stale;
            }
            if lists.strings.contains(&**list) {
                refused.insert(lease.id.clone());
                return Transferred::Refused("the key holds a string".into());
            }
            if settings.flow.is_some() {
                self.depart(&[(lease.id.as_str(), 0)], now / 1000);
            }
            let id = lease.id.as_str();
            self.unack.remove(id);
            if !Self::recurs(&lease.id) {
                let body = self.bodies.get(id).cloned().unwrap_or_default();
                let status = record.as_ref().and_then(|record| record.status);
                let record = EndRecord::of(&body, self.failures(id)).with_status(status);
                ends.push((id.to_owned(), record.delivered(id)));
            }
            if !(Self::recurs(&lease.id) && self.recur(id, now / 1000, 'd', None, settings.flow.is_some())) {
                self.delete(id);
                done.push(lease.id.clone());
            }
            lists.lists.entry(list.to_string()).or_default().push(value.clone());
            Transferred::Done
        };
        let transferred = transfers.iter().map(&mut transfer_one).collect();
        self.keep_ends(ends, now, settings);
        self.remember(&done.iter().map(crate::message::MessageId::as_str).collect::<Vec<_>>(), false, now, settings);
        transferred
    }
}
