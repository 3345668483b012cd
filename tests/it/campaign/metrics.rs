//! Compares the counters and gauges of the instances with what the clients and the sinks have seen.
//!
//! The counters of an instance that was killed or stopped are lost: only those of instances that lived through the round are
//! compared. A call without an answer, and a settlement without one, can count or not.

use std::{collections::BTreeMap, ops::RangeInclusive};

use super::{
    history::{Answer, Call, Operation, Reply},
    judge::Observed,
    kinds::Kind,
    oracle::Owed,
    world::{INSTANCES, World},
};
use crate::support::http;

/// The values of all instances.
pub struct Snapshot(Vec<Page>);

struct Page {
    pid: i32,
    /// By name with labels.
    values: BTreeMap<String, u64>,
}

impl Snapshot {
    /// All instances must be ready.
    pub async fn take(world: &World) -> Self {
        let (client, mut pages) = (http::client(), Vec::new());
        for (instance, base) in world.instances.iter().zip(&world.bases) {
            let pid = instance.lock().await.pid().as_raw_nonzero().get();
            let answer = client.get(format!("{base}/metrics")).send().await.expect("it is ready");
            let text = answer.text().await.expect("a page");
            pages.push(Page { pid, values: parse(&text) });
        }
        Self(pages)
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counters and gauges of things")]
fn parse(text: &str) -> BTreeMap<String, u64> {
    let lines = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
    lines.map(|(name, value)| (name.to_owned(), value.parse::<f64>().unwrap_or(0.0) as u64)).collect()
}

impl Page {
    /// Over all routes.
    fn sum(&self, name: &str) -> u64 {
        self.sum_of(name, "")
    }

    /// Over all series with this label.
    fn sum_of(&self, name: &str, label: &str) -> u64 {
        let is_meant = |series: &str| {
            series.strip_prefix(name).is_some_and(|labels| labels.starts_with('{') && labels.contains(label))
        };
        self.values.iter().filter(|(series, _)| is_meant(series)).map(|(_, value)| value).sum()
    }
}

/// Kinds after which a settlement can have lost its answer, so that no instance counts it.
const UNCOUNTED: [Kind; 10] = [
    Kind::Stop,
    Kind::RedisKill,
    Kind::RedisFreeze,
    Kind::FailOver,
    Kind::CutOff,
    Kind::Slots,
    Kind::Clients,
    Kind::Network,
    Kind::Right,
    Kind::Clock,
];
/// Kinds after which a counted delivery into the list can be lost.
const REPEATED: [Kind; 4] = [Kind::RedisKill, Kind::RedisFreeze, Kind::FailOver, Kind::CutOff];

/// The differences. `dead`: dead letters of all rounds.
pub fn compare(before: &Snapshot, after: &Snapshot, observed: &Observed, dead: usize) -> Vec<String> {
    let mut found = Vec::new();
    for (instance, page) in after.0.iter().enumerate() {
        let dead = u64::try_from(dead).expect("a count");
        for (name, expected) in [
            ("punctual_pending_messages", 0),
            ("punctual_unacked_messages", 0),
            ("punctual_in_flight_messages", 0),
            ("punctual_stored_bytes", 0),
            ("punctual_dead_messages", dead),
        ] {
            let value = page.sum(name);
            if value != expected {
                found.push(format!("instance {instance}: {name} is {value} at the end, expected {expected}\n"));
            }
        }
    }
    let lived: Vec<usize> = (0..INSTANCES).filter(|index| before.0[*index].pid == after.0[*index].pid).collect();
    let count = |instance: usize, name: &str| after.0[instance].sum(name) - before.0[instance].sum(name);
    let mut check = |what: &str, value: u64, expected: &RangeInclusive<u64>| {
        println!("{what}: {value}, expected {expected:?}");
        if !expected.contains(&value) {
            found.push(format!("{what} is {value}, expected {expected:?}\n"));
        }
    };
    for instance in &lived {
        let name = "punctual_messages_scheduled_total";
        let expected = calls(observed, *instance, &[Operation::Schedule], &[Operation::Schedule, Operation::Replace]);
        // Not those of sources. An occurrence of a schedule is accepted with the one before it.
        let via_api = |page: &Page| page.sum_of(name, r#"via="api""#);
        let value = via_api(&after.0[*instance]) - via_api(&before.0[*instance]);
        check(&format!("instance {instance}: {name}"), value, &expected);
        let name = "punctual_messages_cancelled_total";
        let expected = calls(observed, *instance, &[Operation::Cancel], &[Operation::Cancel]);
        check(&format!("instance {instance}: {name}"), count(*instance, name), &expected);
    }
    let had = |kinds: &[Kind]| observed.faults.iter().any(|fault| kinds.contains(&fault.kind));
    let is_exact = lived.len() == INSTANCES && !had(&UNCOUNTED);
    let sum = |name| lived.iter().map(|instance| count(*instance, name)).sum::<u64>();
    let confirmed =
        observed.arrivals.iter().filter(|arrival| matches!(arrival.reply, Reply::Status(200) | Reply::Late(200)));
    let most = if had(&REPEATED) { u64::MAX } else { (confirmed.count() + observed.list.len()) as u64 };
    let owed = observed.lives.values().filter(|life| !life.is_rejected && life.owed() == Owed::Delivery);
    let least = if is_exact { owed.count() as u64 } else { 0 };
    check(
        "punctual_messages_delivered_total of all that lived",
        sum("punctual_messages_delivered_total"),
        &(least..=most),
    );
    let dead = observed.dead.len() as u64;
    let least = if is_exact { dead } else { 0 };
    // A message that was redriven was a dead letter before.
    let calls = observed.lives.values().flat_map(|life| &life.calls);
    let is_redriven = |call: &&Call| call.operation == Operation::Redrive && !matches!(call.answer, Answer::Nothing(_));
    let most = if had(&REPEATED) { u64::MAX } else { dead + calls.filter(is_redriven).count() as u64 };
    check("punctual_messages_dead_total of all that lived", sum("punctual_messages_dead_total"), &(least..=most));
    found
}

/// How many ids an instance counted: at least those of `sure` calls that were answered as executed at once, at most all of
/// `possible` calls that can have been executed.
fn calls(observed: &Observed, instance: usize, sure: &[Operation], possible: &[Operation]) -> RangeInclusive<u64> {
    let (mut least, mut most) = (0, 0);
    for life in observed.lives.values() {
        let mut was_unknown = false;
        for call in &life.calls {
            let Call { operation, answer, .. } = call;
            let (is_done, is_unknown) = (matches!(answer, Answer::Done { .. }), matches!(answer, Answer::Unknown(_)));
            if call.instance == instance {
                least += u64::from(is_done && sure.contains(operation) && !was_unknown);
                most += u64::from((is_done || is_unknown) && possible.contains(operation));
            }
            was_unknown |= is_unknown;
        }
    }
    least..=most
}
