//! Ends of claims (lua/settle.lua, lua/transfer.lua).

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::Duration,
};

use bytes::Bytes;

use super::partition::{MemoryPartition, PartitionSettings};
use crate::{
    message::DeadReason,
    store::{ClaimEnd, Lease, Settled, Settlement, Transfer, Transferred},
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
        let settled: Vec<_> = settlements.iter().map(|settlement| self.settle_one(settlement, now)).collect();
        let acked = |(one, settled): (&'_ Settlement, &Settled)| {
            (*settled == Settled::Done && matches!(one.end, ClaimEnd::Ack)).then(|| one.lease.id.clone())
        };
        let acked: Vec<_> = settlements.iter().zip(&settled).filter_map(acked).collect();
        self.remember(&acked.iter().map(crate::message::MessageId::as_str).collect::<Vec<_>>(), false, now, settings);
        settled
    }

    /// A settlement, also a stale one, proves that the process of the claim is alive: the crash count is reset.
    fn settle_one(&mut self, settlement: &Settlement, now: u64) -> Settled {
        let (id, settled) = (settlement.lease.id.as_str(), self.end_claim(&settlement.lease));
        let failures = self.failures(id);
        self.set_failures(id, failures);
        if settled == Settled::Stale {
            return settled;
        }
        let now = now / 1000;
        let after = |delay: Duration| now + u64::try_from(delay.as_millis()).expect("a delay in range");
        match &settlement.end {
            ClaimEnd::Ack => self.delete(id),
            ClaimEnd::Retry { delay, error } => {
                self.set_failures(id, failures + 1);
                self.errors.insert(id.to_owned(), (now, failures + 1, error.clone()));
                self.pending.insert(id, after(*delay));
            }
            ClaimEnd::Bury { reason, error } => {
                let attempted = matches!(reason, DeadReason::Rejected | DeadReason::Attempts);
                self.bytes = self.bytes.saturating_sub(self.size(id));
                let error = format!("{}: {error}", reason.as_str());
                self.bury_at(id, now, failures + u32::from(attempted), error);
            }
            ClaimEnd::Release { at } => self.pending.insert(id, at.get()),
            ClaimEnd::Defer { pause } => self.pending.insert(id, after(*pause)),
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
        let (mut refused, mut done) = (HashSet::new(), Vec::new());
        let mut transfer_one = |Transfer { lease, list, value }: &Transfer| {
            // A lease that is named again in one call is stale.
            if refused.contains(&lease.id) || !self.holds(lease) {
                return Transferred::Stale;
            }
            if lists.strings.contains(&**list) {
                refused.insert(lease.id.clone());
                return Transferred::Refused("the key holds a string".into());
            }
            self.delete(lease.id.as_str());
            lists.lists.entry(list.to_string()).or_default().push(value.clone());
            done.push(lease.id.clone());
            Transferred::Done
        };
        let transferred = transfers.iter().map(&mut transfer_one).collect();
        self.remember(&done.iter().map(crate::message::MessageId::as_str).collect::<Vec<_>>(), false, now, settings);
        transferred
    }
}
