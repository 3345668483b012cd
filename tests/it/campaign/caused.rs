//! The faults that were caused in a round.

use std::{collections::BTreeMap, sync::Mutex};

use super::kinds::Kind;
use crate::support::receiver::wall_clock;

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
    pub fn begin_of(&self, instance: usize, kind: Kind, detail: String) -> usize {
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

/// How often each kind was caused.
pub fn counts(faults: &[Caused]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for fault in faults {
        *counts.entry(fault.kind.name()).or_default() += 1;
    }
    counts
}
