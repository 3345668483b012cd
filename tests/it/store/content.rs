//! The content of the partition when a scene begins.

use bytes::Bytes;
use punctual::{
    message::{EndRecord, Metadata, StoredMessage, codec},
    store::{
        PARKED,
        memory::{MemoryHistory, MemoryPartition, SHUT},
    },
    time::UnixMillis,
};

use super::arguments::record;

/// No lease of the scenes ends before it, in microseconds: the year 2242.
pub const HELD_UNTIL: u64 = 1 << 53;
/// Later than any clock of the tests, in milliseconds: the year 2096.
pub const FAR_AHEAD: u64 = 4_000_000_000_000;
/// A lease that has ended, in microseconds: long ago.
pub const EXPIRED: u64 = 2_000_000;
/// Instances that claimed: one holds what it took, one was slow, one claims no more.
pub const HOLDER: u64 = 1;
pub const LATE: u64 = 2;
pub const FORGOTTEN: u64 = 3;
/// Dead and pending since this time, in milliseconds: long ago.
pub const LONG_AGO: u64 = 1000;

/// Where `rows` are those of a route with flows: a message is parked in each of two flows. Messages in flight keep the
/// one busy. In `ordered` flows a message that failed holds its flow.
pub fn rows_with_flows(ordered: bool) -> MemoryPartition {
    let mut rows = rows();
    let live: Vec<String> = rows.bodies.keys().cloned().chain(["orphan".to_owned()]).collect();
    for (n, id) in live.iter().enumerate() {
        let name = match &**id {
            _ if ordered && rows.unack.contains(id) => &**id,
            "due" | "suspect" | "expired" | "dead" => "b",
            _ => "a",
        };
        rows.flow.flows.insert(id.clone(), format!("{n} {name}"));
    }
    for (n, (id, name)) in [("parked", "a"), ("parked-too", "b"), ("parked-later", "b")].into_iter().enumerate() {
        let (due, number) = (LONG_AGO + 5 + n as u64, 100 + n);
        rows.bodies.insert(id.to_owned(), rows.bodies["due"].clone());
        rows.pending.insert(id, PARKED + due);
        rows.flow.flows.insert(id.to_owned(), format!("{number} {name}"));
        rows.flow.waiting.insert(format!("{name}\0{due:016}\0{number:016}\0{id}"));
    }
    rows.flow.flows.insert(String::new(), "103".to_owned());
    let holder = ordered.then_some("failed");
    for id in rows.unack.iter().map(|(id, _)| id).chain(holder) {
        let name = rows.flow.flows[id].split(' ').nth(1).expect("a flow");
        rows.flow.flights.insert(format!("{name}\0{id}"));
    }
    rows.flow.gates = [("a".to_owned(), SHUT), ("b".to_owned(), LONG_AGO)].into();
    rows.flow.slots = [("a".to_owned(), 4e15), ("b".to_owned(), 1e6), ("idle".to_owned(), 1e6)].into();
    rows.flow.rules = [("b".to_owned(), "5/s 3 - -".to_owned())].into();
    rows
}

/// The group of some messages of `rows_with_groups`.
pub const GROUP: &str = "g";

/// Where `rows` are in groups: most messages in `GROUP`, some in one with a longer name, some in none.
pub fn rows_with_groups() -> MemoryPartition {
    let mut rows = rows();
    for (id, body) in &mut rows.bodies {
        let group = match &**id {
            "due" | "held-anew" | "dead-crashed" => continue,
            "later" | "held-both" => "g:1",
            _ => GROUP,
        };
        let mut message = codec::decode(body).expect("readable");
        message.metadata.group = Some(group.to_owned());
        *body = codec::encode(&message);
        rows.groups.insert(id.clone(), group.to_owned());
    }
    rows.groups.insert("orphan".to_owned(), GROUP.to_owned());
    rows
}

/// The rows that every scene begins with; ids without a body are orphans.
pub fn rows() -> MemoryPartition {
    let mut rows = MemoryPartition::default();
    let mut put = |id: &str, counts: Option<(u32, u32)>| {
        let metadata = Metadata { key: Some(id.to_owned()), ..Metadata::default() };
        let at = UnixMillis::new(LONG_AGO).expect("small");
        let body = StoredMessage { due: at, accepted: at, metadata, payload: Bytes::copy_from_slice(id.as_bytes()) };
        rows.bodies.insert(id.to_owned(), codec::encode(&body));
        if let Some((failures, crashes)) = counts {
            if !id.starts_with("dead") {
                rows.attempts.insert(id.to_owned(), (failures, crashes));
            }
            rows.errors.insert(id.to_owned(), (LONG_AGO, failures, format!("rejected: what happened to {id}")));
        }
    };
    for (id, counts) in [
        ("due", None),
        ("failed", Some((2, 0))),
        ("suspect", Some((0, 2))),
        ("later", None),
        ("held", None),
        ("held-failed", Some((3, 1))),
        ("held-crashed", Some((0, 1))),
        ("held-both", Some((1, 2))),
        ("held-anew", None),
        ("expired", None),
        ("expired-often", Some((1, 4))),
        ("dead", Some((1, 0))),
        ("dead-crashed", Some((2, 5))),
    ] {
        put(id, counts);
    }
    for (id, count) in [("failed", 1), ("held-failed", 10), ("held-both", 2), ("expired-often", 1), ("dead", 2)] {
        let tries = (0..count).map(|n| format!("{LONG_AGO} {n} failed 500 host:1 HTTP 500: what happened to {id}"));
        rows.tries.insert(id.to_owned(), tries.collect());
    }
    let set = |members: &[(&str, u64)]| members.iter().map(|(id, score)| ((*id).to_owned(), *score)).collect();
    rows.pending = set(&[
        ("due", LONG_AGO),
        ("failed", LONG_AGO + 1),
        ("suspect", LONG_AGO + 2),
        ("orphan", LONG_AGO + 3),
        ("later", FAR_AHEAD),
    ]);
    let held = HELD_UNTIL - 1;
    rows.unack = set(&[
        ("held", held),
        ("held-failed", held),
        ("held-crashed", held),
        ("held-both", held),
        ("held-anew", held),
        ("expired", EXPIRED),
        ("expired-often", EXPIRED + 1_000_000),
    ]);
    rows.claims = [(HOLDER, (5, held)), (LATE, (7, EXPIRED)), (FORGOTTEN, (1, 1_000_000))].into();
    rows.latest = Some((HOLDER, EXPIRED));
    rows.remembered = [("long-gone", 1000, false), ("long-gone-too", 1000, true), ("ended", FAR_AHEAD, true)]
        .map(|(id, at, cancelled)| (id.to_owned(), (at, cancelled)))
        .into();
    let records = ["failed", "held", "dead", "long-gone", "ended"].map(|id| (id.to_owned(), record(7)));
    rows.records = records.into();
    rows.outbox = set(&[("dead", LONG_AGO), ("dead-crashed", FAR_AHEAD), ("long-gone", LONG_AGO)]);
    // With `max: 1`, the first block is deleted with the next end.
    let end = |n: u64| {
        let id = ["ended", "failed", "long-gone"].get(usize::try_from(n % 7).expect("small")).copied();
        let id = id.map_or_else(|| format!("ended-{n}"), str::to_owned);
        let record = EndRecord::of(&rows.bodies["due"], 1).with_status(Some(200));
        (FAR_AHEAD - 1000 + n, id.clone(), record.delivered(&id))
    };
    rows.history = MemoryHistory { first: 0, last: FAR_AHEAD - 981, ends: (0..20).map(end).collect() };
    rows.dead = set(&[("dead", LONG_AGO), ("dead-crashed", LONG_AGO + 1), ("dead-lost", LONG_AGO + 2)]);
    rows
}
