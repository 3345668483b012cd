//! Settlements that the store refuses or does not answer are neither forgotten nor kept forever, and metrics and dead
//! letters show the truth.

use tokio::time::Instant;

use super::{sink::Act, *};
use crate::{
    log_lines::LogLines,
    message::{DeadReason, StoredMessage, codec},
    time::UnixMillis,
};

/// Number of messages that need several calls.
const MANY: usize = 2500;

#[tokio::test(start_paused = true)]
async fn settlements_of_several_calls_wait_for_the_store_and_count_once() {
    let recorder = recorder();
    let _metrics = metrics::set_default_local_recorder(&recorder);
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::confirm(SECOND));
    let policy = Policy { max_in_flight: MANY, ..policy() };
    let instance = Instance::of_policy(&store, &sink, policy);
    schedule(&store, numbered(MANY), Duration::ZERO);
    sleep(SECOND / 2).await;
    // All are in flight, and are delivered while settlements fail for longer than the leases.
    assert_eq!(store.count(&partition("r")), (0, MANY, 0));
    store.set_faults(Faults { before: 1.0, only: Some("settle"), ..Faults::default() });
    sleep(2 * LEASE).await;
    store.set_faults(Faults::default());
    until_empty(&store, "r").await;
    instance.stop().await;
    assert_eq!(sink.seen().len(), MANY, "none is sent twice");
    let total = |name| counted(&recorder, name, "");
    assert_eq!(total("punctual_messages_delivered_total"), MANY as u64);
    assert_eq!(total("punctual_leases_expired_total") + total("punctual_stale_settlements_total"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_settlement_refused_for_good_is_dropped_with_its_lease() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let policy = Policy { max_in_flight: 1, ..policy() };
    let _instance = Instance::of_policy(&store, &sink, policy);
    store.set_faults(Faults { wrong_type: true, only: Some("settle"), ..Faults::default() });
    schedule(&store, ["a", "b", "c"], Duration::ZERO);
    let begun = Instant::now();
    sleep(LEASE / 2).await;
    assert_eq!(sink.taken().into_keys().collect::<Vec<_>>(), ["a", "b"], "one call more than the budget");
    until("the permit of b", || sink.taken().contains_key("c")).await;
    // The call is repeated after five seconds, two seconds after the end of the lease.
    assert!(begun.elapsed() <= 6 * SECOND, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_settlement_refused_once_is_repeated_within_its_lease() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let policy = Policy { lease: MINUTE, ..policy() };
    let _instance = Instance::of_policy(&store, &sink, policy);
    store.set_faults(Faults { wrong_type: true, only: Some("settle"), ..Faults::default() });
    schedule(&store, ["a"], Duration::ZERO);
    let begun = Instant::now();
    sleep(SECOND).await;
    store.set_faults(Faults::default());
    until_empty(&store, "r").await;
    assert!(begun.elapsed() < MINUTE && sink.seen().len() == 1, "{:?}, {:?}", begun.elapsed(), sink.seen());
}

#[tokio::test(start_paused = true)]
async fn what_is_released_is_due_when_it_was_due_before() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    schedule(&store, ["first"], Duration::ZERO);
    schedule(&store, ["second"], 20 * MILLI);
    let before = store.pending(&partition("r"));
    sleep(SECOND).await;
    store.set_faults(Faults { claim_reply: 100 * MILLI, ..Faults::default() });
    let instance = Instance::of_one(&store, &sink);
    sleep(50 * MILLI).await;
    assert_eq!(store.count(&partition("r")), (0, 2, 0));
    instance.stop().await;
    assert_eq!((store.pending(&partition("r")), sink.seen().len()), (before, 0));
}

#[tokio::test(start_paused = true)]
async fn what_was_not_sent_is_no_attempt_no_failure_and_due_when_it_was_due() {
    let recorder = recorder();
    let _metrics = metrics::set_default_local_recorder(&recorder);
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act { delay: SECOND, ..Act::report(unsent()) });
    let breaker = Breaker::new("s");
    let policy = Policy { max_in_flight: 40, ..policy() };
    schedule(&store, numbered(100), Duration::ZERO);
    let before = store.pending(&partition("r"));
    let instance = Instance::start(&store, vec![setup(&store, "r", to_sink(&sink, &breaker), policy)]);
    sleep(MINUTE).await;
    instance.stop().await;
    assert_eq!(store.pending(&partition("r")), before, "in the old order");
    let seen = sink.seen();
    assert!(seen.iter().all(|seen| seen.attempt == 1));
    // At first 40, then 16 a second: the limit falls.
    assert!((900..1100).contains(&seen.len()), "{} tries", seen.len());
    assert_eq!(counted(&recorder, "punctual_delivery_failures_total", ""), 0);
    assert_eq!(counted(&recorder, "punctual_sink_attempts_total", "unsent"), seen.len() as u64);
    assert_eq!(counted(&recorder, "punctual_sink_attempts_total", ""), seen.len() as u64);
    let status = breaker.status();
    assert_eq!((status.last_error, status.last_success_at), (None, None));
}

#[tokio::test(start_paused = true)]
async fn lateness_counts_from_the_later_of_due_time_and_acceptance() {
    let recorder = recorder();
    let _metrics = metrics::set_default_local_recorder(&recorder);
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let now = store.now() / 1000;
    // Due when it was accepted, and due an hour before.
    for (id, due) in [("in-time", now), ("overdue", now - 3_600_000)] {
        let at = |millis| UnixMillis::new(millis).unwrap();
        let (metadata, payload) = (Metadata::default(), Bytes::new());
        let message = StoredMessage { due: at(due), accepted: at(now), metadata, payload };
        store.schedule_body(&partition("r"), id, due, codec::encode(&message));
    }
    sleep(2 * SECOND).await;
    let instance = Instance::of_one(&store, &sink);
    until_empty(&store, "r").await;
    instance.stop().await;
    let page = recorder.handle().render();
    let value = |name: &str| -> f64 {
        let line = page.lines().find(|line| line.starts_with(name)).expect(name);
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let (sum, count) =
        (value("punctual_delivery_lateness_seconds_sum"), value("punctual_delivery_lateness_seconds_count"));
    assert!((count - 2.0).abs() < f64::EPSILON && (4.0..4.1).contains(&sum), "{count} messages were late by {sum} s");
}

#[tokio::test(start_paused = true)]
async fn the_last_attempt_is_the_routes_or_the_messages_own() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::report(failed()));
    let limits = [("default", None, 3), ("one", Some(1), 1), ("two", Some(2), 2), ("five", Some(5), 5)];
    for (id, max_attempts, _) in limits {
        let metadata = Metadata { max_attempts, ..Metadata::default() };
        store.schedule(&partition("r"), id, Duration::ZERO, metadata);
    }
    let _instance = Instance::of_one(&store, &sink);
    until_empty(&store, "r").await;
    for (id, _, attempts) in limits {
        let seen: Vec<_> = sink.seen().into_iter().filter(|seen| seen.id == id).map(|seen| seen.attempt).collect();
        assert_eq!(seen, (1..=attempts).collect::<Vec<_>>(), "{id}");
        assert_eq!(store.dead(&partition("r"))[id].0, DeadReason::Attempts, "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_store_settles_nothing_a_route_takes_one_call_more_than_its_budget() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let policy = Policy { max_in_flight: 10, ..policy() };
    let _instance = Instance::of_policy(&store, &sink, policy);
    store.set_faults(Faults { before: 1.0, only: Some("settle"), ..Faults::default() });
    schedule(&store, numbered(100), Duration::ZERO);
    sleep(MINUTE).await;
    assert_eq!(sink.seen().len(), 20);
    store.set_faults(Faults::default());
    until_empty(&store, "r").await;
    assert_eq!(sink.seen().len(), 100, "none is sent twice");
}

#[tokio::test(start_paused = true)]
async fn a_kind_of_settlement_that_is_refused_does_not_stop_the_others() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |delivery| match delivery.id.as_str() {
        "rejected" => Act::report(Outcome::Rejected { error: "HTTP 400".into() }),
        _ => Act::confirm(MILLI),
    });
    let _instance = Instance::of_policy(&store, &sink, Policy { lease: MINUTE, ..policy() });
    store.set_faults(Faults { refused_end: Some("bury"), ..Faults::default() });
    schedule(&store, ["confirmed", "rejected"], Duration::ZERO);
    // The first call has both, and the next one follows after five seconds.
    sleep(6 * SECOND).await;
    assert_eq!((store.count(&partition("r")), sink.seen().len()), ((0, 1, 0), 2));
    store.set_faults(Faults::default());
    sleep(5 * SECOND).await;
    assert_eq!((store.count(&partition("r")), sink.seen().len()), ((0, 0, 1), 2));
}

#[tokio::test(start_paused = true)]
async fn a_refused_settlement_is_repeated_until_its_lease_ends_and_not_after_it() {
    // It is sent again five seconds later, when its lease has just ended, or has not.
    for (left, stale) in [(Duration::ZERO, 0), (MILLI, 1)] {
        let recorder = recorder();
        let _metrics = metrics::set_default_local_recorder(&recorder);
        let store = TestStore::new(1);
        let sink = FakeSink::good(&store);
        let policy = Policy { max_in_flight: 1, lease: 5 * SECOND + MILLI + left, ..policy() };
        let instance = Instance::of_policy(&store, &sink, policy);
        store.set_faults(Faults { wrong_type: true, only: Some("settle"), ..Faults::default() });
        schedule(&store, ["a"], Duration::ZERO);
        sleep(7 * SECOND).await;
        store.set_faults(Faults::default());
        until_empty(&store, "r").await;
        instance.stop().await;
        assert_eq!(sink.taken()["a"], 2);
        assert_eq!(counted(&recorder, "punctual_stale_settlements_total", ""), stale, "{left:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_log_names_the_trace_of_a_dead_letter() {
    let (log, _guard) = LogLines::collect();
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::report(Outcome::Rejected { error: "HTTP 400".into() }));
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = [("traceparent".to_owned(), parent.to_owned())].into();
    store.schedule(&partition("r"), "a", Duration::ZERO, Metadata { headers, ..Metadata::default() });
    let _instance = Instance::of_one(&store, &sink);
    until_empty(&store, "r").await;
    sleep(MILLI).await;
    let lines = log.take();
    assert!(lines.len() == 1 && lines[0].contains("0af7651916cd43dd8448eb211c80319c"), "{lines:?}");
}
