//! Invariants of flows.

use std::collections::BTreeSet;

use super::{flow::place, flow_keys::SHUT, partition::MemoryPartition};
use crate::{message::FlowLimits, store::PARKED};

impl MemoryPartition {
    /// Checks what holds after every transition of a route with flows.
    ///
    /// # Panics
    /// When it does not.
    pub fn check_flows(&self, limits: &FlowLimits) {
        let parked: BTreeSet<_> = self
            .pending
            .iter()
            .filter(|(_, score)| *score >= PARKED)
            .map(|(id, score)| {
                let (name, number) = self.flow_of(id);
                place(&name, score - PARKED, &number, id)
            })
            .collect();
        assert_eq!(parked, self.flow.waiting, "who waits is parked: {self:?}");
        let names: BTreeSet<_> =
            self.flow.waiting.iter().map(|member| member.split('\0').next().expect("a flow")).collect();
        for name in names {
            let gate = self.flow.gates.get(name).copied();
            assert!(gate.is_some(), "nothing looks at `{name}`: {self:?}");
            let start = format!("{name}\0");
            let paused = self.flow.rules.get(name).is_some_and(|own| !own.ends_with(" -"));
            let busy = self.flow.flights.iter().any(|flight| flight.starts_with(&start));
            assert!(gate != Some(SHUT) || busy || paused, "`{name}` is stuck: {self:?}");
        }
        let in_flight = self.unack.iter().map(|(id, _)| (self.flow_of(id).0, id));
        let counted = in_flight.filter(|(name, _)| self.is_counted(limits, name));
        let mut flights: BTreeSet<_> = counted.map(|(name, id)| format!("{name}\0{id}")).collect();
        if limits.ordered {
            let held = |flight: &&String| {
                let id = flight.split('\0').nth(1).expect("an id");
                self.pending.get(id).is_some_and(|score| score < PARKED)
            };
            flights.extend(self.flow.flights.iter().filter(held).cloned());
        }
        assert_eq!(flights, self.flow.flights, "in flight per flow: {self:?}");
        for id in self.flow.flows.keys().filter(|id| !id.is_empty()) {
            assert!(self.state(id).is_some(), "a flow of `{id}`, which is not live: {self:?}");
        }
    }
}
