//! A sink that is down.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{sink::Act, *};
use crate::{message::DeadReason, scheduler::BreakerState};

/// A sink that is unreachable while the flag is set.
fn flapping(store: &Arc<TestStore>, delay: Duration) -> (Arc<FakeSink>, Arc<AtomicBool>) {
    let is_down = Arc::new(AtomicBool::new(true));
    let flag = Arc::clone(&is_down);
    let sink = FakeSink::new(store, move |_| {
        if flag.load(Ordering::SeqCst) { Act::report(unavailable()) } else { Act::confirm(delay) }
    });
    (sink, is_down)
}

#[tokio::test(start_paused = true)]
async fn an_outage_burns_no_attempt_and_delays_no_other_route() {
    let store = TestStore::new(1);
    let (down, is_down) = flapping(&store, MILLI);
    let good = FakeSink::good(&store);
    let breaker = Breaker::new("down");
    let routes = vec![
        setup(&store, "r", to_sink(&down, &breaker), policy()),
        setup(&store, "good", to_sink(&good, &Breaker::new("good")), policy()),
    ];
    let _instance = Instance::start(&store, routes);
    for n in 0..3000u32 {
        let delay = n * 20 * MILLI;
        schedule(&store, [format!("m{n}")], delay);
        store.schedule(&partition("good"), &format!("g{n}"), delay, Metadata::default());
    }
    sleep(MINUTE).await;
    assert_eq!(breaker.status().state, BreakerState::Open);
    assert_eq!(breaker.status().last_error.as_deref(), Some("connection refused"));
    assert!(down.seen().len() <= 65, "{} probes in a minute", down.seen().len());
    is_down.store(false, Ordering::SeqCst);
    until_empty(&store, "r").await;
    until_empty(&store, "good").await;
    assert_eq!((down.taken().len(), store.count(&partition("r")).2), (3000, 0));
    assert!(down.seen().iter().all(|seen| seen.attempt == 1));
    assert_eq!(breaker.status().state, BreakerState::Closed);
    assert!(good.most_late() <= 12, "{} ms", good.most_late());
}

#[tokio::test(start_paused = true)]
async fn probes_are_one_a_second_over_all_routes_each_with_another_message() {
    let store = TestStore::new(1);
    let (down, _away) = flapping(&store, MILLI);
    let breaker = Breaker::new("down");
    let routes = ["r", "q"].map(|route| setup(&store, route, to_sink(&down, &breaker), policy()));
    for id in ["a", "b", "c"] {
        store.schedule(&partition("r"), &format!("r-{id}"), Duration::ZERO, Metadata::default());
        store.schedule(&partition("q"), &format!("q-{id}"), Duration::ZERO, Metadata::default());
    }
    let _instance = Instance::start(&store, routes.into());
    sleep(20 * SECOND).await;
    let seen = down.seen();
    let probes = &seen[seen.iter().position(|seen| seen.at.elapsed() < 19_500 * MILLI).unwrap()..];
    assert!((18..=20).contains(&probes.len()), "{} probes", probes.len());
    assert!(probes.windows(2).all(|pair| pair[1].at - pair[0].at >= SECOND && pair[1].id != pair[0].id));
    for id in ["r-a", "r-b", "r-c", "q-a", "q-b", "q-c"] {
        assert!(probes.iter().filter(|probe| probe.id == id).count() >= 2, "{id} had its turns: {probes:?}");
    }
    assert_eq!(store.failures(&partition("r"), "r-a"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_cannot_be_sent_is_dead_at_once_and_proves_nothing() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |delivery| {
        let outcome = Outcome::Unsendable { error: "too large".into() };
        Act::report(if delivery.id.as_str() == "bad" { outcome } else { unavailable() })
    });
    let breaker = Breaker::new("down");
    let _instance = Instance::start(&store, vec![setup(&store, "r", to_sink(&sink, &breaker), policy())]);
    schedule(&store, numbered(20), Duration::ZERO);
    until("it is open", || breaker.status().state == BreakerState::Open).await;
    store.schedule(&partition("r"), "bad", Duration::ZERO, Metadata::default());
    sleep(MINUTE).await;
    assert_eq!(breaker.status().state, BreakerState::Open);
    let seen: Vec<_> = sink.seen().into_iter().filter(|seen| seen.at.elapsed() < MINUTE).collect();
    let bad = seen.iter().position(|seen| seen.id == "bad").expect("it was a probe");
    assert_eq!(store.dead(&partition("r"))["bad"], (DeadReason::Rejected, "too large".to_owned()));
    assert!(seen[bad + 1].at - seen[bad].at < 100 * MILLI, "its turn is of the next one: {seen:?}");
    assert_eq!(store.count(&partition("r")), (20, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn it_starts_slowly_when_the_sink_is_back() {
    let store = TestStore::new(1);
    let (sink, is_down) = flapping(&store, SECOND);
    let policy = Policy { max_in_flight: 200, ..policy() };
    let _instance = Instance::of_policy(&store, &sink, policy);
    schedule(&store, numbered(1000), Duration::ZERO);
    sleep(10 * SECOND).await;
    is_down.store(false, Ordering::SeqCst);
    until("the confirmed probe", || sink.taken().len() == 1).await;
    sink.most_inside();
    let mut windows = Vec::new();
    for _ in 0..6 {
        sleep(SECOND + 20 * MILLI).await;
        windows.push(sink.most_inside());
    }
    // Ten at first. By the end of a round trip, each confirmation has added one to the window.
    assert!((10..=20).contains(&windows[0]), "{windows:?}");
    assert!(windows.windows(2).all(|pair| pair[1] <= 2 * pair[0] && pair[1] >= pair[0]), "{windows:?}");
    assert_eq!(windows[5], 200);
    until_empty(&store, "r").await;
}

#[tokio::test(start_paused = true)]
async fn five_throttled_open_it_and_those_before_count_as_attempts() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::report(throttled()));
    let breaker = Breaker::new("s");
    let policy = Policy { max_in_flight: 5, ..policy() };
    let _instance = Instance::start(&store, vec![setup(&store, "r", to_sink(&sink, &breaker), policy)]);
    schedule(&store, numbered(100), Duration::ZERO);
    sleep(10 * MINUTE).await;
    assert_eq!(breaker.status().state, BreakerState::Open);
    let counted = numbered(100).iter().filter(|id| store.failures(&partition("r"), id) > 0).count();
    assert_eq!((counted, store.count(&partition("r"))), (4, (100, 0, 0)));
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_still_recovers_the_leases_of_others() {
    let store = TestStore::new(1);
    let (sink, _away) = flapping(&store, MILLI);
    let other = FakeSink::new(&store, |_| Act::confirm(SECOND));
    let dying = Instance::of_one(&store, &other);
    schedule(&store, numbered(20), Duration::ZERO);
    sleep(100 * MILLI).await;
    dying.kill().await;
    let _instance = Instance::of_one(&store, &sink);
    schedule(&store, ["x"], Duration::ZERO);
    sleep(LEASE + SECOND).await;
    assert_eq!(store.count(&partition("r")), (21, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_and_an_outage_of_the_store_together_end_well() {
    let store = TestStore::new(1);
    let (sink, is_down) = flapping(&store, MILLI);
    let _instance = Instance::of_one(&store, &sink);
    schedule(&store, numbered(50), Duration::ZERO);
    sleep(SECOND).await;
    store.set_faults(Faults { down: true, ..Faults::default() });
    sleep(MINUTE).await;
    is_down.store(false, Ordering::SeqCst);
    store.set_faults(Faults::default());
    until_empty(&store, "r").await;
    assert_eq!(sink.taken().len(), 50);
}

#[tokio::test(start_paused = true)]
async fn messages_that_the_sink_cannot_stand_do_not_stop_the_others() {
    for poisons in [1, 10, 50] {
        let store = TestStore::new(1);
        let sink = FakeSink::new(&store, |delivery| {
            if delivery.id.as_str().starts_with("poison") {
                Act::report(unavailable())
            } else {
                Act::confirm(20 * MILLI)
            }
        });
        let _instance = Instance::of_one(&store, &sink);
        for n in 0..2000u32 {
            schedule(&store, [format!("m{n}")], n * 10 * MILLI);
        }
        schedule(&store, (0..poisons).map(|n| format!("poison{n}")), 5 * SECOND);
        until_empty(&store, "r").await;
        assert_eq!((store.count(&partition("r")).2, sink.taken().len()), (poisons, 2000));
        let good = sink.seen().into_iter().filter(|seen| seen.id.starts_with('m'));
        let late: Vec<u64> = good.map(|seen| seen.late).filter(|late| *late > 100).collect();
        let most = if poisons == 1 { 0 } else { 1000 };
        assert!(late.len() <= most, "{poisons}: {} later than 100 ms, up to {:?}", late.len(), late.iter().max());
    }
}
