//! Dead letters: buried, redriven, purged, evicted, edited and forwarded (lua/bury.lua, lua/redrive.lua and others).

use bytes::Bytes;

use super::partition::{MemoryPartition, PartitionSettings, stored};
use crate::{
    message::{MessageId, NewMessage, OccurrenceMessage, Rate, State, codec},
    store::{DeadAction, DeadWork, Death, Edit, Edited, Expiry, Filter, Selection, redis::Evicted, revision},
};

/// A dead letter that is forwarded: id, time of death, body, failures, error.
type MemoryOutgoing = (String, u64, Bytes, u32, String);

impl MemoryPartition {
    /// Adds messages that are dead from the start, each with its error. Returns whether each was added: a message is
    /// not added if its id is live.
    pub fn bury(
        &mut self,
        death: Death,
        batch: &[(NewMessage, String)],
        now: u64,
        settings: PartitionSettings,
    ) -> Vec<bool> {
        let (micros, now, mut ends) = (now, now / 1000, Vec::new());
        let mut bury = |(message, error): &(NewMessage, String)| {
            let id = message.id.as_str();
            if self.state(id).is_some() {
                return false;
            }
            self.bodies.insert(id.to_owned(), codec::encode(&stored(message, now, now)));
            self.remembered.remove(id);
            self.bury_at(id, now, death.failures, format!("{}: {error}", death.reason.as_str()));
            ends.push(self.burial_of(id, death.failures, &format!("{}: {error}", death.reason.as_str())));
            self.join_group(id, message);
            true
        };
        let buried: Vec<_> = batch.iter().map(&mut bury).collect();
        self.keep_ends(ends, micros, settings);
        if settings.flow.is_some() {
            let named =
                batch.iter().zip(&buried).filter(|(_, buried)| **buried).map(|((message, _), _)| {
                    (message.id.to_string(), message.metadata.flow.clone().unwrap_or_default())
                });
            self.number_flows(&named.collect::<Vec<_>>(), false);
        }
        buried
    }

    /// Whether the live message with its id is this occurrence.
    pub fn has(&self, occurrence: &OccurrenceMessage) -> bool {
        let body = self.bodies.get(occurrence.id.as_str());
        body.and_then(|body| codec::decode(body).ok()).is_some_and(|stored| occurrence.is(&stored))
    }

    /// Redrives or purges selected dead messages, at most `limit`; `dry_run` only counts them. Returns their number,
    /// and whether selected messages remain.
    pub fn act_on_dead(&mut self, work: &DeadWork<'_>, now: u64, settings: PartitionSettings) -> (u64, bool) {
        let DeadWork { action, spread, selection, limit, dry_run, .. } = *work;
        let now = now / 1000;
        let mut selected: Vec<String> = Vec::new();
        match selection {
            Selection::Where(filter) => {
                let matching = self.dead.iter().filter(|(id, died)| self.matches(filter, id, *died) && *died <= now);
                selected.extend(matching.map(|(id, _)| id.to_owned()));
            }
            Selection::Ids { ids, until } => {
                let filter = Filter { until: *until, ..Filter::default() };
                for id in ids.iter().map(MessageId::as_str) {
                    let is_dead = self.dead.get(id).is_some_and(|died| self.matches(&filter, id, died));
                    if is_dead && !selected.iter().any(|known| known == id) {
                        selected.push(id.to_owned());
                    }
                }
            }
        }
        let (taken, rest) = selected.split_at(selected.len().min(usize::try_from(limit).unwrap_or(usize::MAX)));
        let first = spread.start.map_or(now, |start| start.get().max(now));
        for (n, id) in taken.iter().enumerate().filter(|_| !dry_run) {
            match action {
                DeadAction::Redrive(expiry) => {
                    let due = first + spread.rate.map_or(0, |rate| after(n, rate));
                    self.dead.remove(id);
                    self.errors.remove(id);
                    self.set_times(id, due, now);
                    self.set_expiry(id, expiry, due);
                    self.bytes += self.size(id);
                    self.pending.insert(id, due);
                }
                DeadAction::Purge => {
                    self.delete(id);
                    self.records.remove(id);
                }
                DeadAction::Forward if self.outbox.contains(id) => {}
                DeadAction::Forward => self.outbox.insert(id, now),
            }
        }
        if let (DeadAction::Redrive(_), false, Some(_)) = (action, dry_run, settings.flow) {
            self.number_again(taken);
        }
        (taken.len() as u64, !rest.is_empty())
    }

    /// Deletes the oldest dead messages beyond `most`, except those in the outbox.
    pub fn evict(&mut self, most: u64, settings: PartitionSettings) -> Evicted {
        let beyond = (self.dead.len() as u64).saturating_sub(most);
        let oldest = self.dead.iter().take(usize::try_from(beyond).unwrap_or(usize::MAX));
        let stays = |id: &str| settings.forwards && self.outbox.contains(id);
        let evicted: Vec<_> = oldest.map(|(id, _)| id.to_owned()).filter(|id| !stays(id)).collect();
        for id in &evicted {
            self.delete(id);
            self.records.remove(id);
        }
        Evicted { aged: 0, beyond: evicted.len() as u64, more: false, next: None }
    }

    /// Takes dead letters from the outbox for `hold`, in milliseconds, and perhaps forwards them; `purges`: they are deleted
    /// after that. Returns the number that is in the outbox, and of each that it takes: id, time of death, body, failures, error.
    pub fn forward(&mut self, hold: u64, purges: Option<bool>, now: u64) -> (usize, Vec<MemoryOutgoing>) {
        let now = now / 1000;
        let found: Vec<String> = self.outbox.up_to(now).map(|(id, _)| id.to_owned()).collect();
        let (taken, gone): (Vec<_>, Vec<_>) = found.into_iter().partition(|id| self.dead.contains(id));
        for id in &gone {
            self.outbox.remove(id);
        }
        let waiting = self.outbox.len();
        let outgoing = |id: &String| {
            let (_, failures, error) = self.errors.get(id).cloned().unwrap_or_default();
            (id.clone(), self.dead[id.as_str()], self.bodies.get(id).cloned().unwrap_or_default(), failures, error)
        };
        let outgoing = taken.iter().map(outgoing).collect();
        for id in &taken {
            match purges {
                None => self.outbox.insert(id, now + hold),
                Some(purges) => {
                    self.outbox.remove(id);
                    if purges {
                        self.delete(id);
                        self.records.remove(id);
                    }
                }
            }
        }
        (waiting, outgoing)
    }

    fn set_expiry(&mut self, id: &str, expiry: Expiry, now: u64) {
        let expires_at = match expiry {
            Expiry::Keep => return,
            Expiry::Drop => None,
            Expiry::After(millis) => Some(now + millis),
        };
        let body = codec::expiring(&self.bodies[id], expires_at);
        self.bodies.insert(id.to_owned(), body);
    }

    pub fn edit(&mut self, id: &MessageId, edit: &Edit, settings: PartitionSettings) -> Edited {
        let id = id.as_str();
        match self.state(id) {
            None => return Edited::NotFound,
            Some(State::Pending) => return Edited::Pending,
            Some(State::Unack) => return Edited::InFlight,
            Some(State::Dead) => {}
        }
        let (new, changes) = match codec::decode(&self.bodies[id]).map(|message| edit.apply(&message)) {
            Ok(Ok((message, changes))) => (codec::encode(&message), changes),
            Ok(Err(mistakes)) => return Edited::Invalid(mistakes),
            Err(error) => return Edited::Unreadable(error.to_string()),
        };
        if settings.forwards && self.outbox.contains(id) {
            return Edited::Forwarding;
        }
        let revision = revision(self.dead[id], &new);
        self.bodies.insert(id.to_owned(), new);
        Edited::Done { changes, revision }
    }
}

/// Milliseconds after the due time of the first redriven message.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "few messages"
)]
fn after(n: usize, rate: Rate) -> u64 {
    (n as f64 * rate.interval() / 1000.0) as u64
}
