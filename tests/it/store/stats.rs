//! Statistics of a partition and the list of its flows, computed from all that it holds.

use std::collections::BTreeSet;

use punctual::{
    message::{FlowLimits, MessageId, Rate},
    queue::HORIZONS,
    store::{
        FlowRules, FlowState, PARKED, Partition, Pause,
        memory::{MemoryPartition, SHUT},
        redis::RedisStore,
    },
    time::UnixMillis,
};

use super::{
    bench::Bench,
    content::{EXPIRED, LONG_AGO},
    operation::PAUSE_NOTE,
    rows::key,
    scene::partition,
};

/// Later than the deferral of any message, in ms from now.
const MAX_DEFERRED: u64 = 40_000;
/// Messages that are read to find the oldest.
const MAX_SEEN: usize = 50;
const MAX_CLAIMED: usize = 8;

/// Score, due time, failures and size of a pending message.
type Put = (u64, u64, u32, usize);

impl Bench {
    /// Statistics of `partition`, which holds `rows`.
    pub async fn check_stats(&self, store: &RedisStore, partition: &Partition, rows: &MemoryPartition, flows: bool) {
        let stats = store.stats(partition).await.expect("the server answers");
        let now = stats.now / 1000;
        let counts = (stats.paused.is_some(), stats.pending, stats.due, stats.unack, stats.dead);
        let [pending, unack, dead] = [&rows.pending, &rows.unack, &rows.dead].map(|set| set.len() as u64);
        let up_to = |last| rows.pending.up_to(last).count() as u64;
        assert_eq!(counts, (rows.paused, pending, up_to(now), unack, dead));
        assert_eq!((stats.bytes, stats.retrying), (rows.bytes, rows.attempts.len() as u64));
        let parked = rows.pending.iter().filter(|(_, score)| *score >= PARKED).count() as u64;
        let waiting = if flows { rows.flow.gates.len() as u64 } else { 0 };
        assert_eq!((stats.parked, stats.waiting_flows), (parked, waiting));
        assert_eq!(stats.due_within, HORIZONS.map(|(_, horizon)| up_to(now + horizon)));
        let times = (stats.next_due, stats.oldest_due, stats.latest_claimed);
        let next_due = rows.pending.head().filter(|head| *head < PARKED).and_then(UnixMillis::new);
        assert_eq!(times, (next_due, oldest_due(rows, now, flows), latest_claimed(rows, flows)), "{rows:?}");
    }
}

impl Bench {
    /// The list of flows of `partition`, which holds `rows`, in pages of `limit`.
    pub async fn check_flow_list(
        &mut self,
        store: &RedisStore,
        partition: &Partition,
        rows: &MemoryPartition,
        (limits, limit): (&FlowLimits, usize),
    ) {
        let is_counted = limits.parallel.is_some() || limits.ordered;
        let of = |id: &str| rows.flow.flows.get(id).map_or("", |value| value.split_once(' ').expect("a flow").1);
        let split = |member: &str| member.split_once('\0').map(|(name, id)| (name.to_owned(), id.to_owned()));
        let flying: Vec<(String, String)> = if is_counted {
            rows.flow.flights.iter().filter_map(|member| split(member)).collect()
        } else {
            rows.unack.iter().map(|(id, _)| (of(id).to_owned(), id.to_owned())).collect()
        };
        let waiting: Vec<_> = rows.flow.waiting.iter().filter_map(|member| split(member)).collect();
        let names = waiting.iter().chain(&flying).map(|(name, _)| name).chain(rows.flow.rules.keys());
        let names: BTreeSet<&String> = names.collect();

        let before = self.micros().await / 1000;
        let (mut found, mut more) = (Vec::<FlowState>::new(), true);
        while more {
            let after = found.last().map(|flow| flow.key.clone());
            let page = store.flows(partition, after.as_deref(), limit).await.expect("a page");
            assert!(page.0.len() <= limit && (!page.1 || page.0.len() == limit), "{page:?}");
            found.extend(page.0);
            more = page.1;
        }
        for flow in &found {
            let one = store.flow(partition, &flow.key).await.expect("a flow");
            let timeless = |flow: &FlowState| FlowState { next_slot: None, ..flow.clone() };
            assert_eq!((timeless(&one), one.next_slot.is_some()), (timeless(flow), flow.next_slot.is_some()));
        }
        let now = self.micros().await / 1000;
        assert_eq!(found.iter().map(|flow| &flow.key).collect::<Vec<_>>(), names.into_iter().collect::<Vec<_>>());
        for flow in found {
            let count = |members: &[(String, String)]| members.iter().filter(|(name, _)| *name == flow.key).count();
            assert_eq!((flow.waiting, flow.in_flight), (count(&waiting) as u64, count(&flying) as u64), "{flow:?}");
            let holder = flying.iter().find(|(name, _)| *name == flow.key).map(|(_, id)| id.as_str());
            assert_eq!(flow.held_by.as_ref().map(MessageId::as_str), holder, "{flow:?}");
            let gate = rows.flow.gates.get(&flow.key).copied().filter(|gate| *gate != SHUT);
            let slot = flow.next_slot.map(UnixMillis::get);
            let is_right =
                slot.zip(gate).is_some_and(|(slot, gate)| (gate.max(before)..=gate.max(now)).contains(&slot));
            assert!(is_right || (slot, gate) == (None, None), "{flow:?}, gate {gate:?}");
            let mut rules = rows.flow.rules.get(&flow.key).map_or("- - - -", String::as_str).splitn(4, ' ');
            let mut next = || rules.next().filter(|rule| *rule != "-");
            let expected = FlowRules {
                rate: next().map(|rate| Rate::parse(rate).expect("a rate")),
                burst: next().map(|burst| burst.parse().expect("a number")),
                parallel: next().map(|parallel| parallel.parse().expect("a number")),
                pause: next().map(|pause| Pause {
                    at: UnixMillis::new(pause.split_once('\n').expect("a time").0.parse().expect("a time"))
                        .expect("small"),
                    by: Some("ops".to_owned()),
                    note: Some(PAUSE_NOTE.to_owned()),
                }),
            };
            assert_eq!(flow.rules, expected);
        }
    }
}

/// The due time in the body of a message that has not failed.
fn due_inside(rows: &MemoryPartition, id: &str) -> Option<u64> {
    let body = rows.bodies.get(id).filter(|body| body.len() >= 17 && rows.failures(id) == 0)?;
    body[1..9].try_into().ok().map(u64::from_be_bytes)
}

/// The due time of the message that waits longest, or since when a flow could send one.
fn oldest_due(rows: &MemoryPartition, now: u64, flows: bool) -> Option<UnixMillis> {
    let first = rows.pending.iter().take(MAX_SEEN).take_while(|(_, score)| *score <= now + MAX_DEFERRED);
    let inside = first.map(|(id, score)| due_inside(rows, id).unwrap_or(score));
    let open = rows.flow.gates.values().copied().filter(|gate| flows && *gate <= now);
    inside.chain(rows.pending.head()).chain(open).min().and_then(UnixMillis::new)
}

/// Due time and end of the lease of the message that was claimed longest after its due time; the first of several.
fn latest_claimed(rows: &MemoryPartition, flows: bool) -> Option<(UnixMillis, UnixMillis)> {
    let first = rows.unack.iter().take(if flows { 0 } else { MAX_CLAIMED });
    let times = first.filter_map(|(id, token)| Some((due_inside(rows, id)?, token / 1000)));
    let late = |(due, ends): &(u64, u64)| i128::from(*ends) - i128::from(*due);
    let (due, ends) = times.reduce(|one, other| if late(&other) > late(&one) { other } else { one })?;
    UnixMillis::new(due).zip(UnixMillis::new(ends))
}

#[tokio::test]
async fn a_forecast_counts_each_pending_message_in_one_interval() {
    let mut bench = Bench::start().await;
    let start = UnixMillis::new(LONG_AGO).expect("small");
    // Four are due within 3 ms, and another one far ahead.
    for (length, expected) in [(1, (1, 1, vec![1, 1, 1])), (2, (1, 1, vec![2, 1, 0]))] {
        bench.set("forecast").await;
        let found = bench.store.forecast(&partition(), Some(start), length, 3).await.expect("numbers");
        assert_eq!((found.now, (found.overdue, found.later, found.counts)), (start, expected), "{length}");
    }
    bench.set("stats, flows").await;
    let rows = bench.rows(&partition()).await;
    let found = bench.of_kind("flows").forecast(&partition(), None, 1000, 2).await.expect("numbers");
    let of = |from, to| rows.pending.iter().filter(|(_, score)| (from..to).contains(score)).count() as u64;
    let now = found.now.get();
    assert_eq!((found.overdue, found.later), (of(0, now + 1) + of(PARKED, u64::MAX), of(now + 2001, PARKED)));
    assert!(of(PARKED, u64::MAX) > 0, "some are parked");
}

#[tokio::test]
async fn statistics_describe_all_that_a_partition_holds() {
    let mut bench = Bench::start().await;
    for scene in ["stats", "stats, flows", "stats, ordered", "stats, groups", "resume", "unpark"] {
        bench.set(scene).await;
        let (_, kind) = super::scene::split(scene);
        let store = bench.of_kind(kind);
        let flows = ["flows", "ordered"].contains(&kind);
        let rows = bench.rows(&partition()).await;
        bench.check_stats(&store, &partition(), &rows, flows).await;
        let limits = store.routes().find_map(|route| Some(route.flow.as_ref()?.limits));
        if let Some(limits) = limits.filter(|_| flows) {
            bench.check_flow_list(&store, &partition(), &rows, (&limits, 1)).await;
            bench.check_flow_list(&store, &partition(), &rows, (&limits, 100)).await;
        }
    }
    // A flow is open, and a message is due since 1970.
    bench.set("stats, flows").await;
    redis::cmd("ZADD")
        .arg(key(&partition(), "pending"))
        .arg(0)
        .arg("first")
        .exec_async(&mut bench.raw)
        .await
        .expect("added");
    let rows = bench.rows(&partition()).await;
    bench.check_stats(&bench.of_kind("flows"), &partition(), &rows, true).await;
}

#[tokio::test]
async fn the_oldest_message_is_found_behind_retries_and_among_few_or_large_ones() {
    let mut bench = Bench::start().await;
    let now = bench.micros().await / 1000;
    let body = |due: u64, size: usize| [&[1][..], &due.to_be_bytes(), &due.to_be_bytes(), &vec![0; size]].concat();
    // And which due time is found.
    let cases: [(&[Put], Option<u64>, &str); 6] = [
        (&[(now + 100, LONG_AGO, 0, 10), (now + 200, LONG_AGO - 1, 0, 10)], Some(LONG_AGO - 1), "deferred"),
        (&[(now + 100, LONG_AGO, 1, 10)], Some(now + 100), "a retry is due at its score"),
        (&[(now + 100_000, LONG_AGO, 0, 10)], Some(now + 100_000), "no deferral lasts as long"),
        (&[(now, LONG_AGO, 0, 300_000), (now, 1, 0, 10)], Some(LONG_AGO), "the first one is read at any size"),
        (&[(now, LONG_AGO, 0, 10), (now, 1, 0, 300_000), (now, 0, 0, 10)], Some(LONG_AGO), "too large"),
        (&[(0, 0, 0, 10)], Some(0), "due at once"),
    ];
    for (put, found, why) in cases {
        bench.clear().await;
        let mut pipe = redis::pipe();
        for (n, (score, due, failures, size)) in put.iter().enumerate() {
            let id = format!("m{n}");
            pipe.zadd(key(&partition(), "pending"), &id, score).ignore();
            pipe.hset(key(&partition(), "messages"), &id, body(*due, *size)).ignore();
            if *failures > 0 {
                pipe.hset(key(&partition(), "attempts"), &id, format!("{failures} 0")).ignore();
            }
        }
        pipe.exec_async(&mut bench.raw).await.expect("written");
        let stats = bench.store.stats(&partition()).await.expect("numbers");
        assert_eq!(stats.oldest_due.map(UnixMillis::get), found, "{why}");
    }
    // In flight, of those with a due time: claimed again and again, and the last one behind the first ones.
    bench.clear().await;
    let mut pipe = redis::pipe();
    for n in 0..9 {
        pipe.zadd(key(&partition(), "unack"), format!("m{n}"), EXPIRED + n).ignore();
        let due = if n == 8 { 0 } else { LONG_AGO - n };
        pipe.hset(key(&partition(), "messages"), format!("m{n}"), body(due, 10)).ignore();
    }
    pipe.exec_async(&mut bench.raw).await.expect("written");
    let stats = bench.store.stats(&partition()).await.expect("numbers");
    let found = stats.latest_claimed.map(|(due, ends)| (due.get(), ends.get()));
    assert_eq!(found, Some((LONG_AGO - 7, EXPIRED / 1000)), "{stats:?}");
}
