//! The content of one partition, and the functions that all transitions share.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{definition::MemorySchedule, flow_keys::MemoryFlows, history::MemoryHistory, sorted_set::SortedSet};
use crate::{
    message::{Ending, FlowLimits, LogRecord, NewMessage, RouteLimits, State, StoredMessage, codec},
    store::FailedAttempt,
    time::UnixMillis,
};

/// Bytes of an encoded body in front of the metadata's length: version, due time, time of acceptance.
pub(super) const TIMES_END: usize = 17;

/// Failed attempts that are kept of a message.
const MAX_TRIES: usize = 10;

/// Content of one partition; the fields are named like its keys in Redis. Scores are milliseconds since the epoch, in
/// `unack` microseconds. Transitions take the time in microseconds since the epoch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryPartition {
    /// Score: the time from which the message can be claimed.
    pub pending: SortedSet,
    /// Score: the token of the lease, which is its deadline.
    pub unack: SortedSet,
    /// Score: the time of death.
    pub dead: SortedSet,
    /// Dead letters to forward. Score: the time from which they are taken.
    pub outbox: SortedSet,
    /// Encoded messages (`message::codec`).
    pub bodies: BTreeMap<String, Bytes>,
    /// Failures and crashes of messages in pending and unack.
    pub attempts: BTreeMap<String, (u32, u32)>,
    /// Time of the last failure in milliseconds, number of failures, and the error.
    pub errors: BTreeMap<String, (u64, u32, String)>,
    /// The last attempts that failed, as they are stored.
    pub tries: BTreeMap<String, Vec<String>>,
    /// Time of completion in milliseconds, and whether the message was cancelled.
    pub remembered: BTreeMap<String, (u64, bool)>,
    /// The log record that was last applied to each id, if any.
    pub records: BTreeMap<String, LogRecord>,
    /// Number and token of each instance's last claim that took messages.
    pub claims: BTreeMap<u64, (u64, u64)>,
    /// The instance that last took messages, and when, in microseconds.
    pub latest: Option<(u64, u64)>,
    pub paused: bool,
    /// Total bytes of the bodies of messages in `pending` and `unack`.
    pub bytes: u64,
    pub flow: MemoryFlows,
    /// The groups of live ids that have one.
    pub groups: BTreeMap<String, String>,
    pub schedules: BTreeMap<String, MemorySchedule>,
    pub history: MemoryHistory,
}

/// The route's settings as they apply to one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionSettings {
    /// How long completed ids are remembered, in milliseconds; 0: not at all.
    pub keep: u64,
    /// Maximum number of completed ids that are remembered.
    pub max: usize,
    /// The partition's share of the route's limits.
    pub limits: RouteLimits,
    pub flow: Option<FlowLimits>,
    /// Dead letters are forwarded.
    pub forwards: bool,
    /// Maximum age of an end in the history, in milliseconds, and maximum number of ends; `None`: no history.
    pub history: Option<(u64, u64)>,
}

impl MemoryPartition {
    /// The state of a live id.
    pub fn state(&self, id: &str) -> Option<State> {
        [(&self.pending, State::Pending), (&self.unack, State::Unack), (&self.dead, State::Dead)]
            .into_iter()
            .find_map(|(set, state)| set.contains(id).then_some(state))
    }

    pub fn failures(&self, id: &str) -> u32 {
        self.attempts.get(id).map_or(0, |counts| counts.0)
    }

    /// The due time inside the body, which a claim does not change; 0 if the body is damaged.
    pub fn original_due(&self, id: &str) -> u64 {
        let due =
            self.bodies.get(id).filter(|body| body.len() >= TIMES_END).and_then(|body| body[1..9].try_into().ok());
        due.map(u64::from_be_bytes).filter(|due| UnixMillis::new(*due).is_some()).unwrap_or(0)
    }

    /// How and when an id that is not live completed, if it is remembered.
    pub fn ended(&self, id: &str, now: u64, settings: PartitionSettings) -> Option<(Ending, u64)> {
        let (at, cancelled) =
            *self.remembered.get(id).filter(|(at, _)| self.state(id).is_none() && at + settings.keep >= now / 1000)?;
        Some((if cancelled { Ending::Cancelled } else { Ending::Delivered }, at))
    }

    /// Deletes a live id with its body, counts and error.
    pub(super) fn delete(&mut self, id: &str) {
        if !self.dead.contains(id) {
            self.bytes = self.bytes.saturating_sub(self.size(id));
        }
        for set in [&mut self.pending, &mut self.unack, &mut self.dead] {
            set.remove(id);
        }
        self.bodies.remove(id);
        self.attempts.remove(id);
        self.errors.remove(id);
        self.tries.remove(id);
        self.flow.flows.remove(id);
        self.groups.remove(id);
    }

    /// Bytes of a stored body.
    pub(super) fn size(&self, id: &str) -> u64 {
        self.bodies.get(id).map_or(0, |body| body.len() as u64)
    }

    /// The value that `bytes` must have.
    pub fn held_bytes(&self) -> u64 {
        self.pending.iter().chain(self.unack.iter()).map(|(id, _)| self.size(id)).sum()
    }

    /// Makes an id dead at `now`, in milliseconds, with this number of failures.
    pub(super) fn bury_at(&mut self, id: &str, now: u64, failures: u32, error: String) {
        self.attempts.remove(id);
        self.errors.insert(id.to_owned(), (now, failures, error));
        self.dead.insert(id, now);
        // Without forwarding, the outbox is left out of each comparison.
        self.outbox.insert(id, now);
    }

    /// Keeps an attempt that failed at `now`, in milliseconds.
    pub(super) fn keep_attempt(&mut self, id: &str, now: u64, attempt: Option<&FailedAttempt>) {
        if let Some(attempt) = attempt {
            let tries = self.tries.entry(id.to_owned()).or_default();
            tries.push(format!("{now} {attempt}"));
            tries.drain(..tries.len().saturating_sub(MAX_TRIES));
        }
    }

    /// Sets the failures of an id, and resets its crashes: a settled claim did not crash.
    pub(super) fn set_failures(&mut self, id: &str, failures: u32) {
        if failures > 0 {
            self.attempts.insert(id.to_owned(), (failures, 0));
        } else {
            self.attempts.remove(id);
        }
    }

    /// Remembers how ids that were live completed. Evicts the oldest ids that exceed either bound, and the records of
    /// ids that are not remembered.
    pub(super) fn remember(&mut self, ids: &[&str], cancelled: bool, now: u64, settings: PartitionSettings) {
        if ids.is_empty() {
            return;
        }
        let now = now / 1000;
        let mut ordered: Vec<_> = self.remembered.iter().map(|(id, ended)| (*ended, id.clone())).collect();
        ordered.sort();
        let fresh = if settings.keep > 0 { ids.len().min(settings.max) } else { 0 };
        let too_old = ordered.iter().filter(|((at, _), _)| at + settings.keep < now).count();
        let too_many = (ordered.len() + fresh).saturating_sub(settings.max);
        for (_, id) in ordered.iter().take(too_old.max(too_many)) {
            self.remembered.remove(id);
            self.records.remove(id);
        }
        for id in &ids[..ids.len() - fresh] {
            self.records.remove(*id);
        }
        for id in &ids[ids.len() - fresh..] {
            self.remembered.insert((*id).to_owned(), (now, cancelled));
        }
    }

    /// Checks the invariants that hold after every transition of an undamaged partition.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check_invariants(&self) {
        let sets = [&self.pending, &self.unack, &self.dead];
        let mut live: Vec<&str> = sets.iter().flat_map(|set| set.iter().map(|(id, _)| id)).collect();
        live.sort_unstable();
        assert!(live.windows(2).all(|pair| pair[0] != pair[1]), "an id in two sets: {self:?}");
        assert_eq!(live, self.bodies.keys().collect::<Vec<_>>(), "a body exists iff its id is live: {self:?}");
        assert_eq!(self.bytes, self.held_bytes(), "bytes of pending and unack: {self:?}");
        let is_live = |id: &String| live.binary_search(&id.as_str()).is_ok();
        for id in self.errors.keys() {
            assert!(is_live(id), "an error of `{id}`, which is not live: {self:?}");
        }
        for (id, tries) in &self.tries {
            assert!(is_live(id), "a failed attempt of `{id}`, which is not live: {self:?}");
            assert!(tries.len() <= MAX_TRIES, "{} failed attempts of `{id}`", tries.len());
        }
        for id in self.attempts.keys() {
            assert!(is_live(id) && !self.dead.contains(id), "attempts of `{id}`, which does not wait: {self:?}");
        }
        for id in self.remembered.keys() {
            assert!(!is_live(id), "`{id}` is remembered as completed, and live: {self:?}");
        }
        for id in self.records.keys() {
            let known = is_live(id) || self.remembered.contains_key(id);
            assert!(known, "a record of `{id}`, which is neither live nor remembered: {self:?}");
        }
        for (id, body) in &self.bodies {
            // The marker of a lost body has no group.
            let Ok(message) = codec::decode(body) else { continue };
            assert_eq!(self.groups.get(id), message.metadata.group.as_ref(), "the group of `{id}`: {self:?}");
        }
        for id in self.groups.keys() {
            assert!(is_live(id), "a group of `{id}`, which is not live: {self:?}");
        }
        let mut tokens: Vec<u64> = self.claims.values().map(|(_, token)| *token).collect();
        tokens.sort_unstable();
        assert!(tokens.windows(2).all(|pair| pair[0] != pair[1]), "a token of two instances: {self:?}");
        let latest = self.latest.map(|(instance, _)| instance);
        assert!(latest.is_none_or(|latest| self.claims.contains_key(&latest)), "{self:?}");
        assert!(self.attempts.values().all(|counts| *counts != (0, 0)), "attempts of an id that has none: {self:?}");
    }
}

/// A time in the type of the store's replies.
pub(super) fn unix_millis(millis: u64) -> UnixMillis {
    UnixMillis::new(millis).expect("below 2^53")
}

/// The message as it is stored when it is accepted now.
pub(super) fn stored(message: &NewMessage, due: u64, accepted: u64) -> StoredMessage {
    StoredMessage {
        due: unix_millis(due),
        accepted: unix_millis(accepted),
        metadata: message.metadata.clone(),
        payload: message.payload.clone(),
    }
}
