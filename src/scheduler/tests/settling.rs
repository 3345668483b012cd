//! The consequences of each end of an attempt, and of a lost or late answer of the store.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{
    sink::{Act, SinkEnd},
    *,
};
use crate::{log_lines::LogLines, message::DeadReason};

#[tokio::test(start_paused = true)]
async fn every_way_to_fail_counts_until_the_attempts_are_used_up() {
    let ends =
        [SinkEnd::Report(failed()), SinkEnd::Report(throttled()), SinkEnd::Silence, SinkEnd::Hang, SinkEnd::Panic];
    for end in ends {
        let store = TestStore::new(1);
        let act = end.clone();
        let sink = FakeSink::new(&store, move |_| Act::end(act.clone()));
        let _instance = Instance::of_one(&store, &sink);
        schedule(&store, ["a"], Duration::ZERO);
        until_empty(&store, "r").await;
        let attempts: Vec<_> = sink.seen().into_iter().map(|seen| seen.attempt).collect();
        assert_eq!(attempts, [1, 2, 3], "{end:?}");
        let (reason, error) = &store.dead(&partition("r"))["a"];
        assert!(*reason == DeadReason::Attempts && !error.is_empty(), "{end:?}");
        let wait = sink.seen()[1].at - sink.seen()[0].at;
        assert!(wait >= 800 * MILLI && wait <= FakeSink::TIMEOUT + 2 * SECOND, "{end:?}: {wait:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_message_does_not_hold_up_its_batch() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |delivery| {
        if delivery.id.as_str() == "m00000" { Act::end(SinkEnd::Hang) } else { Act::confirm(MILLI) }
    });
    schedule(&store, numbered(100), Duration::ZERO);
    let _instance = Instance::of_one(&store, &sink);
    sleep(50 * MILLI).await;
    assert_eq!(store.count(&partition("r")), (0, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_hanging_attempt_ends_before_its_lease() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::end(SinkEnd::Hang));
    let policy = Policy { lease: FakeSink::TIMEOUT + SECOND / 2, ..policy() };
    let _instance = Instance::of_policy(&store, &sink, policy);
    schedule(&store, ["a"], Duration::ZERO);
    sleep(FakeSink::TIMEOUT + 200 * MILLI).await;
    assert_eq!((store.failures(&partition("r"), "a"), store.count(&partition("r"))), (1, (1, 0, 0)));
    assert_eq!(store.calls("recover"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_settlement_with_a_lost_lease_changes_nothing_and_is_counted() {
    let ends = [
        ("ack", Act::confirm(SECOND)),
        ("retry", Act { delay: SECOND, ..Act::report(failed()) }),
        ("bury", Act { delay: SECOND, ..Act::report(Outcome::Rejected { error: "HTTP 400".into() }) }),
        ("release", Act { delay: SECOND, ..Act::report(unavailable()) }),
    ];
    for (op, act) in ends {
        let recorder = recorder();
        let _metrics = metrics::set_default_local_recorder(&recorder);
        let store = TestStore::new(1);
        let sink = FakeSink::new(&store, move |_| act.clone());
        let instance = Instance::of_one(&store, &sink);
        schedule(&store, ["a"], Duration::ZERO);
        sleep(SECOND / 2).await;
        store.lose_lease(&partition("r"), "a");
        sleep(SECOND).await;
        instance.stop().await;
        assert_eq!(store.count(&partition("r")), (0, 1, 0), "{op}");
        let stale = counted(&recorder, "punctual_stale_settlements_total", &format!("op=\"{op}\""));
        assert_eq!((stale, counted(&recorder, "punctual_messages_delivered_total", "")), (1, 0), "{op}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_counts_once() {
    for list in [false, true] {
        let recorder = recorder();
        let _metrics = metrics::set_default_local_recorder(&recorder);
        let store = TestStore::new(1);
        let sink = FakeSink::new(&store, |_| Act::confirm(100 * MILLI));
        let breaker = Breaker::new("s");
        let target = if list { to_list("jobs", &breaker) } else { to_sink(&sink, &breaker) };
        let instance = Instance::start(&store, vec![setup(&store, "r", target, policy())]);
        let only = Some(if list { "transfer" } else { "settle" });
        store.set_faults(Faults { after: 1.0, only, ..Faults::default() });
        schedule(&store, numbered(10), Duration::ZERO);
        sleep(SECOND).await;
        store.set_faults(Faults::default());
        instance.stop().await;
        assert_eq!(store.count(&partition("r")), (0, 0, 0));
        assert_eq!(if list { store.list("jobs").len() } else { sink.taken().len() }, 10);
        assert_eq!(counted(&recorder, "punctual_messages_delivered_total", ""), 10);
        assert_eq!(counted(&recorder, "punctual_stale_settlements_total", ""), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn each_message_goes_into_the_list_it_names_or_is_dead_with_the_reason() {
    let store = TestStore::new(1);
    let breaker = Breaker::new("jobs");
    let render = Arc::new(|delivery: &Delivery| {
        let id = delivery.id.to_string();
        let list = if id.ends_with('9') { Err("not allowed".to_owned()) } else { Ok(id[5..].into()) };
        list.map(|list| Element { list, value: id.into() })
    });
    let target = Target::List { render, one_list: false, breaker: Arc::clone(&breaker) };
    schedule(&store, numbered(100), Duration::ZERO);
    let _instance = Instance::start(&store, vec![setup(&store, "r", target, policy())]);
    until_empty(&store, "r").await;
    for list in 0..9 {
        let expected: Vec<_> = (0..10).map(|n| format!("m{:05}", 10 * n + list)).collect();
        assert_eq!(store.list(&list.to_string()), expected);
    }
    let dead = store.dead(&partition("r"));
    assert_eq!(dead.len(), 10);
    assert!(dead.values().all(|death| *death == (DeadReason::Rejected, "not allowed".into())), "{dead:?}");
    assert_eq!(breaker.status().state, crate::scheduler::BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn one_list_of_many_that_refuses_counts_for_its_messages_alone() {
    let store = TestStore::new(1);
    let breaker = Breaker::new("jobs");
    let render = Arc::new(|delivery: &Delivery| {
        let id = delivery.id.to_string();
        Ok(Element { list: id[5..].into(), value: id.into() })
    });
    let target = Target::List { render, one_list: false, breaker: Arc::clone(&breaker) };
    store.set_faults(Faults { refusing_list: Some("3"), ..Faults::default() });
    schedule(&store, numbered(100), Duration::ZERO);
    let _instance = Instance::start(&store, vec![setup(&store, "r", target, policy())]);
    sleep(SECOND / 2).await;
    assert_eq!(store.count(&partition("r")), (10, 0, 0));
    assert_eq!((store.list("3").len(), store.list("4").len()), (0, 10));
    assert_eq!(store.failures(&partition("r"), "m00003"), 1);
    assert_eq!(breaker.status().state, crate::scheduler::BreakerState::Closed);
    store.set_faults(Faults::default());
    until_empty(&store, "r").await;
    assert_eq!(store.list("3").len(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_cannot_take_it_opens_the_breaker_and_nothing_counts() {
    let store = TestStore::new(1);
    let breaker = Breaker::new("jobs");
    store.set_faults(Faults { refusing_list: Some("jobs"), ..Faults::default() });
    schedule(&store, numbered(1200), Duration::ZERO);
    let _instance = Instance::start(&store, vec![setup(&store, "r", to_list("jobs", &breaker), policy())]);
    sleep(MINUTE).await;
    assert!(store.calls("transfer") <= 63, "{} transfers", store.calls("transfer"));
    assert_eq!(breaker.status().last_error.as_deref(), Some("list `jobs`: the key holds a string"));
    store.set_faults(Faults::default());
    until_empty(&store, "r").await;
    let mut list: Vec<_> = store.list("jobs");
    list.sort();
    assert_eq!(list, numbered(1200));
    assert_eq!(store.count(&partition("r")).2, 0);
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_several_transfers_counts_once_despite_lost_replies() {
    for seed in 0..20 {
        let recorder = recorder();
        let _metrics = metrics::set_default_local_recorder(&recorder);
        let store = TestStore::new(seed);
        // Three values fit into a call.
        let value = Bytes::from(vec![0; 1 << 20]);
        let render = Arc::new(move |delivery: &Delivery| {
            Ok(Element { list: delivery.id.as_str()[5..].into(), value: value.clone() })
        });
        let target = Target::List { render, one_list: false, breaker: Breaker::new("jobs") };
        let faults =
            Faults { before: 0.1, after: 0.2, only: Some("transfer"), refusing_list: Some("3"), ..Faults::default() };
        store.set_faults(faults);
        schedule(&store, numbered(30), Duration::ZERO);
        let instance = Instance::start(&store, vec![setup(&store, "r", target, policy())]);
        sleep(SECOND).await;
        assert!(store.calls("transfer") >= 10, "seed {seed}");
        store.set_faults(Faults { refusing_list: None, ..faults });
        until_empty(&store, "r").await;
        instance.stop().await;
        let pushed: usize = (0..10).map(|list| store.list(&list.to_string()).len()).sum();
        let total = |name: &str| counted(&recorder, &format!("punctual_{name}_total"), "");
        assert_eq!((pushed, total("messages_delivered"), total("messages_dead")), (30, 30, 0), "seed {seed}");
        assert_eq!((total("stale_settlements"), total("leases_expired")), (0, 0), "seed {seed}");
        assert_eq!(total("messages_retried"), total("delivery_failures"), "seed {seed}");
    }
}

/// Messages go into the list of the last digit of their ids.
fn to_lists(one_list: bool, breaker: &Arc<Breaker>) -> Target {
    let render = Arc::new(move |delivery: &Delivery| {
        let id = delivery.id.to_string();
        let list = if one_list { "0".into() } else { id[5..].into() };
        Ok(Element { list, value: id.into() })
    });
    Target::List { render, one_list, breaker: Arc::clone(breaker) }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_denied_fails_its_messages_alone_and_without_the_right_to_push_the_sink_is_down() {
    let denied = Faults { denied_list: Some("3"), ..Faults::default() };
    let no_push = Faults { denied_push: true, ..Faults::default() };
    for (faults, one_list, is_down) in [(denied, false, false), (no_push, false, true), (no_push, true, true)] {
        let store = TestStore::new(1);
        let breaker = Breaker::new("jobs");
        schedule(&store, numbered(100), Duration::ZERO);
        store.set_faults(faults);
        let target = to_lists(one_list, &breaker);
        let _instance = Instance::start(&store, vec![setup(&store, "r", target, policy())]);
        sleep(SECOND).await;
        assert_eq!(store.list("4").len(), if is_down { 0 } else { 10 }, "before leases end");
        if is_down {
            assert!(store.calls("transfer") <= 2, "one call shows that no list can be written");
        }
        sleep(MINUTE).await;
        let (pending, unack, dead) = store.count(&partition("r"));
        let state = breaker.status().state;
        if is_down {
            assert_eq!((pending, unack, dead, state), (100, 0, 0, crate::scheduler::BreakerState::Open), "{one_list}");
        } else {
            assert_eq!((pending, unack, dead, state), (0, 0, 10, crate::scheduler::BreakerState::Closed));
            let deaths = store.dead(&partition("r"));
            let expected = "list `3`: redis noperm: no permissions to access one of the keys; grant the right with `ACL SETUSER \
                            <user> ~3`, or with a pattern";
            assert!(deaths.iter().all(|(id, death)| id.ends_with('3') && death.1 == expected), "{deaths:?}");
            assert_eq!(store.list("4").len(), 10);
        }
        let error = breaker.status().last_error.unwrap();
        assert_eq!(
            (error.contains("names missing rights"), error.contains("list `3`")),
            (is_down, !is_down),
            "{error}"
        );
        store.set_faults(Faults::default());
        until_empty(&store, "r").await;
        assert_eq!(store.list("0").len(), if one_list { 100 } else { 10 });
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_a_recovery_made_dead_is_counted() {
    let recorder = recorder();
    let _metrics = metrics::set_default_local_recorder(&recorder);
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::end(SinkEnd::Hang));
    schedule(&store, ["a"], Duration::ZERO);
    store.set_crashes(&partition("r"), "a", 4);
    let first = Instance::of_one(&store, &sink);
    sleep(100 * MILLI).await;
    first.kill().await;
    let _instance = Instance::of_one(&store, &sink);
    sleep(2 * LEASE).await;
    assert_eq!(store.dead(&partition("r")).len(), 1);
    assert_eq!(counted(&recorder, "punctual_messages_dead_total", r#"reason="crash""#), 1);
    assert_eq!(counted(&recorder, "punctual_messages_dead_total", ""), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refused_transfer_is_repeated_until_its_lease_ends() {
    let store = TestStore::new(1);
    let policy = Policy { max_in_flight: 1, lease: MINUTE, ..policy() };
    let _instance = Instance::start(&store, vec![setup(&store, "r", to_list("jobs", &Breaker::new("s")), policy)]);
    store.set_faults(Faults { wrong_type: true, only: Some("transfer"), ..Faults::default() });
    schedule(&store, numbered(3), Duration::ZERO);
    sleep(MINUTE.saturating_sub(SECOND)).await;
    // Once in five seconds.
    assert_eq!((store.calls("transfer"), store.count(&partition("r"))), (12, (2, 1, 0)));
    sleep(6 * SECOND).await;
    assert_eq!(store.claims(&partition("r"), "m00001"), 1, "the lease of the first one has ended");
    store.set_faults(Faults::default());
    until_empty(&store, "r").await;
    assert_eq!(store.list("jobs").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_messages_of_a_batch_that_panicked_return_when_their_leases_end() {
    let (log, _guard) = LogLines::collect();
    let store = TestStore::new(1);
    let panicked = AtomicBool::new(false);
    let render = Arc::new(move |delivery: &Delivery| {
        if !panicked.swap(true, Ordering::SeqCst) {
            // Bypasses the panic hook, which would print the panic.
            std::panic::resume_unwind(Box::new("ordered by the test"));
        }
        Ok(Element { list: "jobs".into(), value: delivery.id.to_string().into() })
    });
    let target = Target::List { render, one_list: true, breaker: Breaker::new("s") };
    let _instance = Instance::start(&store, vec![setup(&store, "r", target, policy())]);
    schedule(&store, numbered(3), Duration::ZERO);
    sleep(SECOND).await;
    let lines = log.take();
    assert!(lines.len() == 1 && lines[0].starts_with("ERROR a batch ended in a panic partition=r:0/1"), "{lines:?}");
    sleep(LEASE).await;
    assert_eq!((store.count(&partition("r")), store.list("jobs").len()), ((0, 0, 0), 3));
}
