//! Groups: messages that are cancelled, moved or delivered together, each of which is accounted for.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    calls::{Draft, Times},
    clients::Clients,
    clock,
    history::{Answer, Arrival, Call, Operation, Reply},
    judge::{Observed, Verdict},
    oracle::{Life, MARGIN},
    random::Random,
    world::{INSTANCES, LEASE},
};
use crate::support::receiver::wall_clock;

/// Messages of a group.
const MEMBERS: [u64; 2] = [2, 8];
/// In milliseconds.
const DELAYS: [u64; 2] = [1000, 6000];
/// Time by which members are moved, in milliseconds.
const SHIFT: u64 = 2000;
const MAX_REPEAT: Duration = Duration::from_secs(25);
const PAUSE: Duration = Duration::from_millis(200);

/// A change of a group that was answered at its first call.
#[derive(Clone, Debug)]
pub struct Change {
    route: &'static str,
    group: String,
    operation: Operation,
    members: Vec<String>,
    /// Members that the answer does not name: it only counts them.
    unnamed: Vec<String>,
    /// The number of changed ones among those, by the answer.
    changed: u64,
    /// Epoch milliseconds: when the members were first scheduled, and when the change was asked for and answered.
    scheduled: u64,
    called: u64,
    answered: u64,
}

impl Clients {
    /// The life of a group: its messages are accepted with one call, and changed with another one.
    pub async fn live_as_group(&self, number: u64, mut random: Random) {
        let route = random.pick(self.routes());
        let group = format!("{}-g{number}", self.prefix());
        let count = random.between(MEMBERS[0], MEMBERS[1]);
        let ids: Vec<String> = (0..count).map(|n| format!("{}-{number}-{n}", self.prefix())).collect();
        for id in &ids {
            self.oracle.begin(id, Life::of(route));
        }
        let delay = random.between(DELAYS[0], DELAYS[1]);
        let draft = Draft { group: Some(&group), ..Draft::of(route, &ids[0]) };
        let due = clock::now() + delay;
        let times = Times { delay, deliver_at: Some(due) };
        // A call without an answer can have been executed for a part of them.
        let scheduled = wall_clock();
        if !self.settle(&ids, &draft.array(&ids, times), &mut random).await {
            return;
        }
        sleep(Duration::from_millis(random.between(0, delay + MARGIN))).await;
        let (operation, method, path) = match random.between(1, 100) {
            1..=50 => (Operation::Cancel, Method::DELETE, ""),
            51..=75 => (Operation::Reschedule, Method::PATCH, ""),
            _ => (Operation::DeliverNow, Method::POST, "/deliver"),
        };
        let path = format!("/v1/routes/{route}/groups/{group}{path}");
        let mut change = Change {
            route,
            group,
            operation,
            unnamed: ids.clone(),
            members: ids,
            changed: 0,
            scheduled,
            called: wall_clock(),
            answered: 0,
        };
        // A repeated call moves no message twice.
        let body = match operation {
            Operation::Reschedule => json!({ "shift": format!("+{SHIFT}ms"), "before": clock::now() }).to_string(),
            _ => String::new(),
        };
        self.settle_group(&mut change, (method, &path, &body), due, &mut random).await;
    }

    async fn settle_group(
        &self,
        change: &mut Change,
        (method, path, body): (Method, &str, &str),
        due: u64,
        random: &mut Random,
    ) {
        let deadline = Instant::now() + MAX_REPEAT;
        let mut instance = usize::try_from(random.next() % 3).expect("an index") % INSTANCES;
        for attempt in 0.. {
            let called = wall_clock();
            let heard = self.ask(instance, method.clone(), path, body).await;
            let answered = wall_clock();
            if heard.as_ref().is_some_and(|(status, _)| *status == 422) {
                // The clock of Redis has stepped back behind `before`: nothing was moved.
                return;
            }
            let result = heard.filter(|(status, _)| *status != 503);
            let json: Option<Value> = result.as_ref().and_then(|(_, text)| serde_json::from_str(text).ok());
            // The call ended before the end of the group: its repetition begins anew.
            let json = json.filter(|json| json["more"] != true);
            let kept = json.as_ref().map(named).unwrap_or_default();
            (change.called, change.answered) = (called, answered);
            change.unnamed = change.members.iter().filter(|id| !kept.contains(*id)).cloned().collect();
            if let Some(json) = &json {
                let field = if change.operation == Operation::Cancel { "cancelled" } else { "moved" };
                let Some(changed) = json[field].as_u64() else {
                    self.is_unexpected(format!("{path}: {:?} answered with {result:?}", change.operation));
                    return;
                };
                change.changed = changed;
            }
            self.record_group(change, due, instance, json.is_some());
            if json.is_some() {
                // After a call without an answer the count says nothing: that one may have changed some.
                if attempt == 0 {
                    self.changes.lock().expect("no panic under this lock").push(change.clone());
                }
                return;
            }
            if Instant::now() >= deadline {
                return;
            }
            instance = (instance + 1) % INSTANCES;
            sleep(PAUSE).await;
        }
    }

    /// The call, as one for each member. An answer that counts fewer than it could leaves open which ones had ended before.
    fn record_group(&self, change: &Change, due: u64, instance: usize, is_answered: bool) {
        let Change { operation, called, answered, .. } = *change;
        let (not_before, moved) = match operation {
            Operation::Reschedule => (due, due + SHIFT),
            _ => (clock::lowest(called), clock::lowest(called)),
        };
        let is_whole = usize::try_from(change.changed).is_ok_and(|changed| changed == change.unnamed.len());
        let is_steady = clock::is_steady(change.scheduled, answered);
        for id in &change.members {
            let answer = if !is_answered {
                Answer::Unknown("no definite answer for the group".into())
            } else if !change.unnamed.contains(id) {
                Answer::Nothing("in flight or refused".into())
            } else if is_whole || (is_steady && due > clock::at(answered)) {
                Answer::Done { due: moved }
            } else {
                Answer::Unknown("perhaps it had ended".into())
            };
            let call = Call { operation, version: 0, not_before, instance, called, answered, answer };
            self.oracle.record(id, call);
        }
        self.count(&format!("{operation:?} of a group: {}", if is_answered { "done" } else { "unknown" }));
    }

    /// Groups that still have messages, after all have ended.
    pub async fn groups_left(&self) -> Vec<String> {
        let mut left = Vec::new();
        let changes = self.changes.lock().expect("no panic under this lock").clone();
        for Change { route, group, .. } in changes {
            let path = format!("/v1/routes/{route}/groups/{group}?payload=false");
            let heard = self.ask(0, Method::GET, &path, "").await;
            let text = heard.map(|(_, text)| text).unwrap_or_default();
            let json: Value = serde_json::from_str(&text).unwrap_or_default();
            if json["messages"].as_array().is_none_or(|messages| !messages.is_empty()) {
                left.push(format!("group {group} of {route} is not empty in the end: {text}\n"));
            }
        }
        left
    }
}

/// Ids that the answer names: they stay as they are.
fn named(json: &Value) -> HashSet<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let in_flight = json["in_flight"].as_array().into_iter().flatten().map(text);
    let refused = json["refused"].as_array().into_iter().flatten().map(|one| text(&one["id"]));
    in_flight.chain(refused).collect()
}

/// Members that the answer neither counts nor names had ended before it; after a cancellation all others are delivered.
pub fn judge(observed: &Observed, verdict: &mut Verdict) {
    let mut delivered: HashMap<&str, u64> = HashMap::new();
    let is_confirmed = |arrival: &&Arrival| matches!(arrival.reply, Reply::Status(200) | Reply::Late(200));
    for arrival in observed.arrivals.iter().filter(is_confirmed) {
        let first = delivered.entry(&arrival.id).or_insert(arrival.at);
        *first = arrival.at.min(*first);
    }
    for (id, (_, at)) in &observed.seen {
        delivered.insert(id, *at);
    }
    for element in &observed.list {
        delivered.entry(&element.id).or_insert(0);
    }
    for change in &observed.changes {
        verdict.note("groups");
        let times = change.unnamed.iter().filter_map(|id| delivered.get(&**id));
        // It is seen in the list a moment later.
        let before = times.clone().filter(|at| **at <= change.answered + MARGIN).count();
        let in_all = times.count();
        let changed = usize::try_from(change.changed).expect("few");
        let missing = change.unnamed.len().saturating_sub(changed);
        // After a step backwards messages were accepted later than the call that changes them.
        let is_explained = observed.is_explained(change.called.saturating_sub(LEASE), change.answered + LEASE)
            || !clock::is_steady(change.scheduled, change.answered);
        let is_cancel = change.operation == Operation::Cancel;
        let is_accounted = before >= missing && (!is_cancel || in_all == before);
        if changed > change.unnamed.len() || !is_accounted {
            if is_explained {
                verdict.note("groups, explained");
                continue;
            }
            verdict.note("groups that do not add up");
            let what = format!("{before} were delivered before the answer, {in_all} in all: {change:?}");
            verdict.breach(observed, &change.members[0], &what);
        }
    }
}
