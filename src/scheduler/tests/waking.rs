//! When the scheduler polls, and when it does not.

use super::{sink::Act, *};
use crate::log_lines::LogLines;

#[tokio::test(start_paused = true)]
async fn a_lone_message_leaves_when_it_is_due_and_not_before() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let _instance = Instance::of_one(&store, &sink);
    schedule(&store, ["a"], 2 * SECOND);
    until_empty(&store, "r").await;
    assert_eq!((sink.early(), sink.taken()["a"]), (0, 1));
    assert!(sink.most_late() <= 2, "due to arrival");
    assert!(store.all_calls() <= 6, "it sleeps in between");
}

#[tokio::test(start_paused = true)]
async fn a_head_that_became_earlier_wakes_the_claimer() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let _instance = Instance::of_one(&store, &sink);
    schedule(&store, ["late"], 20 * SECOND);
    sleep(SECOND).await;
    schedule(&store, ["early"], SECOND);
    until_empty(&store, "r").await;
    let order: Vec<_> = sink.seen().into_iter().map(|seen| seen.id).collect();
    assert_eq!(order, ["early", "late"]);
    assert!(sink.most_late() <= 2);
}

#[tokio::test(start_paused = true)]
async fn lost_wake_ups_cost_max_sleep_at_most() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let _instance = Instance::of_one(&store, &sink);
    store.set_faults(Faults { wake_ups_lost: true, ..Faults::default() });
    sleep(SECOND).await;
    schedule(&store, ["a"], Duration::ZERO);
    until_empty(&store, "r").await;
    assert!((1000..=30_000).contains(&sink.most_late()));
}

#[tokio::test(start_paused = true)]
async fn without_a_subscription_it_polls_every_second() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let route = setup(&store, "r", to_sink(&sink, &Breaker::new("s")), policy());
    let signal = Arc::clone(&route.partitions[0].1);
    let _instance = Instance::start(&store, vec![route]);
    store.set_faults(Faults { wake_ups_lost: true, ..Faults::default() });
    sleep(SECOND).await;
    signal.set_listening(false);
    sleep(SECOND / 2).await;
    schedule(&store, ["a"], Duration::ZERO);
    until_empty(&store, "r").await;
    assert!((100..=1010).contains(&sink.most_late()));
    let before = store.all_calls();
    sleep(10 * SECOND).await;
    assert!((9..=11).contains(&(store.all_calls() - before)));
}

#[tokio::test(start_paused = true)]
async fn an_idle_partition_polls_once_per_max_sleep() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let _instance = Instance::of_one(&store, &sink);
    schedule(&store, ["soon"], SECOND);
    schedule(&store, ["in-an-hour"], 60 * MINUTE);
    sleep(MINUTE).await;
    let before = store.all_calls();
    sleep(5 * MINUTE).await;
    assert_eq!(store.all_calls() - before, 10);
}

#[tokio::test(start_paused = true)]
async fn a_paused_route_does_not_spin_and_resumes_at_once() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    store.pause(&partition("r"), true);
    schedule(&store, numbered(10), Duration::ZERO);
    let _instance = Instance::of_one(&store, &sink);
    sleep(2 * MINUTE).await;
    assert!(store.all_calls() <= 6);
    assert_eq!(sink.seen().len(), 0);
    let resumed = store.now();
    store.pause(&partition("r"), false);
    until_empty(&store, "r").await;
    assert!(store.now() - resumed < 20_000);
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_of_the_store_it_is_back_within_a_second() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let _instance = Instance::of_one(&store, &sink);
    store.set_faults(Faults { down: true, ..Faults::default() });
    schedule(&store, numbered(100), SECOND);
    sleep(MINUTE).await;
    assert!(store.all_calls() <= 130, "two tries a second");
    store.set_faults(Faults::default());
    let back = store.now();
    until_empty(&store, "r").await;
    assert!(store.now() - back < 1_000_000);
    assert!(sink.taken().values().all(|times| *times == 1));
}

#[tokio::test(start_paused = true)]
async fn a_wrong_type_is_retried_seldom_and_stops_this_route_only() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let _instance = Instance::of_one(&store, &sink);
    schedule(&store, ["a"], SECOND);
    store.set_faults(Faults { wrong_type: true, ..Faults::default() });
    sleep(MINUTE).await;
    assert!(store.all_calls() <= 15);
    store.set_faults(Faults::default());
    until_empty(&store, "r").await;
    assert!(sink.most_late() < 65_000);
}

#[tokio::test(start_paused = true)]
async fn a_dead_instances_messages_come_back_when_their_lease_ends() {
    let store = TestStore::new(1);
    let hanging = FakeSink::new(&store, |_| sink::Act::confirm(SECOND));
    let first = Instance::of_one(&store, &hanging);
    schedule(&store, numbered(50), Duration::ZERO);
    sleep(SECOND / 2).await;
    first.kill().await;
    let sink = FakeSink::good(&store);
    let _second = Instance::of_one(&store, &sink);
    until_empty(&store, "r").await;
    assert_eq!(sink.taken().len(), 50);
    assert!((2990..=3100).contains(&sink.most_late()), "{}", sink.most_late());
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_longer_than_the_lease_settlements_go_before_recovery() {
    let targets: [fn(&Arc<FakeSink>) -> Target; 2] =
        [|sink| to_sink(sink, &Breaker::new("s")), |_| to_list("jobs", &Breaker::new("s"))];
    for (target, phase) in targets.into_iter().flat_map(|target| (0..20).map(move |phase| (target, phase))) {
        let recorder = recorder();
        let _metrics = metrics::set_default_local_recorder(&recorder);
        let store = TestStore::new(phase);
        let some = u32::try_from(phase).unwrap() * MILLI;
        let sink = FakeSink::new(&store, move |_| sink::Act::confirm(SECOND + 13 * some));
        // One instance has no free permits until it gets an answer, the other has nothing to do except recovery.
        let policy = Policy { max_in_flight: 50, ..policy() };
        let start = || Instance::start(&store, vec![setup(&store, "r", target(&sink), policy)]);
        // A list gets the messages and the reply is lost. The acks of a sink fail in the outage.
        store.set_faults(Faults { after: 1.0, only: Some("transfer"), ..Faults::default() });
        let _full = start();
        schedule(&store, numbered(50), Duration::ZERO);
        sleep(SECOND / 2).await;
        let _idle = (phase % 2 == 1).then(start);
        sleep(SECOND / 4).await;
        store.set_faults(Faults { down: true, ..Faults::default() });
        sleep(LEASE + SECOND + 37 * some).await;
        store.set_faults(Faults::default());
        until_empty(&store, "r").await;
        let times = if sink.taken().is_empty() { store.list("jobs").len() } else { sink.seen().len() };
        assert_eq!(times, 50, "phase {phase}");
        assert_eq!(counted(&recorder, "punctual_leases_expired_total", ""), 0, "phase {phase}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_to_recover_is_no_busy_loop() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let _instance = Instance::of_one(&store, &sink);
    store.set_faults(Faults { before: 1.0, only: Some("settle"), ..Faults::default() });
    schedule(&store, numbered(10), Duration::ZERO);
    sleep(LEASE).await;
    let before = store.calls("claim");
    sleep(MINUTE).await;
    let claims = store.calls("claim") - before;
    assert!((50..=70).contains(&claims), "{claims} polls in a minute of an ended lease");
    assert_eq!(store.calls("recover"), 0);
    store.set_faults(Faults::default());
    until_empty(&store, "r").await;
    assert_eq!(sink.seen().len(), 10);
}

#[tokio::test(start_paused = true)]
async fn leases_from_before_the_clock_stepped_back_return_after_two_leases() {
    let store = TestStore::new(1);
    let slow = FakeSink::new(&store, |_| Act::confirm(LEASE));
    let dying = Instance::of_one(&store, &slow);
    schedule(&store, numbered(20), Duration::ZERO);
    sleep(100 * MILLI).await;
    dying.kill().await;
    store.step_back(60 * MINUTE);
    let sink = FakeSink::good(&store);
    let _instance = Instance::of_one(&store, &sink);
    sleep(LEASE).await;
    assert_eq!(sink.taken().len(), 0, "a holder may be alive");
    sleep(LEASE + 2 * SECOND).await;
    assert_eq!((store.count(&partition("r")), sink.taken().len()), ((0, 0, 0), 20));
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_is_alive_settles_although_the_clock_stepped_back() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::confirm(3 * SECOND / 2));
    let _instance = Instance::of_one(&store, &sink);
    schedule(&store, numbered(20), Duration::ZERO);
    sleep(SECOND).await;
    store.step_back(60 * MINUTE);
    sleep(3 * LEASE).await;
    assert_eq!((store.count(&partition("r")), sink.taken().len()), ((0, 0, 0), 20));
    assert!(sink.taken().values().all(|times| *times == 1), "{:?}", sink.taken());
}

#[tokio::test(start_paused = true)]
async fn idle_polls_are_at_the_same_times_whenever_the_last_message_was() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let _instance = Instance::of_one(&store, &sink);
    schedule(&store, ["a"], 10 * SECOND);
    sleep(MAX_SLEEP.saturating_sub(MILLI)).await;
    let before = store.calls("claim");
    sleep(2 * MILLI).await;
    assert_eq!((sink.seen().len(), store.calls("claim")), (1, before + 1));
}

#[tokio::test(start_paused = true)]
async fn while_the_sink_is_down_leases_are_looked_for_as_seldom_as_on_an_idle_route() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::report(unavailable()));
    schedule(&store, numbered(50), Duration::ZERO);
    let _instance = Instance::of_one(&store, &sink);
    sleep(10 * MINUTE).await;
    let recoveries = store.calls("recover");
    assert!(recoveries <= 20, "{recoveries} in ten minutes");
}

/// Claims a message at each of these times, and dies.
async fn die_with(store: &Arc<TestStore>, ids: &[&str], interval: Duration) {
    let sink = FakeSink::new(store, |_| Act::confirm(LEASE));
    let dying = Instance::of_one(store, &sink);
    for id in ids {
        schedule(store, [id], Duration::ZERO);
        sleep(interval).await;
    }
    assert_eq!(store.count(&partition("r")), (0, ids.len(), 0));
    dying.kill().await;
}

#[tokio::test(start_paused = true)]
async fn each_lease_of_a_dead_instance_is_recovered_when_it_ends() {
    let store = TestStore::new(1);
    die_with(&store, &["a", "b", "c", "d"], 100 * MILLI).await;
    let sink = FakeSink::good(&store);
    let _instance = Instance::of_one(&store, &sink);
    until_empty(&store, "r").await;
    let late: Vec<_> = sink.seen().into_iter().map(|seen| seen.late).collect();
    assert!(late.len() == 4 && late.iter().all(|late| (3000..3050).contains(late)), "{late:?} ms");
}

#[tokio::test(start_paused = true)]
async fn one_lost_call_does_not_defer_the_recovery_of_a_lease() {
    let store = TestStore::new(1);
    die_with(&store, &["a"], 100 * MILLI).await;
    let sink = FakeSink::good(&store);
    let _instance = Instance::of_one(&store, &sink);
    sleep(LEASE.saturating_sub(500 * MILLI)).await;
    schedule(&store, ["b"], Duration::ZERO);
    sleep(250 * MILLI).await;
    store.set_faults(Faults { before: 1.0, only: Some("claim"), ..Faults::default() });
    schedule(&store, ["c"], Duration::ZERO);
    sleep(20 * MILLI).await;
    store.set_faults(Faults::default());
    until_empty(&store, "r").await;
    let late: Vec<_> = sink.seen().into_iter().map(|seen| (seen.id, seen.late)).collect();
    assert!(late.len() == 3 && late[2].0 == "a" && late[2].1 < 3100, "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn of_two_instances_the_slower_one_tries_to_recover_once_a_second() {
    let store = TestStore::new(1);
    let ids = numbered(20);
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    die_with(&store, &ids, 50 * MILLI).await;
    let sink = FakeSink::good(&store);
    // Both see that a lease has ended before one of them has recovered it.
    store.set_faults(Faults { latency: 20 * MILLI, ..Faults::default() });
    let _instances = [Instance::of_one(&store, &sink), Instance::of_one(&store, &sink)];
    until_empty(&store, "r").await;
    assert_eq!(sink.seen().len(), 20);
    let recoveries = store.calls("recover");
    assert!((10..=25).contains(&recoveries), "{recoveries} calls for 20 leases");
}

#[tokio::test(start_paused = true)]
async fn leases_that_end_in_time_are_looked_at_without_a_warning_or_a_poll() {
    let (log, _guard) = LogLines::collect();
    let store = TestStore::new(1);
    let hanging = FakeSink::new(&store, |_| Act::confirm(LEASE));
    let of_a_minute = Policy { lease: MINUTE, ..policy() };
    let dying = Instance::of_policy(&store, &hanging, of_a_minute);
    schedule(&store, ["a"], Duration::ZERO);
    sleep(100 * MILLI).await;
    dying.kill().await;
    // It knows the lease of the other one.
    let _instance = Instance::of_one(&store, &FakeSink::good(&store));
    sleep(LEASE / 2).await;
    let before = store.calls("claim");
    sleep(5 * LEASE).await;
    assert_eq!(store.calls("cut"), 5);
    assert_eq!((store.calls("claim") - before, log.take()), (0, vec![]));
}
