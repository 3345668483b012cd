//! Flows that wait for the capacity of an instance, and repairs of flows.

use std::time::Duration;

use bytes::Bytes;
use punctual::{
    message::{Metadata, NewMessage, OnConflict, Rate, StoredMessage, codec},
    store::{
        Claim, ClaimEnd, ClaimRequest, Claimed, FieldChange, FlowChange, Lease, PARKED, Partition, Rescheduled,
        Settlement, Store,
    },
    time::{Due, UnixMillis},
};

use super::{
    arguments::claim,
    bench::{Bench, id},
    content::{FAR_AHEAD, LONG_AGO},
    operation::flow,
    rows::key,
    scene::{NEW, partition},
};
use crate::support::all;

/// A message of a flow, due long ago.
fn message(text: &str, flow: &str) -> NewMessage {
    NewMessage {
        id: id(text),
        due: Due::At(UnixMillis::new(LONG_AGO).expect("small")),
        payload: Bytes::new(),
        metadata: Metadata { flow: Some(flow.into()), ..Metadata::default() },
        on_conflict: OnConflict::Keep,
        debounce: None,
        record: None,
    }
}

#[tokio::test]
async fn a_flow_that_waits_for_capacity_stays_open_since_its_time_and_is_overdue() {
    let mut bench = Bench::start().await;
    let store = bench.of_kind("flows");
    bench.set("claim, flows").await;
    // The due messages go first: only the flow with an open gate and a parked message is left.
    store
        .purge_pending(&partition(), Some(&["due", "failed", "suspect", "orphan"].map(id)), 9, false, None)
        .await
        .expect("purged");
    let stats = store.stats(&partition()).await.expect("numbers");
    assert_eq!((stats.due, stats.parked), (0, 3));
    assert_eq!(stats.oldest_due.map(UnixMillis::get), Some(LONG_AGO), "it could leave since then");

    let first = store.claim(&partition(), ClaimRequest { limit: 1, ..claim(NEW, 1) }).await.expect("claimed");
    assert_eq!((first.messages.len(), first.next_due.map(UnixMillis::get)), (1, Some(LONG_AGO)));
    assert_eq!(bench.rows(&partition()).await.flow.gates["b"], LONG_AGO, "no capacity for the next one");

    let mut oldest = message("due-since-1970", "c");
    oldest.due = Due::At(UnixMillis::default());
    store.schedule(&partition(), &[oldest]).await.expect("scheduled");
    let stats = store.stats(&partition()).await.expect("numbers");
    assert_eq!(stats.oldest_due.map(UnixMillis::get), Some(0), "earlier than an open gate");
}

#[tokio::test]
async fn all_parked_messages_of_one_due_time_are_looked_at_for_repairs() {
    /// More than a call looks at.
    const COUNT: u64 = 250;
    let mut bench = Bench::start().await;
    let store = bench.of_kind("flows");
    bench.set("claim, flows").await;
    assert_eq!((store.tidy(&partition()).await, bench.calls("publish").await), (Ok(0), 0));
    let mut pipe = redis::pipe();
    for n in 0..COUNT {
        pipe.zadd(key(&partition(), "pending"), format!("lost-{n}"), PARKED + LONG_AGO);
    }
    pipe.exec_async(&mut bench.raw).await.expect("written");
    assert_eq!(store.tidy(&partition()).await, Ok(COUNT), "no claim would look for them");
}

#[tokio::test]
async fn a_claim_behind_a_backlog_of_one_flow_takes_others_that_became_due_last_and_parks_few() {
    const BACKLOG: u64 = 2000;
    let mut bench = Bench::start().await;
    let (rated, store) = (Partition { route: "rated".into(), index: 0, count: 1 }, bench.store.clone());
    let mut pipe = redis::pipe();
    let mut put = |id: &str, due: u64, flow: &str| {
        let at = UnixMillis::new(due).expect("small");
        let body = StoredMessage { due: at, accepted: at, metadata: Metadata::default(), payload: Bytes::new() };
        pipe.zadd(key(&rated, "pending"), id, due).hset(key(&rated, "messages"), id, &codec::encode(&body)[..]);
        pipe.hset(key(&rated, "flows"), id, format!("1 {flow}"));
    };
    for n in 0..BACKLOG {
        put(&format!("big-{n}"), LONG_AGO, "big");
    }
    for n in 0..5 {
        put(&format!("small-{n}"), LONG_AGO + 1, &format!("small-{n}"));
    }
    pipe.exec_async(&mut bench.raw).await.expect("written");
    let request = |number| ClaimRequest { limit: 500, ..claim(NEW, number) };
    let first = store.claim(&rated, request(1)).await.expect("claimed");
    let small = |taken: &Claim| taken.messages.iter().filter(|one| one.id.as_str().starts_with("small")).count();
    assert_eq!((first.messages.len(), small(&first)), (7, 5), "and a burst of two");
    for number in 2..=20 {
        let next = store.claim(&rated, request(number)).await.expect("claimed");
        assert!(next.parked <= 350, "{} parked by one claim", next.parked);
    }
    let rows = bench.rows(&rated).await;
    assert_eq!(rows.pending.up_to(PARKED - 1).count(), 0, "all are parked");
    rows.check_flows(&flow("rated").expect("it has flows"));
}

#[tokio::test]
async fn messages_of_an_ordered_flow_with_one_due_time_leave_in_order_although_one_was_not_read() {
    /// Messages that a claim reads.
    const READ: u64 = 1000;
    let mut bench = Bench::start().await;
    let store = bench.of_kind("ordered");
    let mut pipe = redis::pipe();
    let mut put = |id: &str, due: u64, value: String| {
        let at = UnixMillis::new(due).expect("small");
        let body = StoredMessage { due: at, accepted: at, metadata: Metadata::default(), payload: Bytes::new() };
        let of = |name| key(&partition(), name);
        pipe.zadd(of("pending"), id, due).hset(of("messages"), id, &codec::encode(&body)[..]);
        pipe.hset(of("flows"), id, value);
    };
    for n in 1..READ {
        put(&format!("other-{n}"), LONG_AGO, format!("{n} other-{n}"));
    }
    // In Redis, the one that was accepted last is the last one that is read.
    put("a-second", LONG_AGO + 1, "2001 ordered".to_owned());
    put("b-first", LONG_AGO + 1, "2000 ordered".to_owned());
    pipe.exec_async(&mut bench.raw).await.expect("written");
    let mut order = Vec::new();
    for number in 1..=4 {
        let request = ClaimRequest { limit: 1000, ..claim(NEW, number) };
        let taken = store.claim(&partition(), request).await.expect("claimed");
        let ends = taken.messages.iter().map(|one| {
            let lease = Lease { id: one.id.clone(), token: taken.token, bytes: one.body.len() };
            Settlement::new(lease, ClaimEnd::Ack)
        });
        store.settle(&partition(), &ends.collect::<Vec<_>>()).await.expect("settled");
        order.extend(taken.messages.into_iter().map(|one| one.id.to_string()));
    }
    order.retain(|id| !id.starts_with("other"));
    assert_eq!(order, ["b-first", "a-second"]);
}

#[tokio::test]
async fn a_message_that_is_due_since_1970_waits_for_its_flow_as_others_do() {
    let bench = Bench::start().await;
    let (ordered, store) = (Partition { route: "ordered".into(), index: 0, count: 1 }, bench.store.clone());
    let new = |text: &str| NewMessage { due: Due::At(UnixMillis::default()), ..message(text, "a") };
    store.schedule(&ordered, &[new("first"), new("second")]).await.expect("scheduled");
    for (number, wanted) in [(1, "first"), (2, "second")] {
        let taken = store.claim(&ordered, claim(NEW, number)).await.expect("claimed");
        let [one] = &taken.messages[..] else { panic!("one at a time: {taken:?}") };
        assert_eq!((one.id.as_str(), one.not_before), (wanted, UnixMillis::default()));
        let stats = store.stats(&ordered).await.expect("numbers");
        assert_eq!((stats.parked, stats.unack), (2 - number, 1));
        let lease = Lease { id: one.id.clone(), token: taken.token, bytes: one.body.len() };
        store.settle(&ordered, &[Settlement::new(lease, ClaimEnd::Ack)]).await.expect("settled");
    }
}

#[tokio::test]
async fn messages_in_flight_are_counted_from_the_time_at_which_their_flow_is_limited() {
    let mut bench = Bench::start().await;
    let (rated, store) = (Partition { route: "rated".into(), index: 0, count: 1 }, bench.store.clone());
    let limits = flow("rated").expect("it has flows");
    let new = |text: &str| message(text, "a");
    store.schedule(&rated, &[new("first"), new("second")]).await.expect("scheduled");
    let taken = store.claim(&rated, claim(NEW, 1)).await.expect("claimed");
    assert_eq!(taken.messages.len(), 2);
    let burst = FlowChange { burst: FieldChange::Set(3), ..FlowChange::default() };
    assert!(store.change_flow(&rated, "a", burst).await.expect("changed"));
    assert!(bench.rows(&rated).await.flow.flights.is_empty(), "a rate alone counts none");
    let (seen, _) = store.flows(&rated, None, 9).await.expect("a page");
    assert_eq!(seen.iter().map(|flow| (&*flow.key, flow.in_flight)).collect::<Vec<_>>(), [("a", 2)]);

    let two = FlowChange { parallel: FieldChange::Set(2), ..FlowChange::default() };
    assert!(store.change_flow(&rated, "a", two).await.expect("changed"));
    bench.rows(&rated).await.check_flows(&limits);
    store.schedule(&rated, &[new("third")]).await.expect("scheduled");
    assert_eq!(store.claim(&rated, claim(NEW, 2)).await.expect("claimed").messages.len(), 0, "two are in flight");

    // Keys were deleted by hand.
    redis::cmd("DEL").arg(key(&rated, "flights")).exec_async(&mut bench.raw).await.expect("deleted");
    assert_eq!(store.tidy(&rated).await, Ok(2));
    bench.rows(&rated).await.check_flows(&limits);
    let lease = |one: &Claimed| {
        let lease = Lease { id: one.id.clone(), token: taken.token, bytes: one.body.len() };
        Settlement::new(lease, ClaimEnd::Ack)
    };
    store.settle(&rated, &[lease(&taken.messages[0])]).await.expect("settled");
    assert_eq!(store.claim(&rated, claim(NEW, 3)).await.expect("claimed").messages.len(), 1);

    // More than a call looks at.
    let mut pipe = redis::pipe();
    for n in 0..250 {
        let id = format!("uncounted-{n}");
        pipe.zadd(key(&rated, "unack"), &id, FAR_AHEAD).hset(key(&rated, "flows"), &id, "0 a");
    }
    pipe.exec_async(&mut bench.raw).await.expect("written");
    assert_eq!(store.tidy(&rated).await, Ok(250));
}

#[tokio::test]
async fn the_first_message_of_an_ordered_flow_passes_none_that_was_not_read() {
    /// Due messages that are read to find the first one of a flow.
    const READ: usize = 1000;
    for (others, passes) in [(READ - 3, true), (READ - 1, false)] {
        let mut bench = Bench::start().await;
        let (ordered, store) = (Partition { route: "ordered".into(), index: 0, count: 1 }, bench.store.clone());
        // The one that was accepted first is the last one by its id.
        let mut batch = vec![message("b-earlier", "ordered"), message("a-later", "ordered")];
        batch.extend((0..others).map(|n| message(&format!("a-{n}"), &format!("other-{n}"))));
        for part in batch.chunks(500) {
            store.schedule(&ordered, part).await.expect("scheduled");
        }
        let answer = store.reschedule(&ordered, &id("a-later"), None).await.expect("an answer");
        if passes {
            assert_eq!(answer, Rescheduled::Held(id("b-earlier")), "{others}");
            continue;
        }
        assert!(matches!(answer, Rescheduled::Done(_)), "{answer:?}");
        let value: String = redis::cmd("HGET")
            .arg(key(&ordered, "flows"))
            .arg("a-later")
            .query_async(&mut bench.raw)
            .await
            .expect("it has a flow");
        assert!(!value.starts_with('!'), "{value}: it would be taken before the other");
    }
}

#[tokio::test]
async fn a_message_that_holds_its_flow_is_delivered_at_once_and_no_other_of_that_flow() {
    let bench = Bench::start().await;
    let (ordered, store) = (Partition { route: "ordered".into(), index: 0, count: 1 }, bench.store.clone());
    store.schedule(&ordered, &[message("first", "a"), message("second", "a")]).await.expect("scheduled");
    let at_once = async |text: &str| store.reschedule(&ordered, &id(text), None).await.expect("an answer");
    let taken = store.claim(&ordered, claim(NEW, 1)).await.expect("claimed");
    assert_eq!(at_once("second").await, Rescheduled::Held(id("first")), "the first is in flight");
    let retry = ClaimEnd::Retry { delay: Duration::from_hours(1), error: "HTTP 500".into(), hold: None };
    store.settle(&ordered, &all(leases(&taken), &retry)).await.expect("settled");
    assert_eq!(at_once("second").await, Rescheduled::Held(id("first")), "the first waits for its retry");
    assert!(matches!(at_once("first").await, Rescheduled::Done(_)));
}

#[tokio::test]
async fn a_message_that_holds_a_paused_flow_is_looked_at_again_after_a_second() {
    let mut bench = Bench::start().await;
    let (ordered, store) = (Partition { route: "ordered".into(), index: 0, count: 1 }, bench.store.clone());
    store.schedule(&ordered, &[message("first", "a"), message("second", "a")]).await.expect("scheduled");
    let taken = store.claim(&ordered, claim(NEW, 1)).await.expect("claimed");
    let retry = ClaimEnd::Retry { delay: Duration::ZERO, error: "HTTP 500".into(), hold: None };
    store.settle(&ordered, &all(leases(&taken), &retry)).await.expect("settled");
    assert!(store.pause_flow(&ordered, "a", "ops", "why").await.expect("paused"));
    let before = bench.micros().await / 1000;
    let taken = store.claim(&ordered, claim(NEW, 2)).await.expect("claimed");
    let after = bench.micros().await / 1000;
    assert_eq!(taken.messages.len(), 0);
    let at = bench.rows(&ordered).await.pending["first"];
    assert!((before + 1000..=after + 1000).contains(&at), "{at}, {before} to {after}");
}

#[tokio::test]
async fn settlements_with_a_shorter_hold_or_none_do_not_end_the_hold_of_a_flow() {
    let mut bench = Bench::start().await;
    let (rated, store) = (Partition { route: "rated".into(), index: 0, count: 1 }, bench.store.clone());
    let hold = |seconds| {
        let hold = Some(Duration::from_secs(seconds));
        ClaimEnd::Retry { delay: Duration::ZERO, error: "HTTP 500".into(), hold }
    };
    let release = ClaimEnd::Release { at: UnixMillis::default() };
    for (number, flow, second, is_longer) in
        [(1, "a", hold(60), false), (2, "b", release, false), (3, "c", hold(7200), true)]
    {
        let [one, other] = ["one", "other"].map(|text| message(&format!("{text}-{flow}"), flow));
        store.schedule(&rated, &[one, other]).await.expect("scheduled");
        let taken = store.claim(&rated, claim(NEW, number)).await.expect("claimed");
        let mut leases = leases(&taken).into_iter();
        let mut holds = Vec::new();
        for end in [hold(3600), second] {
            let lease = leases.next().expect("two were claimed");
            store.settle(&rated, &[Settlement::new(lease, end)]).await.expect("settled");
            holds.push(bench.rows(&rated).await.flow.slots[&format!("{flow}\u{1}")]);
        }
        assert_eq!(holds[0] < holds[1], is_longer, "{flow}: {holds:?}");
        assert!(holds[0] <= holds[1], "{flow}: {holds:?}");
    }
}

#[tokio::test]
async fn a_flow_has_its_own_rate_or_that_of_its_route() {
    let bench = Bench::start().await;
    let (rated, store) = (Partition { route: "rated".into(), index: 0, count: 1 }, bench.store.clone());
    let rate = FieldChange::Set(Rate::parse("1/h").expect("a rate"));
    let changes = [
        ("slow", FlowChange { rate, ..FlowChange::default() }),
        ("wide", FlowChange { parallel: FieldChange::Set(9), ..FlowChange::default() }),
    ];
    for (flow, change) in changes {
        assert!(store.change_flow(&rated, flow, change).await.expect("changed"));
        let batch: Vec<_> = (0..4).map(|n| message(&format!("{flow}-{n}"), flow)).collect();
        store.schedule(&rated, &batch).await.expect("scheduled");
    }
    let taken = store.claim(&rated, claim(NEW, 1)).await.expect("claimed");
    let of = |flow| taken.messages.iter().filter(|one| one.id.as_str().starts_with(flow)).count();
    assert_eq!((of("slow"), of("wide")), (1, 2), "the route has a burst of two");
}

fn leases(claim: &Claim) -> Vec<Lease> {
    let lease = |one: &Claimed| Lease { id: one.id.clone(), token: claim.token, bytes: one.body.len() };
    claim.messages.iter().map(lease).collect()
}
