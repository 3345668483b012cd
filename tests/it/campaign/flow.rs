//! Judges flows: order, messages in flight and rate of each key at the endpoint, over all messages of the key.

use std::collections::{HashMap, HashSet};

use super::{
    caused::SETTLED_WITHIN,
    clock,
    history::{Answer, Arrival, Call, Operation, Reply},
    judge::{Observed, Verdict},
    nemesis::Kind,
    oracle::Life,
    routes::{BURST, PARALLEL, RATE},
    world::LEASE,
};

/// From the time at which the rate lets a message leave to its arrival, in milliseconds: without a fault, with an endpoint that
/// keeps connections busy, with connections to Redis that are killed, so that a claim is repeated until its answer comes.
const ON_ITS_WAY: u64 = 550;
const WITH_BUSY_ENDPOINT: u64 = 1300;
const WITH_REPEATED_CLAIM: u64 = 3300;
/// Connections to the endpoint are busy for this time after a fault of it, in milliseconds. A probe finds the endpoint after a second or
/// two, and all messages that waited for that leave together.
pub const BUSY_AFTER: u64 = 4000;
/// Arrivals of a flow that a breach of its rate prints.
const SHOWN: usize = 20;

/// A message with a place that is known: all its calls were answered.
struct Placed<'a> {
    id: &'a str,
    due: u64,
    /// Its due time before it was delivered at once, which is permitted to the first of a flow alone.
    place: u64,
    /// Its acceptance, or its last change, is between these times.
    called: u64,
    answered: u64,
    /// First arrival since then: it had left by that time.
    first: Option<u64>,
    /// When it was first delivered or rejected: the next one can leave.
    end: Option<u64>,
    is_changed: bool,
}

pub fn judge(observed: &Observed, arrivals: &HashMap<&str, Vec<&Arrival>>, verdict: &mut Verdict) {
    let mut keys: HashMap<(&str, &str), Vec<(&str, &Life)>> = HashMap::new();
    for (id, life) in &observed.lives {
        if let Some(flow) = &life.flow {
            keys.entry((life.route, flow)).or_default().push((id, life));
        }
    }
    for ((route, _), messages) in keys {
        let mut of_key: Vec<&Arrival> =
            messages.iter().filter_map(|(id, _)| arrivals.get(id)).flatten().copied().collect();
        of_key.sort_by_key(|arrival| arrival.at);
        match route {
            "ordered" => judge_order(observed, &messages, arrivals, verdict),
            "parallel" => judge_parallel(observed, &of_key, verdict),
            _ => judge_rate(observed, &of_key, verdict),
        }
    }
}

/// A message leaves after the end of each one before it: by due time, then by acceptance.
fn judge_order(
    observed: &Observed,
    messages: &[(&str, &Life)],
    arrivals: &HashMap<&str, Vec<&Arrival>>,
    verdict: &mut Verdict,
) {
    let mut placed: Vec<Placed> = messages
        .iter()
        .filter_map(|(id, life)| place(id, life, arrivals.get(id).map(Vec::as_slice).unwrap_or_default()))
        .collect();
    placed.sort_by_key(|message| message.due);
    for (index, later) in placed.iter().enumerate() {
        let Some(first) = later.first else { continue };
        // One that is accepted later does not come before a message that has left.
        let left = later.due.max(clock::at(later.called));
        let before = placed[..index].iter().filter(|earlier| {
            let is_before = earlier.due < later.place || (earlier.due == later.due && earlier.answered < later.called);
            is_before
                && clock::at(earlier.answered) <= left
                && clock::is_steady(earlier.called.min(later.called), first.max(earlier.answered))
        });
        for earlier in before {
            verdict.note("ordered pairs");
            let Some(end) = earlier.end.filter(|end| *end > first) else { continue };
            // A claim from before a change is sent after it.
            if later.is_changed && observed.is_explained(first.saturating_sub(LEASE), first) {
                verdict.note("order, explained");
                continue;
            }
            verdict.note("out of order");
            let what = format!("arrived at {first}, before the end of {} at {end}, which comes first", earlier.id);
            verdict.breach(observed, later.id, &what);
            verdict.breach(observed, earlier.id, "the message before that");
        }
    }
}

fn place<'a>(id: &'a str, life: &Life, arrivals: &[&Arrival]) -> Option<Placed<'a>> {
    let is_sent = |call: &&Call| call.operation == Operation::Schedule && !matches!(call.answer, Answer::Nothing(_));
    let writes = life.calls.iter().filter(is_sent);
    // A first call without an answer is answered by its repetition: the message is accepted between the two. With a delay each of
    // them asks for another time.
    if writes.clone().map(|call| call.not_before).collect::<HashSet<_>>().len() > 1 {
        return None;
    }
    let is_definite = life
        .calls
        .iter()
        .all(|call| call.operation == Operation::Schedule || !matches!(call.answer, Answer::Unknown(_)));
    let done = life.calls.iter().rfind(|call| matches!(call.answer, Answer::Done { .. }))?;
    let Answer::Done { due } = done.answer else { return None };
    // A repeated call is answered with the time of the next attempt, if there was one already.
    let due = match arrivals.first() {
        Some(first) if done.operation == Operation::Schedule => due.min(first.due),
        _ => due,
    };
    let place = life.calls.iter().fold(due, |place, call| match (&call.answer, call.operation) {
        (Answer::Done { due }, Operation::DeliverNow) => place.min(*due),
        (Answer::Done { due }, _) => *due,
        _ => place,
    });
    let is_redriven = life.calls.iter().any(|call| call.operation == Operation::Redrive);
    if !is_definite || is_redriven || done.operation == Operation::Cancel {
        return None;
    }
    let is_changed = done.operation != Operation::Schedule;
    let called = if is_changed { done.called } else { writes.map(|call| call.called).min()? };
    // Arrivals before a change belong to the former place.
    let since = if is_changed { done.answered } else { 0 };
    let first = arrivals.iter().map(|arrival| arrival.at).find(|at| *at >= since);
    let is_end = |arrival: &&&Arrival| match arrival.reply {
        Reply::Status(status) | Reply::Late(status) => status == 200 || (status == 422 && life.is_rejected),
        Reply::Open | Reply::Dropped => false,
    };
    let end = arrivals.iter().filter(is_end).filter_map(|arrival| arrival.ended).min();
    Some(Placed { id, due, place, called, answered: done.answered, first, end, is_changed })
}

/// Never more at the endpoint at once. A message counts until its lease ends, which a stopped instance does not notice.
fn judge_parallel(observed: &Observed, arrivals: &[&Arrival], verdict: &mut Verdict) {
    let mut open: Vec<&Arrival> = Vec::new();
    for arrival in arrivals {
        open.retain(|other| other.ended.is_none_or(|ended| ended > arrival.at));
        open.push(arrival);
        verdict.at_most("at once", open.len());
        if open.len() <= PARALLEL {
            continue;
        }
        let since = open.iter().map(|arrival| arrival.at).min().unwrap_or(arrival.at);
        let from = since.saturating_sub(LEASE);
        if observed.is_explained(from, arrival.at) || observed.is_delayed(from, arrival.at) {
            verdict.note("parallel, explained");
        } else {
            verdict.note("too many at once");
            let ids: Vec<_> = open.iter().map(|arrival| &*arrival.id).collect();
            verdict.breach(observed, &arrival.id, &format!("{} of its flow are at the endpoint: {ids:?}", open.len()));
        }
    }
}

/// At most `burst` + rate x time, in any interval (GCRA). Every arrival counts: retries take a turn, too.
fn judge_rate(observed: &Observed, arrivals: &[&Arrival], verdict: &mut Verdict) {
    let interval = 1000 / RATE;
    let (mut next, mut permitted_before) = (0, 0);
    for (index, arrival) in arrivals.iter().enumerate() {
        let since = arrival.at.saturating_sub(SETTLED_WITHIN);
        let overlaps = |from: u64, kind: Kind| observed.had(from, arrival.at, |one| one == kind);
        let permitted = if overlaps(since, Kind::Clients) {
            WITH_REPEATED_CLAIM
        } else if overlaps(arrival.at.saturating_sub(BUSY_AFTER), Kind::Endpoint) {
            WITH_BUSY_ENDPOINT
        } else {
            ON_ITS_WAY
        };
        // A busy flow stays as far above its rate as was permitted.
        if permitted < permitted_before {
            next = next.min(arrival.at + (BURST - 1) * interval);
        }
        permitted_before = permitted;
        let excess = u64::saturating_sub(next, arrival.at + (BURST - 1) * interval);
        next = next.max(arrival.at) + interval;
        if excess <= permitted {
            verdict.at_most("ms above the rate", usize::try_from(excess).expect("a short time"));
            continue;
        }
        // The turns that a stopped instance had taken are used when it goes on; those of a lost primary are taken again. With a
        // step of the clock many turns come at once.
        next = arrival.at + BURST * interval;
        let is_steady = clock::is_steady(arrival.at.saturating_sub(2 * LEASE), arrival.at);
        if observed.is_explained(since, arrival.at) || observed.is_delayed(since, arrival.at) || !is_steady {
            verdict.note("rate, explained");
        } else {
            verdict.note("above the rate");
            let before = arrivals[index.saturating_sub(SHOWN)..index].iter();
            let before: Vec<String> = before.map(|one| format!("\n  before that, {}: {one}", one.id)).collect();
            let what = format!("arrived {excess} ms above the rate of its flow: {arrival}{}", before.concat());
            verdict.breach(observed, &arrival.id, &what);
        }
    }
}
