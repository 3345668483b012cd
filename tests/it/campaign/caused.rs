//! The faults that were caused in a round.

use std::{collections::BTreeMap, sync::Mutex};

use super::{
    clock,
    history::{Arrival, Reply},
    kinds::Kind,
    oracle::MARGIN,
    world::LEASE,
};
use crate::support::receiver::wall_clock;

/// A settlement that is lost with a fault was made within this time of the arrival, in milliseconds.
pub const SETTLED_WITHIN: u64 = 2000;

/// A fault that was caused.
#[derive(Clone, Debug)]
pub struct Caused {
    pub kind: Kind,
    pub detail: String,
    /// `None`: it is not a fault of one instance.
    pub instance: Option<usize>,
    /// Epoch milliseconds.
    pub began: u64,
    /// `None`: it goes on.
    pub ended: Option<u64>,
    is_withdrawn: bool,
}

/// All faults of a round.
#[derive(Default)]
pub struct Faults(Mutex<Vec<Caused>>);

impl Faults {
    pub fn begin(&self, kind: Kind, detail: String) -> usize {
        self.add(wall_clock(), kind, None, detail)
    }

    /// One that was noticed now.
    pub fn begin_since(&self, began: u64, kind: Kind, detail: String) -> usize {
        self.add(began, kind, None, detail)
    }

    /// A fault of one instance.
    pub fn begin_of(&self, instance: usize, kind: Kind, detail: &str) -> usize {
        self.add(wall_clock(), kind, Some(instance), format!("instance {instance}, {detail}"))
    }

    fn add(&self, began: u64, kind: Kind, instance: Option<usize>, detail: String) -> usize {
        let mut all = self.0.lock().expect("no panic under this lock");
        all.push(Caused { kind, detail, instance, began, ended: None, is_withdrawn: false });
        all.len() - 1
    }

    pub fn end(&self, index: usize) {
        self.0.lock().expect("no panic under this lock")[index].ended = Some(wall_clock());
    }

    /// Adds to its detail.
    pub fn note(&self, index: usize, text: &str) {
        self.0.lock().expect("no panic under this lock")[index].detail.push_str(text);
    }

    /// It was not caused.
    pub fn withdraw(&self, index: usize) {
        self.0.lock().expect("no panic under this lock")[index].is_withdrawn = true;
    }

    pub fn all(&self) -> Vec<Caused> {
        let all = self.0.lock().expect("no panic under this lock");
        all.iter().filter(|fault| !fault.is_withdrawn).cloned().collect()
    }
}

impl Caused {
    /// Whether two deliveries at these times can be its consequence.
    fn repeats(&self, first: &Arrival, second: &Arrival) -> bool {
        // The first was delivered, and its settlement was not made or is lost.
        let is_near = self.overlaps(first.since.saturating_sub(SETTLED_WITHIN), first.at + SETTLED_WITHIN);
        let is_unsettled = is_near && self.hit_sender(first);
        // It returns when the lease ends. A message waits for a connection for at most half of the timeout before it is sent.
        // After a step back the lease ends later than a claim permits, and is cut.
        let is_after_lease = clock::at(second.at) >= clock::at(first.at) + LEASE - SETTLED_WITHIN
            || clock::steps_back(first.at, second.at);
        match self.kind {
            Kind::Stop if is_near && self.has_just_ended(second.at) => {
                // Or one of the two was delivered by another instance, and the stopped one sends when it goes on.
                self.hit_sender(first) || self.hit_sender(second)
            }
            kind => is_unsettled && (is_after_lease || !kind.is_after_lease()),
        }
    }

    /// Whether the instance that sent it had this fault, or can have had it.
    pub fn hit_sender(&self, arrival: &Arrival) -> bool {
        self.instance.is_none() || arrival.sender.is_none() || self.instance == arrival.sender
    }

    /// Whether a stopped instance sends now what it claimed before.
    pub fn has_just_ended(&self, at: u64) -> bool {
        let ended = self.ended.unwrap_or(u64::MAX);
        ended <= at.saturating_add(MARGIN) && at <= ended.saturating_add(SETTLED_WITHIN)
    }

    pub fn overlaps(&self, from: u64, to: u64) -> bool {
        self.began <= to && self.ended.is_none_or(|ended| ended >= from)
    }
}

/// The kind of fault that explains two deliveries of a message of this route.
pub fn explanation(faults: &[Caused], route: &str, first: &Arrival, second: &Arrival) -> Option<&'static str> {
    let fault = faults.iter().find(|fault| fault.kind.duplicates(route) && fault.repeats(first, second));
    fault.map(|fault| fault.kind.name())
}

/// How often each kind was caused.
pub fn counts(faults: &[Caused]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for fault in faults {
        *counts.entry(fault.kind.name()).or_default() += 1;
    }
    counts
}

#[test]
fn a_fault_of_an_instance_explains_its_own_duplicates_alone() {
    let arrival = |sender, at| Arrival {
        id: "a".into(),
        version: Some(1),
        attempt: 1,
        due: 0,
        since: at,
        at,
        ended: Some(at),
        route: "web".into(),
        reply: Reply::Status(200),
        sender,
        wrong: None,
    };
    let faults = Faults::default();
    faults.begin_of(1, Kind::Kill, "");
    let faults = faults.all();
    let at = faults[0].began;
    let explained = |sender| explanation(&faults, "web", &arrival(sender, at), &arrival(Some(2), at + LEASE));
    assert_eq!([Some(0), Some(1), None].map(explained), [None, Some("kill"), Some("kill")]);
}
