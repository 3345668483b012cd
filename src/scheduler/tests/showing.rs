//! Gauges, times and errors of a sink, as operators see them.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{sink::Act, *};
use crate::{message::DeadReason, scheduler::BreakerState, sink::Domain};

const UP: &str = "punctual_sink_up";
const BREAKER: &str = "punctual_sink_breaker_state";
const DOMAINS_DOWN: &str = "punctual_sink_domains_down";

/// The values of gauges of the sink `s`.
fn gauges<const N: usize>(recorder: &PrometheusRecorder, names: [&str; N]) -> [u64; N] {
    names.map(|name| counted(recorder, name, r#"sink="s""#))
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_is_down_is_shown_as_down_until_it_is_up_again() {
    let recorder = recorder();
    let _metrics = metrics::set_default_local_recorder(&recorder);
    let store = TestStore::new(1);
    let is_down = Arc::new(AtomicBool::new(false));
    let flag = is_down.clone();
    let sink = FakeSink::new(&store, move |_| {
        if flag.load(Ordering::SeqCst) { Act::report(unavailable()) } else { Act::confirm(100 * MILLI) }
    });
    let breaker = Breaker::new("s");
    let created = breaker.status();
    assert_eq!((created.state, breaker.sink(), created.in_flight), (BreakerState::Closed, "s", 0));
    let _instance = Instance::start(&store, vec![setup(&store, "r", to_sink(&sink, &breaker), policy())]);
    schedule(&store, numbered(10), Duration::ZERO);
    sleep(50 * MILLI).await;
    assert_eq!(breaker.status().in_flight, 10);
    assert_eq!(counted(&recorder, "punctual_in_flight_messages", r#"route="r""#), 10);
    until_empty(&store, "r").await;
    sleep(10 * MILLI).await;
    let status = breaker.status();
    assert_eq!((status.in_flight, status.since, status.last_error), (0, created.since, None));
    assert!(status.last_success_at.is_some() && status.last_error_at.is_none());
    assert_eq!(gauges(&recorder, [UP, BREAKER]), [1, 0]);
    assert_eq!(counted(&recorder, "punctual_in_flight_messages", r#"route="r""#), 0);

    is_down.store(true, Ordering::SeqCst);
    schedule(&store, (0..20).map(|n| format!("later{n}")), Duration::ZERO);
    until("it is open", || breaker.status().state == BreakerState::Open).await;
    let opened = breaker.status();
    assert!(opened.since > created.since && opened.last_error_at.is_some());
    assert_eq!((opened.last_error.as_deref(), gauges(&recorder, [UP, BREAKER])), (Some("connection refused"), [0, 2]));
    // A probe changes neither.
    sleep(5 * SECOND).await;
    assert_eq!((breaker.status().since, gauges(&recorder, [UP])), (opened.since, [0]));

    is_down.store(false, Ordering::SeqCst);
    until_empty(&store, "r").await;
    let closed = breaker.status();
    assert!(closed.state == BreakerState::Closed && closed.since > opened.since && closed.in_flight == 0, "{closed:?}");
    assert_eq!((closed.last_error, gauges(&recorder, [UP, BREAKER])), (opened.last_error, [1, 0]));
}

#[tokio::test(start_paused = true)]
async fn domains_that_are_down_are_counted_unless_the_sink_was_replaced() {
    for is_retired in [false, true] {
        let recorder = recorder();
        let _metrics = metrics::set_default_local_recorder(&recorder);
        let store = TestStore::new(1);
        let is_down = Arc::new(AtomicBool::new(true));
        let flag = is_down.clone();
        let domain = |delivery: &Delivery| delivery.id.as_str().get(..1).map(Domain::from);
        let sink = FakeSink::with_domains(&store, domain, move |delivery| {
            let fails = flag.load(Ordering::SeqCst) && delivery.id.as_str().starts_with(['a', 'b']);
            if fails { Act::report(unavailable()) } else { Act::confirm(MILLI) }
        });
        let breaker = Breaker::new("s");
        assert!(!breaker.has_domains_down());
        if is_retired {
            breaker.retire();
        }
        let shown = |numbers: [u64; 2]| if is_retired { [0, 1] } else { numbers };
        for n in 0..300u32 {
            schedule(&store, ["a", "b", "c", "d", "e"].map(|part| format!("{part}{n}")), n * 20 * MILLI);
        }
        let _instance = Instance::start(&store, vec![setup(&store, "r", to_sink(&sink, &breaker), policy())]);
        sleep(10 * SECOND).await;
        assert!(breaker.has_domains_down() && breaker.status().down.len() == 2);
        assert_eq!(gauges(&recorder, [DOMAINS_DOWN, UP]), shown([2, 1]));
        // A breaker that replaces another one shows its own numbers.
        if is_retired {
            breaker.show();
            assert_eq!(gauges(&recorder, [DOMAINS_DOWN, UP]), [2, 1]);
        }
        is_down.store(false, Ordering::SeqCst);
        until_empty(&store, "r").await;
        assert!(!breaker.has_domains_down() && breaker.status().down.is_empty());
        if !is_retired {
            assert_eq!(gauges(&recorder, [DOMAINS_DOWN, UP]), [0, 1]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_message_says_how_late_it_was_claimed() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let now = store.now() / 1000;
    for (id, expires_at) in [("now", now + 30_000), ("millis", now + 28_500), ("seconds", now + 5_678)] {
        store.schedule(&partition("r"), id, SECOND, Metadata { expires_at: Some(expires_at), ..Metadata::default() });
    }
    sleep(30 * SECOND).await;
    let _instance = Instance::of_one(&store, &sink);
    until_empty(&store, "r").await;
    let dead = store.dead(&partition("r"));
    assert!(dead.values().all(|(reason, _)| *reason == DeadReason::Expired), "{dead:?}");
    let texts: Vec<_> = dead.into_iter().map(|(id, (_, text))| (id, text)).collect();
    let text = |id: &str, late| (id.to_owned(), format!("claimed {late} after it had expired"));
    assert_eq!(texts, [text("millis", "1s 500ms"), text("seconds", "24s")]);
    assert_eq!(sink.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_slow_start_of_a_sink_ends_at_what_its_running_routes_can_have_in_flight() {
    let store = TestStore::new(1);
    let is_down = Arc::new(AtomicBool::new(true));
    let flag = is_down.clone();
    let sink = FakeSink::new(&store, move |_| {
        if flag.load(Ordering::SeqCst) { Act::report(unavailable()) } else { Act::confirm(MILLI) }
    });
    let breaker = Breaker::new("s");
    let [few, many] = [20, 500].map(|max_in_flight| Policy { max_in_flight, ..policy() });
    let stopped = Instance::start(&store, vec![setup(&store, "q", to_sink(&sink, &breaker), many)]);
    stopped.stop().await;
    let _instance = Instance::start(&store, vec![setup(&store, "r", to_sink(&sink, &breaker), few)]);
    schedule(&store, numbered(30), Duration::ZERO);
    until("it is open", || breaker.status().state == BreakerState::Open).await;
    is_down.store(false, Ordering::SeqCst);
    until_empty(&store, "r").await;
    assert_eq!(breaker.admit(500).map(|admission| admission.messages()), Some(500));
}

#[tokio::test(start_paused = true)]
async fn settlements_without_an_answer_are_shown_until_they_have_one() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let instance = Instance::of_one(&store, &sink);
    store.set_faults(Faults { latency: SECOND, ..Faults::default() });
    schedule(&store, ["a"], Duration::ZERO);
    assert!(!instance.settling.any());
    until("a settlement is sent", || store.calls("settle") == 1).await;
    assert!(instance.settling.any());
    until_empty(&store, "r").await;
    sleep(2 * SECOND).await;
    assert!(!instance.settling.any());
}
