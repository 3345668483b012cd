//! Definitions of recurring schedules.

use bytes::Bytes;

use crate::{message::codec, store::ScheduleOwner};

/// A definition, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemorySchedule {
    pub revision: String,
    pub is_paused: bool,
    pub owner: ScheduleOwner,
    pub flow: String,
    /// Milliseconds.
    pub since: u64,
    /// The latest first, as in Redis.
    pub runs: Vec<String>,
    /// A body after its times.
    pub tail: Bytes,
}

impl MemorySchedule {
    pub(super) fn body(&self, due: u64, planned: u64) -> Bytes {
        let times = [&[codec::VERSION][..], &due.to_be_bytes(), &planned.to_be_bytes()].concat();
        [&times[..], &self.tail].concat().into()
    }
}
