//! What scheduling does, and what is done to messages by id (lua/schedule.lua, lua/cancel.lua, lua/redrive.lua and others).

use bytes::Bytes;

use super::partition::{MemoryPartition, PartitionSettings, TIMES_END, encode, unix_millis};
use crate::{
    message::{Cancellation, DeadReason, LogRecord, MessageId, NewMessage, OnConflict, State},
    store::{Cancelled, Rescheduled, ScheduleStatus, Scheduled},
    time::Due,
};

impl MemoryPartition {
    pub fn schedule(&mut self, batch: &[NewMessage], now: u64, settings: PartitionSettings) -> Vec<Scheduled> {
        let mut schedule = |message: &NewMessage| {
            let (status, due) = self.schedule_one(message, now, settings);
            Scheduled { id: message.id.clone(), due: unix_millis(due), status }
        };
        batch.iter().map(&mut schedule).collect()
    }

    fn schedule_one(&mut self, message: &NewMessage, now: u64, settings: PartitionSettings) -> (ScheduleStatus, u64) {
        let id = message.id.as_str();
        let record = message.record.as_ref().map(|record| self.newer(id, record));
        if record == Some(None) {
            return (ScheduleStatus::Known, 0);
        }
        if let Some((ending, at)) = self.ended(id, now, settings)
            && record.is_none()
        {
            return (ScheduleStatus::Ended(ending), at);
        }
        let status = match (self.state(id), message.on_conflict) {
            (None, _) => ScheduleStatus::Scheduled,
            (Some(State::Pending), OnConflict::Keep) => {
                return (ScheduleStatus::Exists(State::Pending), self.pending[id]);
            }
            (Some(state), OnConflict::Keep) => return (ScheduleStatus::Exists(state), self.original_due(id)),
            (Some(State::Unack), OnConflict::Replace) => return (ScheduleStatus::InFlight, self.original_due(id)),
            (Some(State::Dead), OnConflict::Replace) => ScheduleStatus::Revived,
            (Some(State::Pending), OnConflict::Replace) => ScheduleStatus::Replaced,
        };
        self.delete(id);
        self.remembered.remove(id);
        if let Some(record) = record.flatten() {
            self.records.insert(id.to_owned(), record);
        }
        let now = now / 1000;
        let due = due_at(message.due, now);
        self.bodies.insert(id.to_owned(), encode(message, due, now));
        self.pending.insert(id, due);
        (status, due)
    }

    /// What is stored of `record` once it is applied; nothing when it is old.
    fn newer(&self, id: &str, record: &LogRecord) -> Option<LogRecord> {
        let last = self.records.get(id).filter(|last| last.place == record.place);
        let is_old = |last: &LogRecord| record.offset <= last.offset && record.timestamp <= last.timestamp;
        match last {
            Some(last) if is_old(last) => None,
            Some(last) => Some(record.clone().after(last)),
            None => Some(record.clone()),
        }
    }

    /// Adds messages that are dead from the start, each with its error; whether each was added: one whose id is live is
    /// not.
    pub fn bury(&mut self, batch: &[(NewMessage, String)], now: u64) -> Vec<bool> {
        let now = now / 1000;
        let mut bury = |(message, error): &(NewMessage, String)| {
            let id = message.id.as_str();
            if self.state(id).is_some() {
                return false;
            }
            self.bodies.insert(id.to_owned(), encode(message, now, now));
            self.errors.insert(id.to_owned(), format!("{}: {error}", DeadReason::Invalid.as_str()));
            self.remembered.remove(id);
            self.dead.insert(id, now);
            true
        };
        batch.iter().map(&mut bury).collect()
    }

    pub fn cancel(&mut self, cancellation: &Cancellation, now: u64, settings: PartitionSettings) -> Cancelled {
        let Cancellation { id, record, unseen } = cancellation;
        let id = id.as_str();
        let record = record.as_ref().map(|record| self.newer(id, record));
        if record == Some(None) {
            return Cancelled::Known;
        }
        let cancelled = match self.state(id) {
            None if record.is_some() && *unseen && settings.keep > 0 => Cancelled::NotFound,
            None => return Cancelled::NotFound,
            Some(State::Unack) => return Cancelled::InFlight,
            Some(State::Pending) => Cancelled::Cancelled,
            Some(State::Dead) => Cancelled::Purged,
        };
        self.delete(id);
        match record.flatten() {
            None if cancelled == Cancelled::Purged => drop(self.records.remove(id)),
            None => self.remember(&[id], true, now, settings),
            Some(record) => {
                self.remember(&[id], true, now, settings);
                if settings.keep > 0 {
                    self.records.insert(id.to_owned(), record);
                }
            }
        }
        cancelled
    }

    pub fn reschedule(&mut self, id: &MessageId, due: Due, now: u64) -> Rescheduled {
        let (id, now) = (id.as_str(), now / 1000);
        match self.state(id) {
            Some(State::Unack) => return Rescheduled::InFlight,
            Some(State::Dead) => return Rescheduled::Dead,
            Some(State::Pending) if self.bodies.contains_key(id) => {}
            // Without a body it is an orphan, which the next claim makes dead.
            _ => return Rescheduled::NotFound,
        }
        let due = due_at(due, now);
        self.set_times(id, due, now);
        self.pending.insert(id, due);
        Rescheduled::Done(unix_millis(due))
    }

    /// Makes dead messages due now: the named ones, or all. Returns how many.
    pub fn redrive(&mut self, ids: Option<&[MessageId]>, now: u64) -> u64 {
        let now = now / 1000;
        let ids = self.dead_ones(ids);
        for id in &ids {
            self.dead.remove(id);
            self.attempts.remove(id);
            self.errors.remove(id);
            self.set_times(id, now, now);
            self.pending.insert(id, now);
        }
        ids.len() as u64
    }

    /// Deletes dead messages: the named ones, or all. Returns how many.
    pub fn purge(&mut self, ids: Option<&[MessageId]>) -> u64 {
        let ids = self.dead_ones(ids);
        for id in &ids {
            self.delete(id);
            self.records.remove(id);
        }
        ids.len() as u64
    }

    fn dead_ones(&self, ids: Option<&[MessageId]>) -> Vec<String> {
        let named = |id: &str| ids.is_none_or(|ids| ids.iter().any(|one| one.as_str() == id));
        self.dead.iter().map(|(id, _)| id).filter(|id| named(id)).map(str::to_owned).collect()
    }

    /// Writes both times into a body. The marker of a lost one has none.
    fn set_times(&mut self, id: &str, due: u64, accepted: u64) {
        let body = self.bodies.get(id).cloned().unwrap_or(Bytes::from_static(b"\0"));
        let body = if body.len() < TIMES_END {
            body
        } else {
            [&body[..1], &due.to_be_bytes(), &accepted.to_be_bytes(), &body[TIMES_END..]].concat().into()
        };
        self.bodies.insert(id.to_owned(), body);
    }
}

fn due_at(due: Due, now: u64) -> u64 {
    match due {
        Due::After(delay) => now + delay,
        Due::At(at) => at.get(),
    }
}
