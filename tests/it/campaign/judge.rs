//! Compares what is owed with what the sinks got.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write,
};

use super::{
    caused::explanation,
    clock,
    ends::{self, Ends},
    flow, groups,
    history::{Arrival, Operation, Reply},
    list::Element,
    nemesis::{Caused, Kind},
    operator::{self, Acts},
    oracle::{Life, Owed},
    schedules::{self, Schedule},
    world::LEASE,
};

/// Without a fault in this time before and after its due time, a message is on time, in milliseconds.
const CALM: u64 = 8000;
/// Lateness without faults, in milliseconds: a lost wake-up would cost about a second. The rest is room for a busy machine.
pub const MAX_P99: u64 = 400;
/// With its first messages an instance opens connections to its sinks, in milliseconds.
const WARM: u64 = 3000;
/// Histories of late messages that are kept.
const SHOWN: usize = 5;
/// A message of calm times that is later is a breach, in milliseconds: it would be found by `max_sleep` alone.
const MAX_LATE: u64 = 4000;

/// All that was observed in a round.
pub struct Observed {
    /// The beginning of the round, in epoch milliseconds.
    pub began: u64,
    pub lives: HashMap<String, Life>,
    pub arrivals: Vec<Arrival>,
    /// When elements of the list were seen first.
    pub seen: HashMap<String, (Element, u64)>,
    /// The list in the end.
    pub list: Vec<Element>,
    /// Dead letters in the end: id and error.
    pub dead: Vec<(String, String)>,
    pub faults: Vec<Caused>,
    pub schedules: Vec<Schedule>,
    /// Changes of groups.
    pub changes: Vec<groups::Change>,
    pub acts: Acts,
    /// In the history of the routes.
    pub ends: Ends,
}

impl Observed {
    /// Whether claims from before this time can be sent in it, or claims and changes be lost: an instance is stopped, or a
    /// fail-over happens.
    pub fn is_explained(&self, from: u64, to: u64) -> bool {
        self.had(from, to, |kind| kind.sends_late(""))
    }

    /// Whether claims or requests from before this time can be under way until now, without being repeated.
    pub fn is_delayed(&self, from: u64, to: u64) -> bool {
        self.had(from, to, |kind| matches!(kind, Kind::Network | Kind::EndpointNetwork | Kind::Right | Kind::Slots))
    }

    /// Whether messages of the route can wait in this time for the end of a pause, or for instances that are restarted. A
    /// fail-over can lose the end of a pause, and only the end of the round repeats it.
    pub fn holds(&self, route: &str, from: u64, to: u64) -> bool {
        let is_lost = |called: u64| self.had(called, to, Kind::loses);
        self.acts.hold(route, from, to) || self.acts.pauses.iter().any(|pause| pause.may_last(route, to, is_lost))
    }

    /// Whether there is a fault of these kinds in this time.
    pub fn had(&self, from: u64, to: u64, of: impl Fn(Kind) -> bool) -> bool {
        self.faults.iter().any(|fault| of(fault.kind) && fault.overlaps(from, to))
    }
}

/// The verdict on the messages of a round.
#[derive(Debug, Default)]
pub struct Verdict {
    pub owed: usize,
    pub delivered: usize,
    pub either: usize,
    pub cancelled: usize,
    pub lost: usize,
    pub early: usize,
    pub corrupt: usize,
    /// Deliveries of a cancelled or replaced message, which a stopped instance or a fail-over explains.
    pub stale: usize,
    /// By the kind of fault that explains them.
    pub duplicates: BTreeMap<&'static str, usize>,
    pub unexplained: usize,
    pub dead: usize,
    /// Further counts, by name.
    pub noted: BTreeMap<&'static str, usize>,
    /// The largest of some values, by name.
    pub largest: BTreeMap<&'static str, usize>,
    /// Milliseconds, of messages that were due in calm times.
    pub lateness: Vec<u64>,
    /// Histories of some late ones.
    pub late: Vec<String>,
    /// From the end of the last fault to the last delivery of what was due before that, in milliseconds.
    pub recovery: u64,
    /// The latest first delivery of all, in milliseconds, with the history of its id.
    pub latest: (u64, String),
    /// Each with the history of its id.
    pub breaches: Vec<String>,
}

impl Verdict {
    pub fn note(&mut self, name: &'static str) {
        *self.noted.entry(name).or_default() += 1;
    }

    pub fn at_most(&mut self, name: &'static str, value: usize) {
        let largest = self.largest.entry(name).or_default();
        *largest = value.max(*largest);
    }

    pub fn breach(&mut self, observed: &Observed, id: &str, what: &str) {
        self.breaches.push(history(observed, id, what));
    }
}

/// All that is known of an id.
fn history(observed: &Observed, id: &str, what: &str) -> String {
    let mut text = format!("{id}: {what}\n");
    if let Some(life) = observed.lives.get(id) {
        let _ = writeln!(text, "  route {}, owed {:?}", life.route, life.owed());
        let calls = life.calls.iter().map(|call| (call.called, call.to_string()));
        let arrivals = observed.arrivals.iter().filter(|arrival| arrival.id == id);
        let mut lines: Vec<_> = calls.chain(arrivals.map(|arrival| (arrival.at, arrival.to_string()))).collect();
        let elements = observed.seen.get(id).map(|(element, at)| (*at, format!("{at}: seen in the list, {element:?}")));
        lines.extend(elements);
        let span = lines.iter().map(|(at, _)| *at);
        let (first, last) = (span.clone().min().unwrap_or(0), span.max().unwrap_or(0));
        let near = observed.faults.iter().filter(|fault| fault.overlaps(first, last + CALM));
        lines.extend(near.map(|fault| {
            (
                fault.began,
                format!("{}: fault {}, {}, until {:?}", fault.began, fault.kind.name(), fault.detail, fault.ended),
            )
        }));
        let pauses = observed.acts.pauses.iter().filter(|pause| pause.route == life.route);
        lines.extend(pauses.map(|pause| (pause.called, format!("{}: {pause:?}", pause.called))));
        lines.sort();
        for (_, line) in lines {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

pub fn judge(observed: &Observed) -> Verdict {
    let mut verdict = Verdict::default();
    let mut arrivals: HashMap<&str, Vec<&Arrival>> = HashMap::new();
    for arrival in &observed.arrivals {
        arrivals.entry(&arrival.id).or_default().push(arrival);
    }
    let mut elements: HashMap<&str, Vec<&Element>> = HashMap::new();
    for element in &observed.list {
        elements.entry(&element.id).or_default().push(element);
    }
    let dead: HashMap<&str, &str> = observed.dead.iter().map(|(id, reason)| (&**id, &**reason)).collect();
    schedules::judge(observed, &mut arrivals, &mut verdict);
    groups::judge(observed, &mut verdict);
    operator::judge(observed, &mut verdict);
    ends::judge(observed, &mut verdict);
    for id in arrivals.keys().filter(|id| !observed.lives.contains_key(**id)) {
        verdict.breaches.push(format!("{id}: was never scheduled\n"));
    }
    flow::judge(observed, &arrivals, &mut verdict);
    for (id, life) in &observed.lives {
        let arrivals = arrivals.remove(&**id).unwrap_or_default();
        let found = Found { observed, id, life, dead: dead.get(&**id).copied() };
        if life.route == "jobs" {
            found.judge_list(&mut verdict, &elements.remove(&**id).unwrap_or_default());
        } else {
            found.judge_endpoint(&mut verdict, &arrivals);
        }
    }
    verdict
}

struct Found<'a> {
    observed: &'a Observed,
    id: &'a str,
    life: &'a Life,
    /// Its error, if it is a dead letter.
    dead: Option<&'a str>,
}

impl Found<'_> {
    fn judge_endpoint(&self, verdict: &mut Verdict, arrivals: &[&Arrival]) {
        let confirmed: Vec<_> = arrivals.iter().filter(|arrival| arrival.reply == Reply::Status(200)).collect();
        // A message that was replaced is owed with its last content.
        let versions = self.life.last_versions();
        let is_delivered = arrivals.iter().any(|arrival| {
            let is_confirmed = matches!(arrival.reply, Reply::Status(200) | Reply::Late(200));
            is_confirmed && arrival.version.is_some_and(|version| versions.contains(&version))
        });
        self.judge_end(verdict, is_delivered);
        for arrival in arrivals {
            self.judge_content(verdict, arrival);
            self.judge_time(verdict, arrival);
        }
        for pair in confirmed.windows(2) {
            self.judge_duplicate(verdict, pair[0], pair[1]);
        }
        if let Some(first) = confirmed.first() {
            self.note_recovery(verdict, first.due, first.at);
        }
        // A delivery that a fault repeated does not count as late.
        let is_timed = self.life.flow.is_none() && !self.life.is_from_source;
        if let (Some(first), [call], true) = (arrivals.first(), &self.life.calls[..], is_timed) {
            let due = first.due.max(clock::at(call.answered));
            self.judge_lateness(verdict, due, first.at);
        }
        if let (Some(first), true) = (arrivals.first(), is_timed) {
            self.note_latest(verdict, first.due, first.at);
        }
    }

    fn judge_list(&self, verdict: &mut Verdict, elements: &[&Element]) {
        self.judge_end(verdict, !elements.is_empty());
        if elements.len() > 1 {
            verdict.unexplained += elements.len() - 1;
            self.breach(verdict, &format!("{} times in the list", elements.len()));
        }
        // Push and removal are one step: no fault explains another content.
        let versions = self.life.last_versions();
        for element in elements {
            if element.version.is_none_or(|version| !versions.contains(&version)) {
                verdict.corrupt += 1;
                self.breach(verdict, &format!("{element:?} is in the list, permitted are the versions {versions:?}"));
            }
        }
        let Some((_, at)) = self.observed.seen.get(self.id) else { return };
        if self.life.earliest(*at).is_some_and(|due| self.is_early(due, *at)) {
            verdict.early += 1;
            self.breach(verdict, "early");
        }
        let Some(due) = self.life.earliest(*at) else { return };
        self.note_recovery(verdict, due, *at);
        if let [call] = &self.life.calls[..] {
            let due = due.max(clock::at(call.answered));
            self.judge_lateness(verdict, due, *at);
        }
        self.note_latest(verdict, due, *at);
    }

    fn judge_end(&self, verdict: &mut Verdict, is_delivered: bool) {
        let owed = self.life.owed();
        if let Some(reason) = self.dead {
            verdict.dead += 1;
            if !(self.life.is_rejected && reason.starts_with("rejected:")) {
                self.breach(verdict, &format!("is a dead letter, `{reason}`, without a cause"));
            } else if let Some(redriven) = self.life.redriven()
                && !self.observed.is_explained(redriven.saturating_sub(LEASE), redriven + LEASE)
            {
                // A redrive does not wait for replicas.
                self.breach(verdict, "is a dead letter although it was redriven");
            }
        }
        match owed {
            Owed::Delivery => {
                verdict.owed += 1;
                // It is dead, or was redriven and delivered.
                let is_met = if self.life.is_rejected { self.dead.is_some() || is_delivered } else { is_delivered };
                verdict.delivered += usize::from(is_met);
                if !is_met {
                    verdict.lost += 1;
                    self.breach(verdict, "lost");
                }
            }
            Owed::Either => verdict.either += 1,
            Owed::Never => verdict.cancelled += 1,
        }
    }

    fn judge_content(&self, verdict: &mut Verdict, arrival: &Arrival) {
        let is_intact = arrival.wrong.is_none() && arrival.route == self.life.route;
        let Some(version) = arrival.version.filter(|_| is_intact) else {
            verdict.corrupt += 1;
            self.breach(verdict, &format!("content or headers differ: {arrival}"));
            return;
        };
        let versions = [arrival.since, arrival.at].map(|at| self.life.versions(at)).concat();
        if versions.contains(&version) {
            return;
        }
        let since = self.life.forbidden_since(arrival.at).unwrap_or(arrival.at);
        // A claim from before the call is sent later: by an instance that was stopped, or after a fail-over that lost the claim.
        if self.is_explained(since.saturating_sub(LEASE), arrival) {
            verdict.stale += 1;
        } else {
            let what =
                format!("version {version} arrived, permitted are {versions:?}: cancelled, replaced or never accepted");
            verdict.corrupt += 1;
            self.breach(verdict, &format!("{what}: {arrival}"));
        }
    }

    fn judge_time(&self, verdict: &mut Verdict, arrival: &Arrival) {
        let is_early = self.is_early(arrival.due, arrival.at);
        let is_permitted = |at: u64| self.life.earliest(at).is_none_or(|due| !self.is_early(due, arrival.at));
        if !is_early && [arrival.since, arrival.at].into_iter().any(is_permitted) {
            return;
        }
        let since = self.life.forbidden_since(arrival.at).unwrap_or(arrival.at);
        if !is_early && self.is_explained(since.saturating_sub(LEASE), arrival) {
            verdict.stale += 1;
        } else {
            verdict.early += 1;
            self.breach(verdict, &format!("early: {arrival}"));
        }
    }

    /// Whether the clock of Redis never reached the due time before the delivery.
    fn is_early(&self, due: u64, at: u64) -> bool {
        let first = self.life.calls.first().map_or(at, |call| call.called.min(at));
        clock::highest(first, at) < due
    }

    fn judge_duplicate(&self, verdict: &mut Verdict, first: &Arrival, second: &Arrival) {
        if let Some(kind) = explanation(&self.observed.faults, self.life.route, first, second) {
            *verdict.duplicates.entry(kind).or_default() += 1;
        } else {
            verdict.unexplained += 1;
            self.breach(verdict, &format!("delivered again at {}, and no fault explains it", second.at));
        }
    }

    fn note_recovery(&self, verdict: &mut Verdict, due: u64, at: u64) {
        let end = self.observed.faults.iter().filter_map(|fault| fault.ended).max().unwrap_or(u64::MAX);
        let is_accepted = self.life.calls.iter().all(|call| call.answered <= end);
        if end < u64::MAX && due <= clock::at(end) && is_accepted && !self.observed.holds(self.life.route, end, at) {
            verdict.recovery = verdict.recovery.max(at.saturating_sub(end));
        }
    }

    /// `due`: by the clock of Redis.
    fn judge_lateness(&self, verdict: &mut Verdict, due: u64, at: u64) {
        let late = clock::at(at).saturating_sub(due);
        let since = at.saturating_sub(late);
        let from = since.saturating_sub(CALM);
        let is_calm = !self.observed.faults.iter().any(|fault| fault.overlaps(from, at))
            && !self.observed.holds(self.life.route, from, at);
        if is_calm {
            if since > self.observed.began + WARM {
                verdict.lateness.push(late);
            }
            if late > MAX_P99 && verdict.late.len() < SHOWN {
                verdict.late.push(history(self.observed, self.id, &format!("{late} ms late")));
            }
            if late > MAX_LATE {
                self.breach(verdict, &format!("{late} ms late, without a fault"));
            }
        }
    }

    /// Whether a fault since `from` can be the reason that a claim from before a call is sent after it.
    fn is_explained(&self, from: u64, arrival: &Arrival) -> bool {
        let sends_late = |fault: &&Caused| match fault.kind {
            Kind::Stop => fault.has_just_ended(arrival.at) && fault.hit_sender(arrival),
            kind => kind.sends_late(self.life.route),
        };
        self.observed.faults.iter().filter(sends_late).any(|fault| fault.overlaps(from, arrival.at))
    }

    fn breach(&self, verdict: &mut Verdict, what: &str) {
        verdict.breach(self.observed, self.id, what);
    }

    /// Notes the lateness of a message that was scheduled and not changed, since it was due and its last call was answered.
    fn note_latest(&self, verdict: &mut Verdict, due: u64, at: u64) {
        let calls = &self.life.calls;
        let answered = calls.iter().map(|call| call.answered).max().unwrap_or(at);
        let late = clock::at(at).saturating_sub(due.max(clock::at(answered)));
        let is_steady = calls.iter().all(|call| clock::is_steady(call.called, at));
        let is_plain = calls.iter().all(|call| call.operation == Operation::Schedule);
        if late > verdict.latest.0
            && is_steady
            && is_plain
            && !self.observed.holds(self.life.route, at.saturating_sub(late), at)
        {
            verdict.latest = (late, history(self.observed, self.id, &format!("{late} ms late, the latest")));
        }
    }
}
