//! What a claim ought to take, in plain maps.

use bytes::Bytes;
use punctual::{
    message::State,
    store::{ClaimRequest, Suspects},
};

use super::rows::Rows;

/// Crashes that make a message a suspect.
const SUSPECT_CRASHES: u32 = 2;
/// Between suspects that are put off.
const SPACING: u64 = 20;
/// How far a claim reads behind suspects that are put off.
const MAX_SEEN: usize = 1000;

/// A message as a claim should return it.
#[derive(Debug, PartialEq)]
pub struct Taken {
    pub id: String,
    pub body: Bytes,
    pub failures: u32,
    pub not_before: u64,
    pub suspect: bool,
}

/// What a claim should answer.
#[derive(Debug, PartialEq)]
pub struct Granted {
    pub token: u64,
    pub messages: Vec<Taken>,
    /// Those that were put off.
    pub suspects: u32,
    pub taken_elsewhere: Option<u64>,
}

impl Rows {
    fn is_suspect(&self, id: &str) -> bool {
        self.attempts.get(id).is_some_and(|counts| counts.1 >= SUSPECT_CRASHES)
    }

    /// `now` in microseconds. A claim is what its number says: a new one, the last one again, or one that was overtaken.
    pub fn claim(&mut self, request: &ClaimRequest, now: u64) -> Granted {
        let (last, last_token) = self.claims.get(&request.claimant).copied().unwrap_or_default();
        let taken_elsewhere = self.latest.filter(|(instance, _)| *instance != request.claimant).map(|(_, at)| at);
        let mut token = now + u64::try_from(request.lease.as_micros()).expect("a lease of the test");
        while self.unack.values().any(|other| *other == token) {
            token += 1;
        }
        let (mut messages, mut suspects) = (Vec::new(), 0);
        if request.sequence == last {
            messages = self.claimed_before(last_token, request.max_bytes);
            if last_token > now {
                token = last_token;
            } else if !messages.is_empty() {
                self.unack.extend(messages.iter().map(|one| (one.id.clone(), token)));
                self.claims.insert(request.claimant, (last, token));
            }
        } else if request.sequence > last && !self.paused {
            let chosen;
            (chosen, suspects) = self.choose(request, now / 1000);
            messages = self.within(chosen, request.max_bytes);
            for one in &messages {
                self.pending.remove(&one.id);
                self.unack.insert(one.id.clone(), token);
            }
            if !messages.is_empty() {
                self.claims.insert(request.claimant, (request.sequence, token));
                self.latest = Some((request.claimant, now));
            }
        }
        if request.again && messages.is_empty() && request.sequence > last {
            self.claims.insert(request.claimant, (request.sequence, token));
        }
        Granted { token, messages, suspects, taken_elsewhere }
    }

    /// What is still leased under `token`; its score in pending is lost.
    fn claimed_before(&self, token: u64, max_bytes: u64) -> Vec<Taken> {
        let leased = self.unack.iter().filter(|(_, score)| **score == token);
        self.within(leased.map(|(id, _)| (self.original_due(id), id.clone())).collect(), max_bytes)
    }

    /// Due messages with their scores; and how many suspects were put off, which has happened.
    fn choose(&mut self, request: &ClaimRequest, now: u64) -> (Vec<(u64, String)>, u32) {
        let mut due = self.ordered(State::Pending);
        due.retain(|(score, _)| *score <= now);
        let limit = request.limit as usize;
        let Suspects::PutOff(pause) = request.suspects else {
            due.truncate(limit);
            let suspect = due.iter().find(|(_, id)| self.is_suspect(id)).cloned();
            return (suspect.map_or(due, |one| vec![one]), 0);
        };
        let mut at = now + u64::try_from(pause.as_millis()).expect("a pause of the test");
        let (mut chosen, mut suspects) = (Vec::new(), 0);
        for (n, (score, id)) in due.into_iter().take(MAX_SEEN).enumerate() {
            // Only an empty result reads on.
            if chosen.len() == limit || (n == limit && !chosen.is_empty()) {
                break;
            }
            if self.is_suspect(&id) {
                at += SPACING;
                self.pending.insert(id, at);
                suspects += 1;
            } else {
                chosen.push((score, id));
            }
        }
        (chosen, suspects)
    }

    /// As many as fit; the first one whatever its size.
    fn within(&self, chosen: Vec<(u64, String)>, max_bytes: u64) -> Vec<Taken> {
        let (mut bytes, mut taken) = (0, Vec::new());
        for (score, id) in chosen {
            let body = self.bodies[&id].clone();
            bytes += body.len() as u64;
            if bytes > max_bytes && !taken.is_empty() {
                break;
            }
            let (failures, suspect) = (self.failures(&id), self.is_suspect(&id));
            taken.push(Taken { body, failures, not_before: score, suspect, id });
        }
        taken
    }
}
