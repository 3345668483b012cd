//! The calls that settle and claim: alone or shared with other partitions, and what they carry.

use async_trait::async_trait;
use tokio::{
    task::yield_now,
    time::{Instant, advance},
};

use super::{
    sink::{Act, SinkEnd},
    *,
};
use crate::sink::{Reply, Report, Sink};

/// A route of which the messages named `end...` are confirmed after 100 ms, all others stay in flight.
fn ends(store: &Arc<TestStore>, max_in_flight: usize, stay: usize, end: usize) -> Instance {
    let sink = FakeSink::new(store, |delivery| {
        if delivery.id.as_str().starts_with("end") { Act::confirm(100 * MILLI) } else { Act::end(SinkEnd::Hang) }
    });
    schedule(store, (0..stay).map(|n| format!("stay{n}")).chain((0..end).map(|n| format!("end{n}"))), Duration::ZERO);
    let policy = Policy { max_in_flight, ..policy() };
    Instance::of_policy(store, &sink, policy)
}

#[tokio::test(start_paused = true)]
async fn few_settlements_share_a_call_unless_the_route_needs_their_permits() {
    for (max_in_flight, stay, end, is_shared) in [
        // Fewer than a quarter of `max_in_flight`, and permits are left.
        (1000, 0, 1, true),
        (20, 0, 4, true),
        (20, 14, 1, true),
        // A quarter has a call of its own.
        (20, 0, 5, false),
        // A route with few in flight stops while its last permits wait.
        (20, 15, 1, false),
        (20, 19, 1, false),
        (256, 255, 1, false),
        // One with many has other batches in flight.
        (1000, 999, 1, true),
    ] {
        let store = TestStore::new(1);
        let instance = ends(&store, max_in_flight, stay, end);
        until("they are settled", || store.count(&partition("r")) == (0, stay, 0)).await;
        let calls = (store.calls("settle"), store.calls("settle_shared") > 0);
        assert_eq!(calls, (1, is_shared), "{end} of {} with {max_in_flight}", stay + end);
        instance.kill().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_reply_of_an_endpoint_is_stored_with_the_error() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |delivery| {
        let text = if delivery.id.as_str() == "a" { "no such user" } else { "" };
        let reply = Reply { status: 400, text: text.to_owned() };
        Act::end(SinkEnd::Reply(Outcome::Rejected { error: "HTTP 400".into() }, reply))
    });
    schedule(&store, ["a", "b"], Duration::ZERO);
    let _instance = Instance::of_one(&store, &sink);
    until_empty(&store, "r").await;
    let dead: Vec<_> = store.dead(&partition("r")).into_values().map(|(_, error)| error).collect();
    assert_eq!(dead, ["HTTP 400: no such user", "HTTP 400"]);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_just_fits_into_its_lease_is_made() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let policy = Policy { lease: FakeSink::TIMEOUT + 250 * MILLI, ..policy() };
    schedule(&store, ["a"], Duration::ZERO);
    let _instance = Instance::of_policy(&store, &sink, policy);
    until_empty(&store, "r").await;
    assert_eq!((store.count(&partition("r")).2, sink.taken().len()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn lateness_of_a_repeated_attempt_counts_from_the_due_time() {
    let recorder = recorder();
    let _metrics = metrics::set_default_local_recorder(&recorder);
    let store = TestStore::new(1);
    let sink = FakeSink::new(
        &store,
        |delivery| {
            if delivery.attempt == 1 { Act::report(failed()) } else { Act::confirm(MILLI) }
        },
    );
    schedule(&store, ["a"], Duration::ZERO);
    let instance = Instance::of_one(&store, &sink);
    until_empty(&store, "r").await;
    instance.stop().await;
    let page = recorder.handle().render();
    let line = page.lines().find(|line| line.starts_with("punctual_delivery_lateness_seconds_sum")).expect("a sum");
    let sum: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
    // The first wait is a second, or a fifth less or more.
    assert!((0.8..1.3).contains(&sum), "{sum} s");
}

#[tokio::test(start_paused = true)]
async fn other_instances_are_not_woken_while_the_sink_is_down() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::report(unavailable()));
    schedule(&store, numbered(50), Duration::ZERO);
    let _instance = Instance::of_one(&store, &sink);
    sleep(5 * SECOND).await;
    let before = store.calls("wake");
    sleep(20 * SECOND).await;
    assert_eq!(store.calls("wake"), before);
}

#[tokio::test(start_paused = true)]
async fn messages_beyond_the_capacity_of_a_repeated_claim_are_given_back() {
    for settlement_fails in [false, true] {
        let recorder = recorder();
        let _metrics = metrics::set_default_local_recorder(&recorder);
        let store = TestStore::new(1);
        let sink = FakeSink::good(&store);
        store.set_faults(Faults { after: 1.0, only: Some("claim"), ..Faults::default() });
        schedule(&store, numbered(100), Duration::ZERO);
        let policy = Policy { lease: 10 * LEASE, ..policy() };
        let instance = Instance::of_policy(&store, &sink, policy);
        sleep(2 * SECOND).await;
        assert_eq!(store.count(&partition("r")), (0, 100, 0));
        let back = Instant::now();
        if settlement_fails {
            store.set_faults(Faults { before: 1.0, only: Some("settle"), ..Faults::default() });
            sleep(SECOND).await;
        }
        store.set_faults(Faults::default());
        until_empty(&store, "r").await;
        let took = back.elapsed();
        assert!(took < 2 * SECOND && sink.taken().len() == 100, "{took:?}: well before their leases end");
        instance.stop().await;
        assert_eq!(counted(&recorder, "punctual_messages_released_total", ""), 99);
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_without_an_answer_keeps_its_capacity_for_a_second() {
    for (claim_reply, given_back) in [(999 * MILLI, 0), (SECOND, 99)] {
        let recorder = recorder();
        let _metrics = metrics::set_default_local_recorder(&recorder);
        let store = TestStore::new(1);
        let sink = FakeSink::good(&store);
        store.set_faults(Faults { after: 1.0, only: Some("claim"), claim_reply, ..Faults::default() });
        schedule(&store, numbered(100), Duration::ZERO);
        let instance = Instance::of_policy(&store, &sink, Policy { lease: 10 * LEASE, ..policy() });
        sleep(SECOND + 20 * MILLI).await;
        store.set_faults(Faults::default());
        until_empty(&store, "r").await;
        instance.stop().await;
        let released = counted(&recorder, "punctual_messages_released_total", "");
        assert_eq!((released, sink.seen().len()), (given_back, 100), "{claim_reply:?}");
    }
}

/// Confirms the messages with the numbers below the current one.
struct OnDemand(watch::Receiver<usize>);

#[async_trait]
impl Sink for OnDemand {
    fn timeout(&self) -> Duration {
        FakeSink::TIMEOUT
    }

    async fn send(&self, batch: Vec<Delivery>, report: Report) {
        let report = &report;
        let confirm = |(index, delivery): (usize, Delivery)| async move {
            let number: usize = delivery.id.as_str()[1..].parse().expect("a number");
            let _ = self.0.clone().wait_for(|below| number < *below).await;
            report.outcome(index, Outcome::Confirmed);
        };
        join_all(batch.into_iter().enumerate().map(confirm)).await;
    }

    async fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_route_gathers_a_quarter_of_its_messages_for_a_settlement_and_waits_for_no_more() {
    let store = TestStore::new(1);
    let (confirmed, below) = watch::channel(0);
    let target = Target::Sink { sink: Arc::new(OnDemand(below)), breaker: Breaker::new("s") };
    schedule(&store, numbered(20), Duration::ZERO);
    let policy = Policy { max_in_flight: 20, ..policy() };
    let _instance = Instance::start(&store, vec![setup(&store, "r", target, policy)]);
    until("they are sent", || store.count(&partition("r")) == (0, 20, 0)).await;
    sleep(10 * MILLI).await;
    // Others follow within the millisecond for which it gathers.
    confirmed.send_replace(1);
    advance(Duration::from_micros(400)).await;
    assert_eq!(store.calls("settle"), 0);
    let now = Instant::now();
    confirmed.send_replace(5);
    for _ in 0..100 {
        yield_now().await;
    }
    assert_eq!((store.count(&partition("r")), store.calls("settle"), now.elapsed()), ((0, 15, 0), 1, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn at_most_a_quarter_of_the_messages_in_flight_are_suspects() {
    for (max_in_flight, most) in [(1, 1), (8, 2), (1000, 32)] {
        let store = TestStore::new(1);
        let sink = FakeSink::good(&store);
        let policy = Policy { max_in_flight, ..policy() };
        schedule(&store, ["a"], Duration::ZERO);
        let _instance = Instance::of_policy(&store, &sink, policy);
        until_empty(&store, "r").await;
        assert_eq!(store.max_suspects(), most, "{max_in_flight}");
    }
}

#[tokio::test(start_paused = true)]
async fn names_and_values_of_lists_bound_a_transfer_together() {
    let store = TestStore::new(1);
    let (long, short) = ("l".repeat(1000), Bytes::from_static(b"x"));
    let value = Bytes::from(vec![0; 10 << 10]);
    let list: Arc<str> = long.as_str().into();
    let render = Arc::new(move |delivery: &Delivery| {
        let value = if delivery.id.as_str().ends_with('0') { short.clone() } else { value.clone() };
        Ok(Element { list: Arc::clone(&list), value })
    });
    let target = Target::List { render, one_list: true, breaker: Breaker::new("jobs") };
    schedule(&store, numbered(100), Duration::ZERO);
    let _instance = Instance::start(&store, vec![setup(&store, "r", target, policy())]);
    until_empty(&store, "r").await;
    assert_eq!((store.list(&long).len(), store.calls("transfer")), (100, 1));
}

#[tokio::test(start_paused = true)]
async fn a_slow_destination_leaves_a_part_of_the_messages_in_flight_to_others() {
    let store = TestStore::new(1);
    let domain = |delivery: &Delivery| delivery.id.as_str().get(..1).map(crate::sink::Domain::from);
    let sink = FakeSink::with_domains(&store, domain, |delivery| {
        // From 0.5 to 1.5 s.
        let number = delivery.id.as_str().strip_prefix('s').and_then(|number| number.parse::<u32>().ok());
        Act::confirm(number.map_or(MILLI, |number| 500 * MILLI + number * 37 % 1000 * MILLI))
    });
    let policy = Policy { max_in_flight: 40, ..policy() };
    schedule(&store, (0..400).map(|n| format!("s{n}")), Duration::ZERO);
    let _instance = Instance::of_policy(&store, &sink, policy);
    sleep(5 * SECOND).await;
    schedule(&store, ["fast"], Duration::ZERO);
    until("it arrives", || sink.taken().contains_key("fast")).await;
    let late = sink.seen().into_iter().find(|seen| seen.id == "fast").map(|seen| seen.late);
    assert!(late.is_some_and(|late| late <= 100), "{late:?} ms");
}
