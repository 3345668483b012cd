//! Recurring schedules (lua/include/recurring.lua, lua/define.lua).

use super::{
    definition::MemorySchedule,
    partition::{MemoryPartition, PartitionSettings, TIMES_END},
};
use crate::{
    message::{MessageId, codec},
    store::{NEVER, NextOccurrence, PARKED, Planned, ScheduleChange, ScheduleDefinition, ScheduleOwner},
};

const MAX_RUNS: usize = 20;

fn is_schedule(id: &str) -> bool {
    id.ends_with('@')
}

impl MemoryPartition {
    pub(super) fn recurs(id: &MessageId) -> bool {
        is_schedule(id.as_str())
    }

    /// The occurrence in a body, and when it was planned.
    fn occurrence(&self, id: &str) -> (u64, u64) {
        let number = |at: usize| {
            let body = self.bodies.get(id).filter(|body| body.len() >= TIMES_END);
            body.map_or(0, |body| u64::from_be_bytes(body[at..at + 8].try_into().expect("eight bytes")))
        };
        (number(1), number(9))
    }

    /// Returns a schedule to `pending` after a claim. `now` in milliseconds. Without `plan` its occurrence is over, in
    /// the way that `kind` names. Returns false if it was deleted.
    pub(super) fn recur(&mut self, id: &str, now: u64, kind: char, plan: Option<&Planned>, flows: bool) -> bool {
        let Some(mut one) = self.schedules.get(id).cloned() else { return false };
        let (mut due, mut planned) = self.occurrence(id);
        if due == 0 {
            due = now;
        }
        let run = match plan {
            None => Some(format!("{kind}{due}+{}", now.saturating_sub(due))),
            Some(plan) => (plan.missed > 0).then(|| format!("m{now}+{}", plan.missed)),
        };
        let mut score = now;
        match plan {
            None => (due, planned) = (due.max(one.since), 0),
            Some(plan) if plan.revision == one.revision => {
                planned = now;
                (due, score) = plan.occurrence.map_or((NEVER, NEVER), |occurrence| (occurrence.get(), plan.at.get()));
            }
            Some(_) if one.since > 0 => (due, planned) = (one.since, 0),
            Some(_) => {}
        }
        one.since = 0;
        if one.is_paused {
            score = NEVER;
        }
        if let Some(run) = run {
            one.runs.insert(0, run);
            one.runs.truncate(MAX_RUNS);
        }
        let before = self.size(id);
        self.bodies.insert(id.to_owned(), one.body(due, planned));
        self.bytes = (self.bytes + self.size(id)).saturating_sub(before);
        self.attempts.remove(id);
        self.errors.remove(id);
        self.tries.remove(id);
        self.pending.insert(id, score);
        if flows {
            self.number_flows(&[(id.to_owned(), one.flow.clone())], planned == 0);
        }
        self.schedules.insert(id.to_owned(), one);
        true
    }

    /// Whether its occurrence was sent, or an instance has it.
    fn is_busy(&self, id: &str) -> bool {
        self.unack.contains(id) || (self.pending.contains(id) && self.attempts.contains_key(id))
    }

    /// Takes the message of a schedule out of `pending`.
    fn leave(&mut self, id: &str, now: u64, settings: PartitionSettings) {
        if let Some(score) = self.pending.get(id) {
            if settings.flow.is_some() {
                self.depart(&[(id, score)], now);
            }
            self.pending.remove(id);
        }
    }

    fn wait(&mut self, id: &str, score: u64, now: u64, settings: PartitionSettings) {
        self.leave(id, now, settings);
        if settings.flow.is_some() {
            let is_unplanned = self.occurrence(id).1 == 0;
            self.number_flows(&[(id.to_owned(), self.schedules[id].flow.clone())], is_unplanned);
        }
        self.pending.insert(id, score);
    }

    /// `now` in microseconds.
    pub fn set_schedule(
        &mut self,
        definition: &ScheduleDefinition,
        replaces: Option<&str>,
        next: NextOccurrence,
        now: u64,
        settings: PartitionSettings,
    ) -> ScheduleChange {
        let (id, now) = (definition.id.as_str(), now / 1000);
        let was = self.schedules.get(id).cloned();
        if let Some(refused) = was.as_ref().and_then(|was| refused(was.owner, definition.owner)) {
            return refused;
        }
        let revision = definition.metadata.recurring.as_ref().map_or("", |recurring| &recurring.revision).to_owned();
        let is_live = self.pending.contains(id) || self.unack.contains(id);
        let change = match &was {
            Some(was) if was.revision == revision && is_live => ScheduleChange::Unchanged,
            was if was.as_ref().map(|was| was.revision.as_str()) != replaces => return ScheduleChange::Conflict,
            Some(_) => ScheduleChange::Changed,
            None => ScheduleChange::Created,
        };
        let one = MemorySchedule {
            revision,
            is_paused: was.as_ref().is_some_and(|was| was.is_paused),
            owner: definition.owner,
            flow: definition.metadata.flow.clone().unwrap_or_default(),
            since: match &was {
                Some(was) if next == NextOccurrence::Kept || change == ScheduleChange::Unchanged => was.since,
                _ if self.is_busy(id) => now,
                _ => 0,
            },
            runs: was.map(|was| was.runs).unwrap_or_default(),
            tail: codec::tail(&definition.metadata, &definition.payload),
        };
        self.schedules.insert(id.to_owned(), one.clone());
        if change != ScheduleChange::Unchanged && !self.is_busy(id) {
            let waits = self.pending.get(id);
            let (mut due, mut planned) = self.occurrence(id);
            let mut score = waits.map(|score| score % PARKED);
            if next != NextOccurrence::Kept || waits.is_none() {
                (due, planned, score) = match next {
                    NextOccurrence::Kept => (now, 0, Some(now)),
                    NextOccurrence::At { occurrence, at } => (occurrence.get(), now, Some(at.get())),
                };
                // The last occurrence that was sent.
                let sent =
                    one.runs.iter().filter_map(|run| run.strip_prefix(['d', 'x'])?.split_once('+')?.0.parse().ok());
                if let Some(last) = sent.take(1).find(|last| due <= *last) {
                    (due, planned, score) = (last, 0, Some(now));
                }
                score = score.map(|score| if one.is_paused { NEVER } else { score });
            }
            let before = if waits.is_some() { self.size(id) } else { 0 };
            self.bodies.insert(id.to_owned(), one.body(due, planned));
            self.bytes = (self.bytes + self.size(id)).saturating_sub(before);
            self.errors.remove(id);
            self.tries.remove(id);
            self.dead.remove(id);
            self.remembered.remove(id);
            if let Some(score) = score
                && (settings.flow.is_some() || waits != Some(score))
            {
                self.wait(id, score, now, settings);
            }
        }
        change
    }

    /// `now` in microseconds.
    pub fn delete_schedule(
        &mut self,
        id: &MessageId,
        owner: ScheduleOwner,
        now: u64,
        settings: PartitionSettings,
    ) -> ScheduleChange {
        let id = id.as_str();
        let Some(was) = self.schedules.get(id) else { return ScheduleChange::Absent };
        if let Some(refused) = refused(was.owner, owner) {
            return refused;
        }
        self.schedules.remove(id);
        if !self.is_busy(id) {
            self.leave(id, now / 1000, settings);
            let before = self.size(id);
            self.bytes = self.bytes.saturating_sub(before);
            self.bodies.remove(id);
            self.attempts.remove(id);
            self.errors.remove(id);
            self.tries.remove(id);
            self.flow.flows.remove(id);
        }
        ScheduleChange::Deleted
    }

    /// `now` in microseconds.
    pub fn pause_schedule(
        &mut self,
        id: &MessageId,
        pause: bool,
        now: u64,
        settings: PartitionSettings,
    ) -> ScheduleChange {
        let (id, now) = (id.as_str(), now / 1000);
        let Some(one) = self.schedules.get_mut(id) else { return ScheduleChange::Absent };
        if one.is_paused == pause {
            return ScheduleChange::Unchanged;
        }
        one.is_paused = pause;
        if !self.is_busy(id) {
            let (due, planned) = self.occurrence(id);
            let resumed = if planned == 0 { now } else { due };
            self.wait(id, if pause { NEVER } else { resumed }, now, settings);
        }
        ScheduleChange::Changed
    }
}

/// Why the owner of a change cannot make it.
fn refused(of: ScheduleOwner, by: ScheduleOwner) -> Option<ScheduleChange> {
    match (of, by) {
        (ScheduleOwner::File { .. }, ScheduleOwner::Api) => Some(ScheduleChange::Managed),
        (ScheduleOwner::File { revision: stored }, ScheduleOwner::File { revision }) if revision < stored => {
            Some(ScheduleChange::Older)
        }
        _ => None,
    }
}
