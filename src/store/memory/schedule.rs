//! Scheduling, and operations on messages by id or group (lua/schedule.lua, lua/cancel.lua and others).

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    partition::{MemoryPartition, PartitionSettings, TIMES_END, stored, unix_millis},
    sorted_set::SortedSet,
};
use crate::{
    message::{
        Cancellation, EndOutcome, Limit, LogRecord, MessageId, NewMessage, OnConflict, RouteLimits, State,
        StoredMessage, codec,
    },
    store::{Cancelled, Filter, NewDue, PARKED, Rescheduled, ScheduleStatus, Scheduled, redis::CancelledGroup},
    time::{Due, MAX_DELAY_MILLIS, UnixMillis},
};

impl MemoryPartition {
    pub fn schedule(&mut self, batch: &[NewMessage], now: u64, settings: PartitionSettings) -> Vec<Scheduled> {
        let before = settings.flow.map(|_| (self.pending.clone(), self.flow.flows.clone()));
        let mut ends = Vec::new();
        let mut schedule = |message: &NewMessage| {
            let end = self.end_of(message.id.as_str(), EndOutcome::Replaced, None);
            let (status, due) = self.schedule_one(message, now, settings, codec::encode);
            ends.extend((status == ScheduleStatus::Replaced).then_some(end));
            Scheduled { id: message.id.clone(), due: unix_millis(due), status }
        };
        let scheduled: Vec<_> = batch.iter().map(&mut schedule).collect();
        self.keep_ends(ends, now, settings);
        if let Some((pending, flows)) = before {
            let written = |one: &(&NewMessage, &Scheduled)| is_written(one.1.status);
            let written: Vec<_> = batch.iter().zip(&scheduled).filter(written).map(|(message, _)| message).collect();
            self.enter_flows(&written, &pending, flows, now / 1000);
        }
        scheduled
    }

    /// Schedules a message as lua/produce.lua does.
    /// An empty key or content type is none.
    pub fn produce(&mut self, message: &NewMessage, now: u64, settings: PartitionSettings) -> Scheduled {
        let mut message = message.clone();
        for text in [&mut message.metadata.key, &mut message.metadata.content_type] {
            text.take_if(|text| text.is_empty());
        }
        let before = settings.flow.map(|_| (self.pending.clone(), self.flow.flows.clone()));
        let end = self.end_of(message.id.as_str(), EndOutcome::Replaced, None);
        let (status, due) = self.schedule_one(&message, now, settings, codec::encode_first);
        if status == ScheduleStatus::Replaced {
            self.keep_ends(vec![end], now, settings);
        }
        if let Some((pending, flows)) = before.filter(|_| is_written(status)) {
            self.enter_flows(&[&message], &pending, flows, now / 1000);
        }
        Scheduled { id: message.id.clone(), due: unix_millis(due), status }
    }

    /// Numbers written messages. Those that were in `pending` before, with their values in `flows`, gave up their places.
    fn enter_flows(&mut self, written: &[&NewMessage], pending: &SortedSet, flows: BTreeMap<String, String>, now: u64) {
        let mut replaced: Vec<(&str, u64)> = Vec::new();
        for message in written {
            let id = message.id.as_str();
            if let Some(score) = pending.get(id).filter(|_| replaced.iter().all(|(known, _)| *known != id)) {
                replaced.push((id, score));
            }
        }
        self.flow.flows = flows;
        self.depart(&replaced, now);
        let flow = |message: &&NewMessage| message.metadata.flow.clone().unwrap_or_default();
        let named: Vec<_> = written.iter().map(|message| (message.id.to_string(), flow(message))).collect();
        self.number_flows(&named, false);
    }

    fn schedule_one(
        &mut self,
        message: &NewMessage,
        now: u64,
        settings: PartitionSettings,
        encode: fn(&StoredMessage) -> Bytes,
    ) -> (ScheduleStatus, u64) {
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
                let score = self.pending[id];
                let due = if score >= PARKED { score - PARKED } else { score };
                return (ScheduleStatus::Exists(State::Pending), due);
            }
            (Some(state), OnConflict::Keep) => return (ScheduleStatus::Exists(state), self.original_due(id)),
            (Some(State::Unack), OnConflict::Replace) => return (ScheduleStatus::InFlight, self.original_due(id)),
            (Some(State::Dead), OnConflict::Replace) => ScheduleStatus::Revived,
            (Some(State::Pending), OnConflict::Replace) => ScheduleStatus::Replaced,
        };
        let now = now / 1000;
        let (due, first) = self.debounced(id, due_at(message.due, now), message.debounce, now);
        let body = encode(&stored(message, due, first));
        if let Some(limit) = self.limit_of(id, body.len() as u64, due.saturating_sub(now), settings.limits) {
            return (ScheduleStatus::Over(limit), due);
        }
        self.delete(id);
        self.remembered.remove(id);
        if let Some(record) = record.flatten() {
            self.records.insert(id.to_owned(), record);
        }
        self.bytes += body.len() as u64;
        self.bodies.insert(id.to_owned(), body);
        self.pending.insert(id, due);
        self.join_group(id, message);
        (status, due)
    }

    /// The due time of a message, and the time of the first acceptance of those that it replaces, one after another.
    fn debounced(&self, id: &str, due: u64, debounce: Option<u64>, now: u64) -> (u64, u64) {
        let Some(max) = debounce else { return (due, now) };
        let Some(score) = self.pending.get(id) else { return (due.min(now + max), now) };
        let (old_due, first) = match self.bodies.get(id).filter(|body| body.len() >= TIMES_END) {
            Some(body) => (self.original_due(id), codec::accepted(body).unwrap_or(now)),
            None => (now, now),
        };
        // After a failed or deferred attempt the score is the time of the next one.
        let next = if score >= PARKED { score - PARKED } else { score };
        let last = if next == old_due { first + max } else { next.max(first + max) };
        (due.min(last), first)
    }

    pub(super) fn join_group(&mut self, id: &str, message: &NewMessage) {
        if let Some(group) = &message.metadata.group {
            self.groups.insert(id.to_owned(), group.clone());
        }
    }

    /// The limit that message `id`, with a body of `size` bytes and due in `delay` milliseconds, would exceed.
    fn limit_of(&self, id: &str, size: u64, delay: u64, limits: RouteLimits) -> Option<Limit> {
        let is_pending = self.pending.contains(id);
        let old = if is_pending { self.size(id) } else { 0 };
        let count = (self.pending.len() + self.unack.len()) as u64;
        if is_longer(delay, limits) {
            Some(Limit::Delay)
        } else if !is_pending && limits.messages.is_some_and(|most| count >= most) {
            Some(Limit::Messages)
        } else if size > old && limits.bytes.is_some_and(|most| self.bytes - old + size > most) {
            Some(Limit::Bytes)
        } else {
            None
        }
    }

    /// The record to store once `record` is applied; `None` if `record` is old.
    fn newer(&self, id: &str, record: &LogRecord) -> Option<LogRecord> {
        let last = self.records.get(id).filter(|last| last.place == record.place);
        let is_old = |last: &LogRecord| record.offset <= last.offset && record.timestamp <= last.timestamp;
        match last {
            Some(last) if is_old(last) => None,
            Some(last) => Some(record.clone().after(last)),
            None => Some(record.clone()),
        }
    }

    pub fn cancel(&mut self, cancellation: &Cancellation, now: u64, settings: PartitionSettings) -> Cancelled {
        let Cancellation { id, record, unseen, keep_dead, by } = cancellation;
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
            Some(State::Dead) if *keep_dead => return Cancelled::Dead,
            Some(State::Dead) => Cancelled::Purged,
        };
        if let Some(score) = self.pending.get(id).filter(|_| settings.flow.is_some()) {
            self.depart(&[(id, score)], now / 1000);
        }
        if cancelled == Cancelled::Cancelled {
            self.keep_ends(vec![self.end_of(id, EndOutcome::Cancelled, by.as_deref())], now, settings);
        }
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

    /// `only`: the group that the message must have, and the time before which it must have been accepted or moved last.
    pub fn reschedule(
        &mut self,
        id: &MessageId,
        due: NewDue,
        only: Option<(&str, UnixMillis)>,
        now: u64,
        settings: PartitionSettings,
    ) -> Rescheduled {
        let (id, now) = (id.as_str(), now / 1000);
        if only.is_some_and(|(group, _)| self.groups.get(id).is_none_or(|own| own != group)) {
            return Rescheduled::NotFound;
        }
        match self.state(id) {
            Some(State::Unack) => return Rescheduled::InFlight,
            Some(State::Dead) => return Rescheduled::Dead,
            Some(State::Pending) if self.bodies.contains_key(id) => {}
            // A message without a body is an orphan, which the next claim makes dead.
            _ => return Rescheduled::NotFound,
        }
        let accepted = codec::accepted(&self.bodies[id]);
        if only.is_some_and(|(_, before)| accepted.is_some_and(|accepted| accepted >= before.get())) {
            return Rescheduled::Later;
        }
        let (at_once, score) = (due == NewDue::Now, self.pending[id]);
        let due = match due {
            NewDue::Now => now,
            NewDue::At(due) => due_at(due, now),
            NewDue::By(millis) => (score % PARKED).saturating_add_signed(millis).min(now + MAX_DELAY_MILLIS),
        };
        if is_longer(due.saturating_sub(now), settings.limits) {
            return Rescheduled::Over(Limit::Delay);
        }
        let expires = self.bodies.get(id).and_then(|body| codec::decode(body).ok()?.metadata.expires_at);
        if let Some(at) = expires.filter(|at| *at < due.max(now)) {
            return Rescheduled::Expires(unix_millis(at));
        }
        if let Some(flow) = settings.flow {
            let first = (at_once && flow.ordered).then(|| self.first_of_flow(id, now)).flatten();
            if let Some(first) = first {
                return Rescheduled::Held(MessageId::stored(&first).expect("only ids are stored"));
            }
            let name = self.name_of_flow(id);
            self.depart(&[(id, self.pending[id])], now);
            self.number_flows(&[(id.to_owned(), name)], at_once);
        }
        let earliest = only.map_or(0, |(_, before)| before.get());
        self.set_times(id, due, now.max(earliest));
        self.pending.insert(id, due);
        Rescheduled::Done(unix_millis(due))
    }

    /// Whether `filter` selects the message with this score.
    pub fn matches(&self, filter: &Filter, id: &str, score: u64) -> bool {
        let Filter { reason, contains, since, until, retried, flow, group, .. } = filter;
        let (failures, error) = self.errors.get(id).map_or((0, ""), |(_, failures, error)| (*failures, error));
        since.is_none_or(|since| score >= since.get())
            && until.is_none_or(|until| score < until.get())
            && reason
                .is_none_or(|reason| error.strip_prefix(reason.as_str()).is_some_and(|rest| rest.starts_with(": ")))
            && contains.as_deref().is_none_or(|text| error.contains(text))
            && (!retried || failures > 0)
            && flow.as_deref().is_none_or(|flow| self.flow_of(id).0 == flow)
            && group.as_ref().is_none_or(|group| self.groups.get(id) == Some(group))
            && filter.takes(self.bodies.get(id).and_then(|body| codec::decode(body).ok()).as_ref())
    }

    /// Cancels pending messages: the named ones, or those due first; at most `limit`. `dry_run` only counts them.
    /// Returns the number of cancelled messages, and the number of those that remain.
    pub fn purge_pending(
        &mut self,
        ids: Option<&[MessageId]>,
        limit: u64,
        (dry_run, by): (bool, Option<&str>),
        now: u64,
        settings: PartitionSettings,
    ) -> (u64, u64) {
        let (waiting, mut wanted) = (self.pending.len(), Vec::<String>::new());
        match ids {
            None => {
                let of_users = self.pending.iter().filter(|(id, _)| !id.ends_with('@'));
                wanted.extend(of_users.map(|(id, _)| id.to_owned()));
            }
            Some(ids) => {
                for id in ids.iter().map(MessageId::as_str).filter(|id| self.pending.contains(id)) {
                    if !wanted.iter().any(|known| known == id) {
                        wanted.push(id.to_owned());
                    }
                }
            }
        }
        let (taken, rest) = wanted.split_at(wanted.len().min(usize::try_from(limit).unwrap_or(usize::MAX)));
        if !dry_run {
            let leaving: Vec<_> = taken.iter().map(|id| (id.as_str(), self.pending[id.as_str()])).collect();
            if settings.flow.is_some() {
                self.depart(&leaving, now / 1000);
            }
            let ends = taken.iter().map(|id| self.end_of(id, EndOutcome::Cancelled, by)).collect();
            self.keep_ends(ends, now, settings);
            for id in taken {
                self.delete(id);
            }
            self.remember(&taken.iter().map(String::as_str).collect::<Vec<_>>(), true, now, settings);
        }
        let (mut count, mut left) = (taken.len() as u64, rest.len() as u64);
        if ids.is_none() {
            // As the script estimates it.
            let waiting = (waiting as u64).saturating_sub(self.schedules.len() as u64);
            left = waiting.saturating_sub(limit);
            count = if dry_run { waiting.min(limit) } else { count };
            if !dry_run && count < limit {
                left = 0;
            }
        }
        (count, left)
    }

    /// Cancels the pending messages among the first `most` of a group after an id.
    pub fn cancel_group(
        &mut self,
        group: &str,
        after: &str,
        (most, by): (usize, Option<&str>),
        now: u64,
        settings: PartitionSettings,
    ) -> CancelledGroup {
        let ids: Vec<_> = self.ids_of_group(group, after).into_iter().take(most).collect();
        let of_state = |state| ids.iter().filter(|id| self.state(id.as_str()) == Some(state)).cloned().collect();
        let (pending, in_flight): (Vec<_>, Vec<_>) = (of_state(State::Pending), of_state(State::Unack));
        let reached = ids.get(most - 1).cloned();
        let (count, _) = self.purge_pending(Some(&pending), u64::MAX, (false, by), now, settings);
        CancelledGroup { count, in_flight, reached }
    }

    /// The ids of a group after an id, in order.
    pub fn ids_of_group(&self, group: &str, after: &str) -> Vec<MessageId> {
        let of_group = self.groups.iter().filter(|(id, own)| *own == group && id.as_str() > after);
        of_group.map(|(id, _)| MessageId::stored(id).expect("only ids are stored")).collect()
    }

    /// Writes both times into a body. The marker of a lost body has no times.
    pub(super) fn set_times(&mut self, id: &str, due: u64, accepted: u64) {
        let body = self.bodies.get(id).cloned().unwrap_or(Bytes::from_static(b"\0"));
        let body = if body.len() < TIMES_END {
            body
        } else {
            [&body[..1], &due.to_be_bytes(), &accepted.to_be_bytes(), &body[TIMES_END..]].concat().into()
        };
        self.bodies.insert(id.to_owned(), body);
    }
}

fn is_written(status: ScheduleStatus) -> bool {
    matches!(status, ScheduleStatus::Scheduled | ScheduleStatus::Replaced | ScheduleStatus::Revived)
}

/// Whether a delay in milliseconds exceeds the route's limit.
fn is_longer(delay: u64, limits: RouteLimits) -> bool {
    limits.delay.is_some_and(|longest| u128::from(delay) > longest.as_millis())
}

fn due_at(due: Due, now: u64) -> u64 {
    match due {
        Due::After(delay) => now + delay,
        Due::At(at) => at.get(),
    }
}
