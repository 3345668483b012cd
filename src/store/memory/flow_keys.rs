//! The content of the flow keys of a partition.

use std::collections::{BTreeMap, BTreeSet};

/// Gate of a flow that opens when a message of it ends.
pub const SHUT: u64 = u64::MAX;

/// The keys of flows, with the names of those in Redis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryFlows {
    pub flows: BTreeMap<String, String>,
    pub waiting: BTreeSet<String>,
    pub flights: BTreeSet<String>,
    /// In milliseconds, or `SHUT`.
    pub gates: BTreeMap<String, u64>,
    /// In microseconds.
    pub slots: BTreeMap<String, f64>,
    pub rules: BTreeMap<String, String>,
}
