//! Flows (lua/include/flow.lua, turns.lua, rates.lua).

use std::collections::{BTreeMap, BTreeSet};

use super::{flow_keys::SHUT, partition::MemoryPartition};
use crate::{message::FlowLimits, store::PARKED};

/// Milliseconds after which a suspect is looked at again that cannot be claimed because of its flow.
const SUSPECT_WAITS: u64 = 1000;
/// Member of `slots`: the time until which the last of all pauses of flows lasts.
const LAST_HOLD: &str = "\u{1}\u{1}";
/// Microseconds after which a slot that is over is deleted.
const IDLE: f64 = 1e6;

/// A due message in its flow.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub id: String,
    pub due: u64,
    number: String,
    member: String,
    parked: bool,
    holds: bool,
    queue: usize,
    /// From when it could be delivered, in milliseconds.
    pub since: u64,
}

struct Queue {
    name: String,
    entries: Vec<Entry>,
    gate: Option<u64>,
    slot: Option<f64>,
    /// In microseconds; none leaves before.
    hold: f64,
    new_gate: Option<u64>,
    new_slot: Option<f64>,
}

/// The messages of one claim.
pub(super) struct Turn {
    queues: Vec<Queue>,
    pub taken: Vec<Entry>,
    parked: Vec<Entry>,
    delayed: Vec<(Entry, u64)>,
}

impl Turn {
    pub(super) fn count_parked(&self) -> u32 {
        u32::try_from(self.parked.len()).expect("at most a thousand")
    }
}

struct Rules {
    interval: f64,
    tolerance: f64,
    parallel: u64,
    paused: bool,
}

impl Rules {
    fn of(limits: &FlowLimits, own: Option<&String>) -> Self {
        let (mut rate, mut burst, mut parallel) = (limits.rate, Some(limits.burst), limits.parallel);
        let mut paused = false;
        if let Some(own) = own {
            let parts: Vec<&str> = own.splitn(4, ' ').collect();
            if parts[0] != "-" {
                (rate, burst) = (crate::message::Rate::parse(parts[0]).ok(), None);
            }
            burst = parts[1].parse().ok().or(burst);
            parallel = parts[2].parse().ok().or(parallel);
            paused = parts[3] != "-";
        }
        let interval = rate.map_or(0.0, crate::message::Rate::interval);
        let burst = rate.map_or(1, |rate| burst.unwrap_or_else(|| rate.burst()));
        let parallel = parallel.map_or(u64::MAX, u64::from);
        let parallel = if limits.ordered { parallel.min(1) } else { parallel };
        Self { interval, tolerance: f64::from(burst - 1) * interval, parallel, paused }
    }
}

pub(super) fn place(name: &str, due: u64, number: &str, id: &str) -> String {
    let (due, number) = if number == "!" { (0, 0) } else { (due, number.parse().expect("a number")) };
    format!("{name}\0{due:016}\0{number:016}\0{id}")
}

fn due_by(score: u64) -> (u64, bool) {
    if score < PARKED { (score, false) } else { (score - PARKED, true) }
}

/// As `%.3f` in a script.
fn rounded(micros: f64) -> f64 {
    format!("{micros:.3}").parse().expect("a number")
}

#[expect(clippy::cast_precision_loss, reason = "below 2^53")]
fn float(number: u64) -> f64 {
    number as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "times after 1970")]
fn whole(number: f64) -> u64 {
    number.max(0.0) as u64
}

impl MemoryPartition {
    /// Whether the messages in flight of a flow are counted.
    pub(super) fn is_counted(&self, limits: &FlowLimits, name: &str) -> bool {
        Rules::of(limits, self.flow.rules.get(name)).parallel < u64::MAX
    }

    /// The flow and the number of a message.
    pub(super) fn flow_of(&self, id: &str) -> (String, String) {
        let value = self.flow.flows.get(id).map_or("0 ", String::as_str);
        let (number, name) = value.split_once(' ').expect("two parts");
        (name.to_owned(), number.to_owned())
    }

    /// Numbers accepted messages, each with its flow. `at_once`: they are delivered at once.
    pub(super) fn number_flows(&mut self, accepted: &[(String, String)], at_once: bool) {
        if accepted.is_empty() {
            return;
        }
        let last: usize = self.flow.flows.get("").map_or(0, |last| last.parse().expect("a number"));
        for (n, (id, name)) in accepted.iter().enumerate() {
            let number = if at_once { "!".to_owned() } else { (last + n + 1).to_string() };
            self.flow.flows.insert(id.clone(), format!("{number} {name}"));
        }
        self.flow.flows.insert(String::new(), (last + accepted.len()).to_string());
    }

    /// Redriven messages get new numbers.
    pub(super) fn number_again(&mut self, ids: &[String]) {
        let accepted: Vec<_> = ids.iter().map(|id| (id.clone(), self.flow_of(id).0)).collect();
        self.number_flows(&accepted, false);
    }

    /// Messages leave pending, where they had these scores, or unack. Returns whether a flow must be looked at now.
    /// `now` in milliseconds.
    pub(super) fn depart(&mut self, leaving: &[(&str, u64)], now: u64) -> bool {
        let mut is_open = false;
        let names: BTreeSet<_> = leaving.iter().map(|(id, _)| self.flow_of(id).0).collect();
        for (id, score) in leaving {
            let (name, number) = self.flow_of(id);
            let (due, parked) = due_by(*score);
            if parked {
                self.flow.waiting.remove(&place(&name, due, &number, id));
            }
            self.flow.flights.remove(&format!("{name}\0{id}"));
        }
        for name in names {
            if let Some(gate) = self.flow.gates.get_mut(&name).filter(|gate| **gate == SHUT) {
                (*gate, is_open) = (now, true);
            }
        }
        is_open
    }

    /// The message that holds an ordered flow, or the first of those that are parked or due, if it is not `id`. `now` in
    /// milliseconds.
    pub(super) fn first_of_flow(&self, id: &str, now: u64) -> Option<String> {
        let name = self.flow_of(id).0;
        let prefix = format!("{name}\0");
        let of_flow =
            |set: &BTreeSet<String>| set.range(prefix.clone()..).next().filter(|one| one.starts_with(&prefix)).cloned();
        let holder = of_flow(&self.flow.flights).map(|flight| flight[prefix.len()..].to_owned());
        let due = self.pending.up_to(now).filter_map(|(due_id, due)| {
            let (its_flow, number) = self.flow_of(due_id);
            (its_flow == name).then(|| place(&name, due, &number, due_id))
        });
        let first = || of_flow(&self.flow.waiting).into_iter().chain(due).min();
        holder.or_else(|| first().map(|member| member[prefix.len() + 34..].to_owned())).filter(|first| first != id)
    }

    /// `back`: by flow, the slots that are given back; `hold`: the time in microseconds before which none leaves.
    pub(super) fn shift_slots(
        &mut self,
        limits: &FlowLimits,
        back: &BTreeMap<String, u32>,
        hold: &BTreeMap<String, u64>,
        now: u64,
    ) {
        for name in back.keys().chain(hold.keys()).collect::<BTreeSet<_>>() {
            let rules = Rules::of(limits, self.flow.rules.get(name));
            if let (Some(slot), Some(count)) = (self.flow.slots.get_mut(name), back.get(name)) {
                *slot = rounded(*slot - f64::from(*count) * rules.interval);
            }
            let mark = format!("{name}\u{1}");
            let known = self.flow.slots.get(&mark).copied();
            if let Some(until) = hold.get(name).map(|until| float(*until))
                && until > known.unwrap_or(float(now))
            {
                self.flow.slots.insert(mark, until);
                let last = self.flow.slots.entry(LAST_HOLD.to_owned()).or_insert(until);
                *last = last.max(until);
            }
        }
    }

    /// The flow of a message, by its id.
    pub(super) fn name_of_flow(&self, id: &str) -> String {
        self.flow_of(id).0
    }

    /// The earliest time at which a claim finds something to look at.
    pub fn next_look(&self) -> Option<u64> {
        self.pending.head().into_iter().chain(self.next_gate()).min()
    }

    /// The earliest time at which a claim must look at parked messages.
    pub(super) fn next_gate(&self) -> Option<u64> {
        self.flow.gates.values().copied().filter(|gate| *gate != SHUT).min()
    }

    fn queues(&self, limits: &FlowLimits, due: &[(u64, String)], is_whole: bool) -> (Vec<Queue>, u64) {
        let (mut chosen, mut bound) = (due, u64::MAX);
        if limits.ordered && !is_whole {
            bound = due.last().map_or(u64::MAX, |(score, _)| *score);
            let earlier = due.iter().take_while(|(score, _)| *score < bound).count();
            if earlier > 0 {
                chosen = &due[..earlier];
            }
        }
        let mut queues: Vec<Queue> = Vec::new();
        for (score, id) in chosen {
            let (name, number) = self.flow_of(id);
            let known = queues.iter().position(|queue| queue.name == name);
            let at = known.unwrap_or_else(|| {
                queues.push(self.queue(&name));
                queues.len() - 1
            });
            let member = place(&name, *score, &number, id);
            queues[at].entries.push(Entry {
                id: id.clone(),
                due: *score,
                number,
                member,
                parked: false,
                holds: false,
                queue: 0,
                since: 0,
            });
        }
        (queues, bound)
    }

    fn queue(&self, name: &str) -> Queue {
        let (gate, slot) = (self.flow.gates.get(name).copied(), self.flow.slots.get(name).copied());
        let hold = self.flow.slots.get(&format!("{name}\u{1}")).copied().unwrap_or(0.0);
        Queue { name: name.to_owned(), entries: Vec::new(), gate, slot, hold, new_gate: gate, new_slot: None }
    }

    fn read_parked(&self, queue: &mut Queue, most: u64) -> bool {
        let start = format!("{}\0", queue.name);
        let found: Vec<_> = self
            .flow
            .waiting
            .range(start.clone()..)
            .take_while(|member| member.starts_with(&start))
            .take(usize::try_from(most + 1).unwrap_or(usize::MAX))
            .cloned()
            .collect();
        let count = found.len() as u64;
        for member in found {
            let rest = &member[start.len()..];
            let (mut due, mut number): (u64, String) =
                (rest[..16].parse().expect("a due time"), rest[17..33].to_owned());
            let id = rest[34..].to_owned();
            let mut score = PARKED + due;
            if due == 0 && number.parse() == Ok(0) {
                "!".clone_into(&mut number);
                score = self.pending.get(&id).unwrap_or(score);
                due = due_by(score).0;
            }
            queue.entries.push(Entry { id, due, number, member, parked: true, holds: false, queue: 0, since: 0 });
        }
        count <= most
    }

    /// Chooses messages of `due`, and parked ones, at most `limit`. `now` in microseconds. `suspects`: whether `due` are
    /// suspects.
    pub(super) fn take_turns(
        &self,
        limits: &FlowLimits,
        due: &[(u64, String)],
        (limit, is_whole, suspects): (u64, bool, bool),
        now: u64,
    ) -> Turn {
        let millis = now / 1000;
        let (mut first, bound) = self.queues(limits, due, is_whole);
        if !suspects {
            let mut open: Vec<_> = self.flow.gates.iter().filter(|(_, gate)| **gate <= millis).collect();
            open.sort_by_key(|(name, gate)| (**gate, (*name).clone()));
            let (mut queues, mut others) = (Vec::new(), first);
            for (name, _) in open {
                let place = others.iter().position(|queue| queue.name == *name);
                queues.push(place.map_or_else(|| self.queue(name), |place| others.remove(place)));
            }
            queues.append(&mut others);
            first = queues;
        }
        let mut turn = Turn { queues: Vec::new(), taken: Vec::new(), parked: Vec::new(), delayed: Vec::new() };
        let mut left = limit;
        for (place, mut queue) in first.into_iter().enumerate() {
            let at_once = queue.entries.iter().any(|entry| entry.number == "!");
            let is_closed = queue.gate.is_some_and(|gate| gate > millis) && !limits.ordered && !at_once;
            if left == 0 && queue.entries.is_empty() {
                // The next claim looks at it.
            } else if is_closed && !suspects {
                turn.parked.append(&mut queue.entries);
            } else {
                left -= self.serve(limits, (place, &mut queue), (left, bound, suspects), now, &mut turn);
            }
            turn.queues.push(queue);
        }
        turn
    }

    /// Whether a claim takes all of `due` without regard to single flows (`passing.lua`): then it takes them in the order
    /// of `due`.
    pub(super) fn all_pass(&self, due: &[(u64, String)], turn: &mut Turn, millis: u64) -> bool {
        let is_free = |queue: &Queue| queue.gate.is_none() && !self.flow.rules.contains_key(&queue.name);
        let all_pass = turn.taken.len() == due.len()
            && turn.taken.iter().all(|entry| entry.number != "!")
            && turn.queues.iter().all(is_free)
            && self.next_gate().is_none_or(|gate| gate > millis);
        if all_pass {
            turn.taken.sort_by_key(|entry| due.iter().position(|(_, id)| *id == entry.id));
        }
        all_pass
    }

    fn serve(
        &self,
        limits: &FlowLimits,
        (place, queue): (usize, &mut Queue),
        (limit, bound, suspects): (u64, u64, bool),
        now: u64,
        turn: &mut Turn,
    ) -> u64 {
        let rules = Rules::of(limits, self.flow.rules.get(&queue.name));
        let millis = now / 1000;
        let start = format!("{}\0", queue.name);
        let in_flight = match rules.parallel {
            u64::MAX => 0,
            _ => self.flow.flights.range(start.clone()..).take_while(|one| one.starts_with(&start)).count() as u64,
        };
        let mut room = if rules.paused { 0 } else { rules.parallel.saturating_sub(in_flight) };
        let micros = float(now);
        let mut slot = queue.slot.unwrap_or(0.0);
        if slot > micros + rules.tolerance + rules.interval {
            slot = micros + rules.tolerance;
        }
        // A pause that is over is not read.
        let hold = if queue.hold > micros { queue.hold } else { 0.0 };
        let mut has_all = true;
        if suspects {
            has_all = queue.gate.is_none();
        } else if queue.gate.is_some() && room > 0 {
            let on_time = (rules.interval > 0.0)
                .then(|| ((micros + rules.tolerance - slot.max(micros)) / rules.interval).floor() + 1.0);
            let on_time = if hold > micros { Some(0.0) } else { on_time };
            let most = room.min(limit).min(on_time.map_or(u64::MAX, whole));
            has_all = self.read_parked(queue, most);
        }
        let mut entries = std::mem::take(&mut queue.entries);
        entries.sort_by(|a, b| a.member.cmp(&b.member));
        let mut more = queue.gate.is_some() && (room == 0 || suspects);
        let (mut is_full, mut taken) = (false, 0);
        let free = |slot: f64| (slot - rules.tolerance).max(hold);
        let next = |slot: f64| whole((free(slot) / 1000.0).ceil());
        for mut entry in entries {
            let at_once = entry.number == "!";
            entry.queue = place;
            entry.holds = limits.ordered
                && in_flight > 0
                && !entry.parked
                && self.flow.flights.contains(&format!("{start}{}", entry.id));
            let has_room = room > 0 || entry.holds && !rules.paused;
            let on_time = at_once || free(slot) <= micros;
            let mut can_leave = has_room && on_time;
            let is_left = can_leave && taken == limit;
            if is_left || can_leave && entry.due >= bound && !at_once {
                (is_full, can_leave) = (true, false);
            }
            if can_leave {
                taken += 1;
                if !entry.holds {
                    room = room.saturating_sub(u64::from(room != u64::MAX));
                }
                entry.since = entry.due;
                if entry.parked {
                    entry.since = entry.since.max(queue.gate.unwrap_or(0).min(millis));
                    if !at_once {
                        entry.since = entry.since.max(whole((free(slot) / 1000.0).floor()).min(millis));
                    }
                }
                if !at_once && rules.interval > 0.0 {
                    slot = slot.max(micros) + rules.interval;
                    queue.new_slot = Some(rounded(slot));
                }
                turn.taken.push(entry);
            } else if entry.parked {
                more = true;
            } else if is_left && (entry.holds || suspects || !more) {
                // The next claim takes it.
            } else if entry.holds || suspects {
                let at = if has_room { next(slot).max(millis + 1) } else { millis + SUSPECT_WAITS };
                turn.delayed.push((entry, at));
            } else {
                turn.parked.push(entry);
                more = true;
            }
        }
        if !has_all && !more {
            (more, is_full) = (true, true);
        }
        queue.new_gate = match () {
            () if !more => None,
            () if rules.paused || room == 0 && !is_full => Some(SHUT),
            () if is_full => Some(queue.gate.unwrap_or(millis).min(millis)),
            () => Some(next(slot).max(millis)),
        };
        taken
    }

    /// Applies a turn. `gone`: ids of taken messages without a body.
    pub(super) fn end_turn(&mut self, limits: &FlowLimits, mut turn: Turn, gone: &[String], now: u64) {
        for entry in &turn.parked {
            self.pending.insert(&entry.id, PARKED + entry.due);
            self.flow.waiting.insert(entry.member.clone());
        }
        for (entry, at) in &turn.delayed {
            self.pending.insert(&entry.id, *at);
        }
        for entry in &turn.taken {
            let queue = &mut turn.queues[entry.queue];
            let flight = format!("{}\0{}", queue.name, entry.id);
            let is_counted = self.is_counted(limits, &queue.name);
            if entry.parked {
                self.flow.waiting.remove(&entry.member);
            }
            if gone.contains(&entry.id) {
                self.flow.flights.remove(&flight);
                queue.new_gate = queue.new_gate.map(|_| now / 1000);
            } else if is_counted {
                self.flow.flights.insert(flight);
            }
            if entry.number == "!" {
                self.flow.flows.insert(entry.id.clone(), format!("0 {}", queue.name));
            }
        }
        for queue in &turn.queues {
            match queue.new_gate {
                Some(gate) => drop(self.flow.gates.insert(queue.name.clone(), gate)),
                None => drop(self.flow.gates.remove(&queue.name)),
            }
            if let Some(slot) = queue.new_slot {
                self.flow.slots.insert(queue.name.clone(), slot);
            }
        }
        self.forget_idle(now);
    }

    /// Deletes the slots of flows that are idle.
    pub(super) fn forget_idle(&mut self, now: u64) {
        self.flow.slots.retain(|_, slot| *slot > float(now) - IDLE);
    }
}
