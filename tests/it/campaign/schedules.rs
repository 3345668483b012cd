//! Recurring schedules of a round: a client sets them, pauses one of them and runs one of them, and the judge looks at each
//! occurrence.
//!
//! Each of them ends with the round, so that all of its occurrences are known.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    caused::explanation,
    clients::Clients,
    clock,
    history::{Arrival, Reply},
    judge::{Observed, Verdict},
    nemesis::Kind,
    oracle::MARGIN,
    payload,
    random::Random,
    world::{INSTANCES, LEASE},
};
use crate::support::receiver::wall_clock;

/// The route of all of them.
pub const ROUTE: &str = "ticks";
/// Maximum time until a call has a definite answer, and until a schedule has ended after the faults.
const MAX_REPEAT: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_millis(200);
/// A claim from before a pause is sent within this time, in milliseconds.
const CLAIMED: u64 = 2000;
/// An occurrence of calm times that is later is a breach, in milliseconds.
const MAX_LATE: u64 = 4000;

/// The rule for missed occurrences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missed {
    All,
    Last,
    Skip,
}

/// A schedule, and the calls for it. Times are epoch milliseconds, those of occurrences and runs by the clock of Redis.
#[derive(Clone, Debug)]
pub struct Schedule {
    name: String,
    /// Milliseconds between two occurrences.
    every: u64,
    missed: Missed,
    /// When it was asked for, and when that was answered.
    called: u64,
    answered: u64,
    ends_at: u64,
    /// Answer of a pause, and call that resumes it.
    paused: Option<[u64; 2]>,
    /// Times of additional messages.
    runs: Vec<u64>,
    /// Runs that can have made one.
    unknown_runs: usize,
}

/// Sets a schedule of each rule, and calls for them until they end, `length` from now.
pub async fn live(clients: &Clients, length: Duration, mut random: Random) -> Vec<Schedule> {
    let began = wall_clock();
    let end = began + u64::try_from(length.as_millis()).expect("a short round");
    let ends_at = clock::at(end) / 1000 * 1000;
    let rules = [
        ("all", json!({ "every": "1s", "missed": { "all": 1000 } }), 1000, Missed::All),
        ("last", json!({ "every": "2s" }), 2000, Missed::Last),
        ("skip", json!({ "every": "2s", "missed": "skip" }), 2000, Missed::Skip),
        ("cron", json!({ "cron": "*/3 * * * * *", "missed": { "all": 1000 } }), 3000, Missed::All),
    ];
    let mut all = Vec::new();
    for (name, mut definition, every, missed) in rules {
        let name = format!("{}-{name}", clients.prefix());
        definition["route"] = ROUTE.into();
        definition["payload"] = payload::of(&name, 1).into();
        definition["headers"] = json!({ "X-Version": "1" });
        definition["ends_at"] = rfc3339(ends_at).into();
        let called = wall_clock();
        let path = format!("/v1/schedules/{name}");
        let heard = until_definite(clients, Method::PUT, &path, &definition.to_string()).await;
        assert!(matches!(heard, Some((200 | 201, _))), "{name}: {heard:?}");
        let (answered, runs) = (wall_clock(), Vec::new());
        all.push(Schedule { name, every, missed, called, answered, ends_at, paused: None, runs, unknown_runs: 0 });
    }
    let until = |at: u64| sleep(Duration::from_millis(at.saturating_sub(wall_clock())));
    let room = end.saturating_sub(wall_clock());
    // A run at once, while it waits and while it is paused.
    let mut times: Vec<u64> = (0..4).map(|_| wall_clock() + random.between(0, room)).collect();
    times.sort_unstable();
    until(times[0]).await;
    run(clients, &mut all[1]).await;
    until(times[1]).await;
    let paused = call(clients, Method::POST, &all[0].name, "/pause").await;
    run(clients, &mut all[0]).await;
    until(times[2]).await;
    let called = wall_clock();
    let resumed = call(clients, Method::POST, &all[0].name, "/resume").await;
    // With a step of the clock it can have ended before.
    let is_done = (paused.is_some() && resumed.is_some()) || !clock::is_steady(began, u64::MAX);
    assert!(is_done, "a schedule was neither paused nor resumed: {paused:?} {resumed:?}");
    all[0].paused = paused.map(|answered| [answered, called]);
    until(times[3]).await;
    run(clients, &mut all[2]).await;
    until(end).await;
    all
}

/// Waits until they have ended, and deletes them: a schedule counts as a message that waits. Those that go on.
pub async fn finish(clients: &Clients, all: &[Schedule]) -> Vec<String> {
    let (mut left, deadline) = (Vec::new(), Instant::now() + MAX_REPEAT);
    for schedule in all {
        let path = format!("/v1/schedules/{}", schedule.name);
        loop {
            let heard = until_definite(clients, Method::GET, &path, "").await.map(|(_, text)| text).unwrap_or_default();
            let shown: Value = serde_json::from_str(&heard).unwrap_or_default();
            if shown["next"].is_null() && shown["in_flight"] == false {
                break;
            }
            if Instant::now() > deadline {
                left.push(format!("{} does not end: {heard}\n", schedule.name));
                break;
            }
            sleep(PAUSE).await;
        }
        let heard = until_definite(clients, Method::DELETE, &path, "").await;
        if !matches!(heard, Some((204 | 404, _))) {
            left.push(format!("{} is not deleted: {heard:?}\n", schedule.name));
        }
    }
    left
}

async fn run(clients: &Clients, schedule: &mut Schedule) {
    let path = format!("/v1/schedules/{}/run", schedule.name);
    match clients.ask(0, Method::POST, &path, "").await {
        Some((202, text)) => {
            let json: Value = serde_json::from_str(&text).unwrap_or_default();
            let id = json["id"].as_str().unwrap_or_default();
            let time = id.rsplit('~').next().and_then(|time| time.parse().ok());
            schedule.runs.push(time.expect("an id with a time"));
        }
        _ => schedule.unknown_runs += 1,
    }
}

/// When it was answered.
async fn call(clients: &Clients, method: Method, name: &str, what: &str) -> Option<u64> {
    let (status, _) = until_definite(clients, method, &format!("/v1/schedules/{name}{what}"), "").await?;
    (status / 100 == 2).then(wall_clock)
}

/// Repeats a call while its result is unknown. Status and text.
async fn until_definite(clients: &Clients, method: Method, path: &str, body: &str) -> Option<(u16, String)> {
    let deadline = Instant::now() + MAX_REPEAT;
    for instance in (0..INSTANCES).cycle() {
        if let Some((status, text)) = clients.ask(instance, method.clone(), path, body).await
            && status != 503
        {
            return Some((status, text));
        }
        if Instant::now() > deadline {
            break;
        }
        sleep(PAUSE).await;
    }
    None
}

/// Judges all deliveries of schedules, and takes them out of `arrivals`.
pub fn judge(observed: &Observed, arrivals: &mut HashMap<&str, Vec<&Arrival>>, verdict: &mut Verdict) {
    for schedule in &observed.schedules {
        let mut times: BTreeMap<u64, Vec<&Arrival>> = BTreeMap::new();
        arrivals.retain(|id, found| {
            let Some(time) = id.strip_prefix(&*schedule.name).and_then(|rest| rest.strip_prefix('@')) else {
                return true;
            };
            let planned: Option<jiff::Timestamp> = time.parse().ok();
            let planned = planned.and_then(|time| u64::try_from(time.as_millisecond()).ok()).unwrap_or_default();
            times.insert(planned, std::mem::take(found));
            false
        });
        // A run has the id of an occurrence at its time, which usually is between those of the rule.
        let (times, runs) = times.into_iter().partition(|(planned, _)| planned % schedule.every == 0);
        let found = Found { observed, schedule, times, runs };
        found.judge_times(verdict);
        found.judge_missed(verdict);
        found.judge_sequence(verdict);
        found.judge_runs(verdict);
    }
}

struct Found<'a> {
    observed: &'a Observed,
    schedule: &'a Schedule,
    /// Arrivals by planned time.
    times: BTreeMap<u64, Vec<&'a Arrival>>,
    /// Arrivals of additional messages, by the time of the call.
    runs: BTreeMap<u64, Vec<&'a Arrival>>,
}

/// Whether the endpoint has confirmed it, perhaps too late.
fn is_delivered(arrival: &Arrival) -> bool {
    matches!(arrival.reply, Reply::Status(200) | Reply::Late(200))
}

impl Found<'_> {
    fn judge_times(&self, verdict: &mut Verdict) {
        let Schedule { called, ends_at, paused, .. } = *self.schedule;
        for (planned, arrivals) in &self.times {
            let Some(first) = arrivals.first() else { continue };
            if *planned < clock::at(called) || *planned >= ends_at {
                verdict.corrupt += 1;
                self.breach(verdict, *planned, "is not an occurrence of the schedule");
            }
            if clock::highest(called, first.at) < *planned {
                verdict.early += 1;
                self.breach(verdict, *planned, "early");
            }
            if let Some([paused, resumed]) = paused
                && self.is_steady()
                && *planned > clock::at(paused)
                && (paused + CLAIMED..resumed).contains(&first.at)
            {
                self.breach(verdict, *planned, &format!("left while the schedule was paused, {paused} to {resumed}"));
            }
            let time = self.time(*planned);
            let is_calm = !self.is_troubled(time.saturating_sub(2 * LEASE), first.at);
            if is_calm && first.at > time + MAX_LATE {
                self.breach(verdict, *planned, "late without a fault");
            }
            self.judge_each(verdict, *planned, arrivals);
        }
    }

    fn judge_each(&self, verdict: &mut Verdict, planned: u64, arrivals: &[&Arrival]) {
        for arrival in arrivals {
            if arrival.version != Some(1) || arrival.wrong.is_some() || arrival.route != ROUTE {
                verdict.corrupt += 1;
                self.breach(verdict, planned, &format!("content or headers differ: {arrival}"));
            }
        }
        let confirmed: Vec<_> = arrivals.iter().filter(|arrival| arrival.reply == Reply::Status(200)).collect();
        for pair in confirmed.windows(2) {
            if let Some(kind) = explanation(&self.observed.faults, ROUTE, pair[0], pair[1]) {
                *verdict.duplicates.entry(kind).or_default() += 1;
            } else {
                verdict.unexplained += 1;
                self.breach(verdict, planned, &format!("delivered again at {}, and no fault explains it", pair[1].at));
            }
        }
    }

    /// Each occurrence is sent, except those that the rule leaves out because the schedule could not go on in time.
    fn judge_missed(&self, verdict: &mut Verdict) {
        let Schedule { every, answered, ends_at, missed, .. } = *self.schedule;
        // One that is due right with the answer can belong to the time before.
        let first = (clock::at(answered) / every + 1) * every;
        let mut planned = first;
        while planned < ends_at {
            let (is_last, time) = (planned + every >= ends_at, self.time(planned));
            if self.times.get(&planned).is_some_and(|arrivals| arrivals.iter().any(|arrival| is_delivered(arrival))) {
                verdict.note("occurrences");
            } else if missed == Missed::All || (missed == Missed::Last && is_last) {
                verdict.lost += 1;
                self.breach(verdict, planned, "an occurrence is missing");
            } else if self.is_troubled(time.saturating_sub(2 * LEASE), time + every + MARGIN) {
                verdict.note("occurrences missed");
            } else {
                verdict.lost += 1;
                self.breach(verdict, planned, "an occurrence is missing, and nothing held the one before");
            }
            planned += every;
        }
    }

    /// The next one leaves after the end of the one before. `last` and `skip` give up one that got no reply for one that is due
    /// later, and a fail-over can lose that.
    fn judge_sequence(&self, verdict: &mut Verdict) {
        let ends = self.times.iter().map(|(planned, arrivals)| {
            let end = arrivals.iter().filter(|arrival| is_delivered(arrival)).filter_map(|arrival| arrival.ended).min();
            (*planned, end, arrivals.first().map(|arrival| arrival.at))
        });
        let mut before: Option<(u64, u64)> = None;
        for (planned, end, first) in ends {
            if let (Some((former, end)), Some(first)) = (before, first)
                && first < end
            {
                let gives_up = self.schedule.missed != Missed::All;
                if gives_up && self.observed.had(first.saturating_sub(LEASE), end, Kind::loses) {
                    verdict.note("occurrences out of order, explained");
                } else {
                    verdict.note("occurrences out of order");
                    self.breach(verdict, planned, &format!("left before the end of {former} at {end}"));
                }
            }
            before = end.map(|end| (planned, end)).or(before);
        }
    }

    fn judge_runs(&self, verdict: &mut Verdict) {
        let Schedule { runs, unknown_runs, .. } = self.schedule;
        for run in runs {
            let arrivals = self.runs.get(run).or_else(|| self.times.get(run)).map(Vec::as_slice).unwrap_or_default();
            verdict.note("runs");
            if !arrivals.iter().any(|arrival| is_delivered(arrival)) {
                verdict.lost += 1;
                self.breach(verdict, *run, "an additional run is lost");
            }
        }
        if self.runs.len() > runs.len() + unknown_runs {
            let found: Vec<_> = self.runs.keys().collect();
            verdict.breaches.push(format!("more runs than were asked for: {found:?}, {:?}\n", self.schedule));
        }
        for (called, arrivals) in &self.runs {
            self.judge_each(verdict, *called, arrivals);
        }
    }

    /// Whether the clock was not stepped in the round.
    fn is_steady(&self) -> bool {
        clock::is_steady(self.schedule.called, u64::MAX)
    }

    /// The time of the machine at a planned time, if the clock is steady.
    fn time(&self, planned: u64) -> u64 {
        let Schedule { called, .. } = *self.schedule;
        planned + called - clock::at(called)
    }

    /// Whether a fault or a pause touches this time, or the clock was stepped.
    fn is_troubled(&self, from: u64, to: u64) -> bool {
        self.observed.had(from, to, |_| true)
            || !self.is_steady()
            || self.schedule.paused.is_some_and(|[paused, resumed]| paused <= to + MARGIN && from <= resumed + MARGIN)
    }

    fn breach(&self, verdict: &mut Verdict, planned: u64, what: &str) {
        let mut lines: Vec<(u64, String)> = Vec::new();
        let (near, time) = (15_000, self.time(planned));
        for (time, arrivals) in self.times.range(planned.saturating_sub(near)..planned + near) {
            lines.extend(arrivals.iter().map(|arrival| (arrival.at, format!("occurrence {time}: {arrival}"))));
        }
        let faults = self.observed.faults.iter().filter(|fault| fault.overlaps(time.saturating_sub(near), time + near));
        lines.extend(faults.map(|fault| (fault.began, format!("{fault:?}"))));
        lines.sort();
        let lines: Vec<_> = lines.into_iter().map(|(_, line)| format!("  {line}\n")).collect();
        let lines = lines.concat();
        verdict.breaches.push(format!("{} at {planned}: {what}\n  {:?}\n{lines}", self.schedule.name, self.schedule));
    }
}

fn rfc3339(millis: u64) -> String {
    jiff::Timestamp::from_millisecond(i64::try_from(millis).expect("a time")).expect("a time").to_string()
}
