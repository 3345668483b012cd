//! Claims and the recovery of expired leases (lua/claim.lua, lua/recover.lua, lua/cut.lua).

use std::time::Duration;

use bytes::Bytes;

use super::{
    flow::Turn,
    partition::{MemoryPartition, PartitionSettings, unix_millis},
};
use crate::{
    message::{DeadReason, FlowLimits, MessageId, codec},
    store::{Claim, ClaimRequest, Claimed, CutLeases, Deaths, PARKED, Recovered, Suspects, Token},
    time::{ServerClock, UnixMillis},
};

/// Crashes that make a message a suspect.
const SUSPECT_CRASHES: u32 = 2;
/// Crashes from which a suspect is claimed alone.
const ALONE_CRASHES: u32 = 3;
/// Crashes that make a message dead: two in ordinary claims, one in a group of suspects, two alone.
const MAX_CRASHES: u32 = 5;
/// Milliseconds between groups of deferred suspects.
const SPACING: u64 = 20;
/// Maximum number of due messages that a claim reads when it defers suspects.
const MAX_SEEN: usize = 1000;
/// Maximum number of due messages that a claim reads while messages wait for their flows.
const MAX_READ: usize = 250;
/// Maximum number of leases of one recovery or cut.
const MAX_RECOVERED: usize = 1000;
/// Age in microseconds from which the entry of an instance that claims no longer is deleted.
const MAX_CLAIM_AGE: u64 = 86_400_000_000;
/// Maximum number of such entries that one claim deletes.
const MAX_DELETED: usize = 1000;

impl MemoryPartition {
    fn is_suspect(&self, id: &str) -> bool {
        self.crashes(id) >= SUSPECT_CRASHES
    }

    fn crashes(&self, id: &str) -> u32 {
        self.attempts.get(id).map_or(0, |counts| counts.1)
    }

    /// The first suspects of `due`, at most `max_suspects`; only the first one if it must be claimed alone.
    fn first_suspects(&self, due: &[(u64, String)], max_suspects: usize) -> Vec<(u64, String)> {
        let mut few = Vec::new();
        for one in due.iter().filter(|(_, id)| self.is_suspect(id)) {
            let is_alone = self.crashes(&one.1) >= ALONE_CRASHES;
            if is_alone && !few.is_empty() {
                break;
            }
            few.push(one.clone());
            if is_alone || few.len() == max_suspects {
                break;
            }
        }
        few
    }

    /// By its number, the request is a new claim, a repetition of the last one, or outdated.
    pub fn claim(&mut self, request: &ClaimRequest, clock: ServerClock, settings: PartitionSettings) -> Claim {
        let now = clock.micros;
        let (last, last_token) = self.claims.get(&request.claimant).copied().unwrap_or_default();
        let taken_elsewhere = self.latest.filter(|(instance, _)| *instance != request.claimant).map(|(_, at)| at);
        let mut token = self.unused_token(now + u64::try_from(request.lease.as_micros()).expect("a lease in range"));
        let (mut messages, mut suspects, mut orphans, mut parked) = (Vec::new(), 0, Vec::new(), 0);
        if request.sequence == last {
            (messages, _) = self.within(self.claimed_before(last_token), request.max_bytes);
            if last_token > now {
                token = last_token;
            } else if !messages.is_empty() {
                for one in &messages {
                    self.unack.insert(one.id.as_str(), token);
                }
                self.claims.insert(request.claimant, (last, token));
            }
        } else if request.limit > 0 && request.sequence > last && (self.paused || !self.is_due(now, settings)) {
            self.forget_idle(now);
        } else if request.limit > 0 && request.sequence > last {
            if let Some(limits) = &settings.flow {
                (messages, orphans, suspects, parked) = self.claim_of_flows(request, limits, now);
            } else {
                let chosen;
                (chosen, suspects) = self.choose(request, request.limit as usize, now / 1000);
                (messages, orphans) = self.within(chosen, request.max_bytes);
            }
            for one in &messages {
                self.pending.remove(one.id.as_str());
                self.unack.insert(one.id.as_str(), token);
            }
            let error = format!("{}: the body was missing", DeadReason::Orphan.as_str());
            let ends = orphans.iter().map(|id| self.burial_of(id, self.failures(id), &error)).collect();
            self.keep_ends(ends, now, settings);
            for id in &orphans {
                self.bury_orphan(id, now);
            }
            if !messages.is_empty() {
                self.record_claim(request, last, token, now);
            }
        }
        if request.again && messages.is_empty() && request.sequence > last {
            self.claims.insert(request.claimant, (request.sequence, token));
        }
        // Bodies that another program deleted are counted until both sets are empty.
        if self.pending.is_empty() && self.unack.is_empty() {
            self.bytes = 0;
        }
        let head = self.pending.head().filter(|head| *head < PARKED || settings.flow.is_none());
        let gate = settings.flow.and_then(|_| self.next_gate());
        let next_due = head.into_iter().chain(gate).min().and_then(UnixMillis::new);
        Claim {
            clock,
            token: Token(token),
            messages,
            paused: self.paused,
            next_due,
            next_lease: self.unack.head(),
            suspects,
            orphans: Deaths::of(orphans.iter().map(String::as_str)),
            taken_elsewhere,
            parked,
        }
    }

    /// The first token from `token` on that no lease has.
    pub(super) fn unused_token(&self, mut token: u64) -> u64 {
        while self.unack.at(token).next().is_some() {
            token += 1;
        }
        token
    }

    /// Messages still leased under `token`. Their scores in pending are lost, so the original due times replace them.
    fn claimed_before(&self, token: u64) -> Vec<(u64, String)> {
        self.unack.at(token).map(|id| (self.original_due(id), id.to_owned())).collect()
    }

    /// Due messages with their scores, and the number of suspects that were deferred.
    fn choose(&mut self, request: &ClaimRequest, limit: usize, now: u64) -> (Vec<(u64, String)>, u32) {
        let max_suspects = request.max_suspects;
        let due = self.pending.up_to(now).map(|(id, score)| (score, id.to_owned()));
        let Suspects::Defer(pause) = request.suspects else {
            let due: Vec<_> = due.take(limit).collect();
            let few = self.first_suspects(&due, max_suspects);
            return (if few.is_empty() { due } else { few }, 0);
        };
        let mut at = now + u64::try_from(pause.as_millis()).expect("a pause in range");
        let (mut chosen, mut suspects) = (Vec::new(), 0);
        for (n, (score, id)) in due.take(MAX_SEEN).collect::<Vec<_>>().into_iter().enumerate() {
            // More than `limit` due messages are read only if the first `limit` were all suspects.
            if chosen.len() == limit || (n == limit && !chosen.is_empty()) {
                break;
            }
            if self.is_suspect(&id) {
                if (suspects as usize).is_multiple_of(max_suspects) || self.crashes(&id) >= ALONE_CRASHES {
                    at += SPACING;
                }
                self.pending.insert(&id, at);
                suspects += 1;
            } else {
                chosen.push((score, id));
            }
        }
        (chosen, suspects)
    }

    fn is_due(&self, now: u64, settings: PartitionSettings) -> bool {
        let gate = settings.flow.and_then(|_| self.next_gate());
        self.pending.head().into_iter().chain(gate).any(|due| due <= now / 1000)
    }

    /// The claimed messages of a route with flows, the ids without a body, and the numbers of deferred suspects and of
    /// parked messages.
    fn claim_of_flows(
        &mut self,
        request: &ClaimRequest,
        limits: &FlowLimits,
        now: u64,
    ) -> (Vec<Claimed>, Vec<String>, u32, u32) {
        let millis = now / 1000;
        let is_whole = self.pending.up_to(millis).count() < MAX_SEEN;
        let (due, suspects) = self.choose(request, MAX_SEEN, millis);
        let few = due.iter().any(|(_, id)| self.is_suspect(id)) && request.suspects == Suspects::Few;
        let limit = u64::from(request.limit);
        let most = if self.flow.gates.is_empty() { MAX_SEEN } else { MAX_READ };
        let first = &due[..due.len().min(request.limit as usize).min(most)];
        let is_narrow = !limits.ordered && self.attempts.is_empty();
        let mut read = if is_narrow { first } else { &due[..] };
        let mut turn = self.take_turns(limits, read, (limit, is_whole || few, few), now);
        let all_pass = is_narrow && self.all_pass(read, &mut turn, millis);
        if is_narrow && turn.count_parked() > 0 {
            read = &due;
            turn = self.take_turns(limits, read, (limit, is_whole, false), now);
        }
        let chosen = |turn: &Turn| turn.taken.iter().map(|entry| (entry.due, entry.id.clone())).collect::<Vec<_>>();
        let (mut messages, orphans) = self.within(chosen(&turn), request.max_bytes);
        let fit = messages.len() + orphans.len();
        if fit < turn.taken.len() && all_pass {
            turn = self.take_turns(limits, &read[..fit], (limit, is_whole, false), now);
            self.all_pass(&read[..fit], &mut turn, millis);
        } else if fit < turn.taken.len() {
            turn = self.take_turns(limits, read, (fit as u64, is_whole || few, few), now);
        }
        for message in &mut messages {
            let entry = turn.taken.iter().find(|entry| entry.id == message.id.as_str()).expect("it was taken");
            message.waited = Duration::from_millis(entry.since - entry.due);
        }
        let parked = turn.count_parked();
        self.end_turn(limits, turn, &orphans, now);
        (messages, orphans, suspects, parked)
    }

    /// As many messages as fit, the first one whatever its size; and the ids without a body that were found on the way.
    fn within(&self, chosen: Vec<(u64, String)>, max_bytes: u64) -> (Vec<Claimed>, Vec<String>) {
        let (mut bytes, mut taken, mut orphans) = (0, Vec::new(), Vec::new());
        for (score, id) in chosen {
            let Some(body) = self.bodies.get(&id).cloned() else {
                orphans.push(id);
                continue;
            };
            bytes += codec::weight(&body) as u64;
            if bytes > max_bytes && !taken.is_empty() {
                break;
            }
            taken.push(Claimed {
                body,
                failures: self.failures(&id),
                not_before: unix_millis(score),
                waited: Duration::ZERO,
                suspect: self.is_suspect(&id),
                tried: self.attempts.contains_key(&id),
                crashed_out: self.crashes(&id) >= MAX_CRASHES,
                id: MessageId::stored(&id).expect("only ids are stored"),
            });
        }
        (taken, orphans)
    }

    fn bury_orphan(&mut self, id: &str, now: u64) {
        self.pending.remove(id);
        self.bodies.insert(id.to_owned(), Bytes::from_static(b"\0"));
        let error = format!("{}: the body was missing", DeadReason::Orphan.as_str());
        self.bury_at(id, now / 1000, self.failures(id), error);
    }

    fn record_claim(&mut self, request: &ClaimRequest, last: u64, token: u64, now: u64) {
        if last == 0 {
            let old = |(instance, (_, token)): (&u64, &(u64, u64))| (token + MAX_CLAIM_AGE < now).then_some(*instance);
            for instance in self.claims.iter().filter_map(old).take(MAX_DELETED).collect::<Vec<_>>() {
                self.claims.remove(&instance);
            }
        }
        self.claims.insert(request.claimant, (request.sequence, token));
        self.latest = Some((request.claimant, now));
    }

    /// Leases that end later than `longest` from now, and later than `from`, expire now.
    pub fn cut_leases(&mut self, longest: Duration, from: Option<u64>, now: u64) -> CutLeases {
        let bound = now.saturating_add(u64::try_from(longest.as_micros()).unwrap_or(u64::MAX));
        let beyond = |rows: &Self, least: u64| -> Vec<String> {
            rows.unack.iter().filter(|(_, deadline)| *deadline > least).map(|(id, _)| id.to_owned()).collect()
        };
        let mut cut = from.map_or_else(Vec::new, |from| beyond(self, bound.max(from)));
        cut.truncate(MAX_RECOVERED);
        let mut token = now - 1;
        while self.unack.at(token).next().is_some() {
            token -= 1;
        }
        for id in &cut {
            self.unack.insert(id, token);
        }
        let beyond = (!beyond(self, bound).is_empty()).then_some(bound);
        CutLeases { cut: u32::try_from(cut.len()).expect("at most a thousand"), beyond }
    }

    /// Each expired lease counts as a crash. Its message becomes pending, due since the lease expired, or dead after
    /// the last crash.
    pub fn recover(&mut self, now: u64, settings: PartitionSettings) -> Recovered {
        let expired: Vec<_> =
            self.unack.up_to(now).take(MAX_RECOVERED).map(|(id, deadline)| (id.to_owned(), deadline)).collect();
        let (mut recovered, mut dead, mut ends) = (Recovered::default(), Vec::new(), Vec::new());
        for (id, deadline) in expired {
            self.unack.remove(&id);
            recovered.expired += 1;
            let crashes = self.attempts.get(&id).map_or(0, |counts| counts.1) + 1;
            let dies = crashes >= MAX_CRASHES && !id.ends_with('@');
            if settings.flow.is_some_and(|flow| !flow.ordered || dies) {
                self.depart(&[(&id, 0)], now / 1000);
            }
            self.attempts.insert(id.clone(), (self.failures(&id), crashes));
            if dies {
                self.bytes = self.bytes.saturating_sub(self.size(&id));
                let error = format!("{}: {crashes} leases expired, the last ones alone", DeadReason::Crash.as_str());
                ends.push(self.burial_of(&id, self.failures(&id), &error));
                self.bury_at(&id, now / 1000, self.failures(&id), error);
                dead.push(id);
            } else {
                self.pending.insert(&id, deadline / 1000);
            }
        }
        self.keep_ends(ends, now, settings);
        recovered.dead = Deaths::of(dead.iter().map(String::as_str));
        recovered.more = self.unack.head().is_some_and(|next| next <= now);
        recovered
    }
}
