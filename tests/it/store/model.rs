//! What each transition ought to do, in plain maps. `now` is Redis' clock, in milliseconds where not said otherwise.

use std::time::Duration;

use punctual::{
    message::{
        Cancellation, DeadReason, Ending, Limit, LogRecord, MessageId, NewMessage, OnConflict, RouteLimits, State,
        StoredMessage, codec,
    },
    store::{Cancelled, End, Lease, Recovered, Rescheduled, ScheduleStatus, Settled, Settlement, redis::Evicted},
    time::{Due, UnixMillis},
};

use super::{operation::Memory, rows::Rows};

/// Crashes that make a message dead.
const MAX_CRASHES: u32 = 5;

impl Rows {
    pub fn state(&self, id: &str) -> Option<State> {
        [(&self.pending, State::Pending), (&self.unack, State::Unack), (&self.dead, State::Dead)]
            .into_iter()
            .find_map(|(set, state)| set.contains_key(id).then_some(state))
    }

    pub fn head(&self) -> Option<u64> {
        self.pending.values().min().copied()
    }

    pub fn next_lease(&self) -> Option<u64> {
        self.unack.values().min().copied()
    }

    /// By score, then id, as Redis orders.
    pub fn ordered(&self, state: State) -> Vec<(u64, String)> {
        let set = match state {
            State::Pending => &self.pending,
            State::Unack => &self.unack,
            State::Dead => &self.dead,
        };
        let mut ordered: Vec<_> = set.iter().map(|(id, score)| (*score, id.clone())).collect();
        ordered.sort();
        ordered
    }

    pub fn failures(&self, id: &str) -> u32 {
        self.attempts.get(id).map_or(0, |counts| counts.0)
    }

    /// The due time that was asked for, whatever the score says.
    pub fn original_due(&self, id: &str) -> u64 {
        codec::decode(&self.bodies[id]).map_or(0, |message| message.due.get())
    }

    pub fn schedule(&mut self, batch: &[NewMessage], now: u64, memory: Memory) -> Vec<(ScheduleStatus, u64)> {
        batch.iter().map(|message| self.schedule_one(message, now, memory)).collect()
    }

    /// How an id that is not live ended, as far as that is remembered.
    pub fn ended(&self, id: &str, now: u64, keep: u64) -> Option<(Ending, u64)> {
        let (at, cancelled) =
            *self.remembered.get(id).filter(|(at, _)| self.state(id).is_none() && at + keep >= now)?;
        Some((if cancelled { Ending::Cancelled } else { Ending::Delivered }, at))
    }

    /// What is kept of `record` once it is applied; nothing when it is old.
    fn newer(&self, id: &str, record: &LogRecord) -> Option<LogRecord> {
        let last = self.records.get(id).filter(|last| last.place == record.place);
        let is_old = |last: &LogRecord| record.offset <= last.offset && record.timestamp <= last.timestamp;
        match last {
            Some(last) if is_old(last) => None,
            Some(last) => Some(LogRecord { timestamp: record.timestamp.max(last.timestamp), ..record.clone() }),
            None => Some(record.clone()),
        }
    }

    /// Lets go of the oldest to keep to both bounds. Who is not remembered loses its record.
    pub fn remember(&mut self, ids: &[&str], cancelled: bool, now: u64, memory: Memory) {
        if ids.is_empty() {
            return;
        }
        let mut ordered: Vec<_> = self.remembered.iter().map(|(id, ended)| (*ended, id.clone())).collect();
        ordered.sort();
        let fresh = if memory.keep > 0 { ids.len().min(memory.max) } else { 0 };
        let too_old = ordered.iter().filter(|((at, _), _)| at + memory.keep < now).count();
        let too_many = (ordered.len() + fresh).saturating_sub(memory.max);
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

    fn schedule_one(&mut self, message: &NewMessage, now: u64, memory: Memory) -> (ScheduleStatus, u64) {
        let id = message.id.as_str();
        let record = message.record.as_ref().map(|record| self.newer(id, record));
        if record == Some(None) {
            return (ScheduleStatus::Known, 0);
        }
        if let Some((ending, at)) = self.ended(id, now, memory.keep)
            && record.is_none()
        {
            return (ScheduleStatus::Ended(ending), at);
        }
        let state = self.state(id);
        let status = match (state, message.on_conflict) {
            (None, _) => ScheduleStatus::Scheduled,
            (Some(State::Pending), OnConflict::Keep) => {
                return (ScheduleStatus::Exists(State::Pending), self.pending[id]);
            }
            (Some(state), OnConflict::Keep) => return (ScheduleStatus::Exists(state), self.original_due(id)),
            (Some(State::Unack), OnConflict::Replace) => return (ScheduleStatus::InFlight, self.original_due(id)),
            (Some(State::Dead), OnConflict::Replace) => ScheduleStatus::Revived,
            (Some(State::Pending), OnConflict::Replace) => ScheduleStatus::Replaced,
        };
        let due = at(message.due, now);
        let body = StoredMessage {
            due: millis(due),
            accepted: millis(now),
            metadata: message.metadata.clone(),
            payload: message.payload.clone(),
        };
        let body = codec::encode(&body);
        if let Some(limit) = self.limit_of(id, body.len() as u64, due.saturating_sub(now), memory.limits) {
            return (ScheduleStatus::Over(limit), due);
        }
        self.forget(id);
        self.remembered.remove(id);
        if let Some(record) = record.flatten() {
            self.records.insert(id.to_owned(), record);
        }
        self.bodies.insert(id.to_owned(), body);
        self.pending.insert(id.to_owned(), due);
        self.bytes = self.held_bytes();
        (status, due)
    }

    /// The limit that a body for `id` would exceed.
    fn limit_of(&self, id: &str, size: u64, delay: u64, limits: RouteLimits) -> Option<Limit> {
        let RouteLimits { messages, bytes, delay: longest } = limits;
        let is_pending = self.pending.contains_key(id);
        let old = if is_pending { self.bodies[id].len() as u64 } else { 0 };
        if longest.is_some_and(|longest| u128::from(delay) > longest.as_millis()) {
            Some(Limit::Delay)
        } else if !is_pending && messages.is_some_and(|most| (self.pending.len() + self.unack.len()) as u64 >= most) {
            Some(Limit::Messages)
        } else if size > old && bytes.is_some_and(|most| self.held_bytes() - old + size > most) {
            Some(Limit::Bytes)
        } else {
            None
        }
    }

    pub fn purge_pending(
        &mut self,
        ids: Option<&[MessageId]>,
        limit: u64,
        dry: bool,
        now: u64,
        memory: Memory,
    ) -> (u64, u64) {
        let wanted: Vec<String> = match ids {
            None => self.ordered(State::Pending).into_iter().map(|(_, id)| id).collect(),
            Some(ids) => {
                let mut named: Vec<String> = Vec::new();
                for id in ids.iter().map(ToString::to_string) {
                    if self.pending.contains_key(&id) && !named.contains(&id) {
                        named.push(id);
                    }
                }
                named
            }
        };
        let (taken, rest) = wanted.split_at(wanted.len().min(usize::try_from(limit).expect("small")));
        if !dry {
            for id in taken {
                self.forget(id);
            }
            self.remember(&taken.iter().map(String::as_str).collect::<Vec<_>>(), true, now, memory);
        }
        (taken.len() as u64, rest.len() as u64)
    }

    pub fn evict(&mut self, most: u64) -> Evicted {
        let ordered = self.ordered(State::Dead);
        let beyond = (ordered.len() as u64).saturating_sub(most);
        for (_, id) in ordered.iter().take(usize::try_from(beyond).expect("small")) {
            self.forget(id);
            self.records.remove(id);
        }
        Evicted { aged: 0, beyond, more: false, next: None }
    }

    pub fn inter(&mut self, batch: &[NewMessage], now: u64) -> Vec<bool> {
        let mut inter = |message: &NewMessage| {
            let id = message.id.to_string();
            if self.state(&id).is_some() {
                return false;
            }
            let (at, metadata) = (millis(now), message.metadata.clone());
            let body = StoredMessage { due: at, accepted: at, metadata, payload: message.payload.clone() };
            self.bodies.insert(id.clone(), codec::encode(&body));
            self.errors.insert(id.clone(), "invalid: odd".into());
            self.remembered.remove(&id);
            self.dead.insert(id, now);
            true
        };
        batch.iter().map(&mut inter).collect()
    }

    /// Leases up to `until` (us) have expired.
    pub fn recover(&mut self, until: u64, now: u64) -> Recovered {
        let mut recovered = Recovered::default();
        for (deadline, id) in self.ordered(State::Unack) {
            if deadline > until {
                continue;
            }
            self.unack.remove(&id);
            recovered.expired += 1;
            let crashes = self.attempts.get(&id).map_or(0, |counts| counts.1) + 1;
            self.attempts.insert(id.clone(), (self.failures(&id), crashes));
            if crashes < MAX_CRASHES {
                self.pending.insert(id, deadline / 1000);
            } else {
                recovered.dead += 1;
                self.errors.insert(id.clone(), format!("crash: {crashes} leases expired, the last ones alone"));
                self.dead.insert(id, now);
            }
        }
        self.bytes = self.held_bytes();
        recovered
    }

    /// Ends the claim when the lease is the current one.
    pub fn end_claim(&mut self, lease: &Lease) -> Settled {
        if self.unack.get(lease.id.as_str()) == Some(&lease.token.0) {
            self.unack.remove(lease.id.as_str());
            Settled::Done
        } else {
            Settled::Stale
        }
    }

    /// What `remember` is to do for an acknowledged one is not done yet. Whoever settles lives: crashes are forgotten, by a
    /// stale lease too.
    pub fn settle(&mut self, settlement: &Settlement, now: u64) -> Settled {
        let (id, settled) = (settlement.lease.id.to_string(), self.end_claim(&settlement.lease));
        let failures = self.failures(&id);
        self.count(&id, failures);
        if settled == Settled::Stale {
            return settled;
        }
        let millis = |delay: Duration| u64::try_from(delay.as_millis()).expect("a delay of the test");
        match &settlement.end {
            End::Ack => self.forget(&id),
            End::Retry { delay, error } => {
                self.count(&id, failures + 1);
                self.errors.insert(id.clone(), error.clone());
                self.pending.insert(id, now + millis(*delay));
            }
            End::Bury { reason, error } => {
                let attempted = matches!(reason, DeadReason::Rejected | DeadReason::Attempts);
                self.count(&id, failures + u32::from(attempted));
                self.errors.insert(id.clone(), format!("{}: {error}", reason.as_str()));
                self.dead.insert(id, now);
            }
            End::Release { at } => drop(self.pending.insert(id, at.get())),
            End::Defer { pause } => drop(self.pending.insert(id, now + millis(*pause))),
        }
        self.bytes = self.held_bytes();
        settled
    }

    pub fn cancel(&mut self, cancellation: &Cancellation, now: u64, memory: Memory) -> Cancelled {
        let Cancellation { id, record, unseen } = cancellation;
        let id = id.as_str();
        let record = record.as_ref().map(|record| self.newer(id, record));
        if record == Some(None) {
            return Cancelled::Known;
        }
        let cancelled = match self.state(id) {
            None if record.is_some() && *unseen && memory.keep > 0 => Cancelled::NotFound,
            None => return Cancelled::NotFound,
            Some(State::Unack) => return Cancelled::InFlight,
            Some(State::Pending) => Cancelled::Cancelled,
            Some(State::Dead) => Cancelled::Purged,
        };
        self.forget(id);
        match record.flatten() {
            None if cancelled == Cancelled::Purged => drop(self.records.remove(id)),
            None => self.remember(&[id], true, now, memory),
            Some(record) => {
                self.remember(&[id], true, now, memory);
                if memory.keep > 0 {
                    self.records.insert(id.to_owned(), record);
                }
            }
        }
        cancelled
    }

    pub fn reschedule(&mut self, id: &str, due: Due, now: u64, memory: Memory) -> Rescheduled {
        let due = at(due, now);
        match self.state(id) {
            None => return Rescheduled::NotFound,
            Some(State::Unack) => return Rescheduled::InFlight,
            Some(State::Dead) => return Rescheduled::Dead,
            Some(State::Pending) => {}
        }
        let longest = memory.limits.delay;
        if longest.is_some_and(|longest| u128::from(due.saturating_sub(now)) > longest.as_millis()) {
            return Rescheduled::Over(Limit::Delay);
        }
        self.set_times(id, due, now);
        self.pending.insert(id.to_owned(), due);
        Rescheduled::Done(millis(due))
    }

    pub fn redrive(&mut self, ids: Option<&[MessageId]>, now: u64) -> u64 {
        let ids = self.dead_ones(ids);
        for id in &ids {
            self.dead.remove(id);
            self.attempts.remove(id);
            self.errors.remove(id);
            self.set_times(id, now, now);
            self.pending.insert(id.clone(), now);
        }
        self.bytes = self.held_bytes();
        ids.len() as u64
    }

    pub fn purge(&mut self, ids: Option<&[MessageId]>) -> u64 {
        let ids = self.dead_ones(ids);
        for id in &ids {
            self.forget(id);
            self.records.remove(id);
        }
        ids.len() as u64
    }

    fn dead_ones(&self, ids: Option<&[MessageId]>) -> Vec<String> {
        let named = |id: &&String| ids.is_none_or(|ids| ids.iter().any(|one| one.as_str() == id.as_str()));
        self.dead.keys().filter(named).cloned().collect()
    }

    fn set_times(&mut self, id: &str, due: u64, accepted: u64) {
        let mut message = codec::decode(&self.bodies[id]).expect("the model encoded it");
        (message.due, message.accepted) = (millis(due), millis(accepted));
        self.bodies.insert(id.to_owned(), codec::encode(&message));
    }

    /// A settled claim was no crash.
    fn count(&mut self, id: &str, failures: u32) {
        if failures > 0 {
            self.attempts.insert(id.to_owned(), (failures, 0));
        } else {
            self.attempts.remove(id);
        }
    }

    pub fn forget(&mut self, id: &str) {
        for set in [&mut self.pending, &mut self.unack, &mut self.dead] {
            set.remove(id);
        }
        self.bodies.remove(id);
        self.bytes = self.held_bytes();
        self.attempts.remove(id);
        self.errors.remove(id);
    }
}

fn at(due: Due, now: u64) -> u64 {
    match due {
        Due::After(delay) => now + delay,
        Due::At(at) => at.get(),
    }
}

fn millis(value: u64) -> UnixMillis {
    UnixMillis::new(value).expect("below 2^53")
}
