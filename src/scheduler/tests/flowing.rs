//! How many messages are claimed, which are sent, and which are given back instead.

use std::collections::BTreeMap;

use super::{
    sink::{Act, SinkEnd},
    *,
};
use crate::{
    message::{DeadReason, FlowLimits},
    store::memory::PartitionSettings,
};

#[tokio::test(start_paused = true)]
async fn a_busy_stream_is_claimed_and_settled_in_batches() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::confirm(5 * MILLI));
    let instance = Instance::of_one(&store, &sink);
    for (n, id) in numbered(10_000).into_iter().enumerate() {
        schedule(&store, [id], SECOND + u32::try_from(n).unwrap() * SECOND / 5000);
    }
    until_empty(&store, "r").await;
    instance.stop().await;
    assert_eq!((sink.early(), sink.taken().len()), (0, 10_000));
    assert!(sink.taken().values().all(|times| *times == 1));
    assert!(sink.most_late() <= 12);
    assert!(store.all_calls() < 2500, "{} calls: more than 0.25 per message", store.all_calls());
}

#[tokio::test(start_paused = true)]
async fn a_full_route_waits_for_capacity_and_never_exceeds_it() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::confirm(100 * MILLI));
    let policy = Policy { max_in_flight: 20, ..policy() };
    let _instance = Instance::of_policy(&store, &sink, policy);
    schedule(&store, numbered(200), Duration::ZERO);
    until_empty(&store, "r").await;
    assert_eq!(store.most_unacked(&partition("r")), 20);
    assert!(store.all_calls() <= 45, "{} calls for ten times twenty messages", store.all_calls());
}

#[tokio::test(start_paused = true)]
async fn partitions_whose_claims_have_no_answer_leave_the_capacity_to_others() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::confirm(10 * MILLI));
    let policy = Policy { max_in_flight: 20, ..policy() };
    let mut route = setup(&store, "r", to_sink(&sink, &Breaker::new("s")), policy);
    let all: Vec<_> = Partition::all(&"r".into(), 3).collect();
    route.partitions = all.iter().map(|one| (one.clone(), store.subscribe(one))).collect();
    for (n, id) in numbered(300).into_iter().enumerate() {
        store.schedule(&all[n % 3], &id, SECOND, Metadata::default());
    }
    let [unanswered @ .., answered] = &all[..] else { unreachable!("three") };
    let numbers: Vec<_> = unanswered.iter().map(|one| one.index).collect();
    let _instance = Instance::start(&store, vec![route]);
    sleep(SECOND / 2).await;
    store.set_faults(Faults { unanswered: numbers.leak(), ..Faults::default() });
    until("the others are delivered", || store.count(answered) == (0, 0, 0)).await;
    let late = sink.most_late();
    assert!(late < 4000 && sink.taken().len() == 100, "{late} ms");
    assert!(unanswered.iter().any(|one| store.count(one).1 > 1), "more are claimed than may be repeated");
    store.set_faults(Faults::default());
    until("all are delivered", || all.iter().all(|one| store.count(one) == (0, 0, 0))).await;
    assert!(sink.taken().len() == 300 && sink.taken().values().all(|times| *times == 1));
    assert!(sink.most_inside() <= 20);
}

#[tokio::test(start_paused = true)]
async fn bytes_in_flight_are_bounded_too() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::confirm(100 * MILLI));
    // A body has 25 bytes: its id and 19 bytes.
    let policy = Policy { max_in_flight_bytes: 99, largest_message: 25, ..policy() };
    let _instance = Instance::of_policy(&store, &sink, policy);
    schedule(&store, numbered(30), Duration::ZERO);
    until_empty(&store, "r").await;
    assert_eq!((store.most_unacked(&partition("r")), sink.taken().len()), (3, 30));
}

#[tokio::test(start_paused = true)]
async fn what_could_not_end_within_its_lease_is_released_and_counts_nothing() {
    let (sink, released) = claimed_slowly(300 * MILLI).await;
    assert_eq!((sink.seen().len(), sink.seen()[0].attempt, released), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn however_slow_claims_are_a_message_is_not_released_for_ever() {
    for reply in [SECOND, LEASE, 5 * SECOND] {
        let (sink, released) = claimed_slowly(reply).await;
        assert!(sink.taken().contains_key("a") && released <= 1, "{reply:?}: {released} times released");
    }
}

/// Sends one message through a store with slow replies to claims, and returns how often it was released. The lease is
/// the shortest that the sink's timeout allows.
async fn claimed_slowly(claim_reply: Duration) -> (Arc<FakeSink>, u64) {
    let recorder = recorder();
    let _metrics = metrics::set_default_local_recorder(&recorder);
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let policy = Policy { lease: FakeSink::TIMEOUT + SECOND / 2, ..policy() };
    store.set_faults(Faults { claim_reply, ..Faults::default() });
    schedule(&store, ["a"], Duration::ZERO);
    let _instance = Instance::of_policy(&store, &sink, policy);
    until_empty(&store, "r").await;
    let released = counted(&recorder, "punctual_messages_released_total", "");
    (sink, released)
}

#[tokio::test(start_paused = true)]
async fn the_expired_and_the_unreadable_are_dead_with_the_reason() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let here = partition("r");
    let expires = |at| Metadata { expires_at: Some(at), ..Metadata::default() };
    let now = store.now() / 1000;
    store.schedule(&here, "expired", SECOND, expires(now + 999));
    store.schedule(&here, "in-time", SECOND, expires(now + 1100));
    store.schedule_body(&here, "lost", now, Bytes::from_static(b"\0"));
    store.schedule_body(&here, "damaged", now, Bytes::from_static(b"\x01abc"));
    let _instance = Instance::of_one(&store, &sink);
    until_empty(&store, "r").await;
    let reasons: Vec<_> = store.dead(&here).into_iter().map(|(id, (reason, _))| (id, reason)).collect();
    let expected =
        [("damaged", DeadReason::Undecodable), ("expired", DeadReason::Expired), ("lost", DeadReason::Orphan)];
    assert_eq!(reasons, expected.map(|(id, reason)| (id.to_owned(), reason)));
    assert_eq!(sink.taken(), BTreeMap::from([("in-time".to_owned(), 1)]));
}

#[tokio::test(start_paused = true)]
async fn what_a_later_release_wrote_is_left_to_it_and_delays_no_other() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let here = partition("r");
    store.schedule_body(&here, "later", store.now() / 1000, Bytes::from_static(b"\x03abc"));
    let _instance = Instance::of_one(&store, &sink);
    schedule(&store, numbered(100), 10 * SECOND);
    sleep(MINUTE).await;
    assert_eq!(sink.taken().len(), 100);
    assert!(sink.most_late() <= 12);
    assert!(store.dead(&here).is_empty());
    let claims = store.claims(&here, "later");
    assert!((20..=40).contains(&claims), "{claims} claims in a minute");
}

#[tokio::test(start_paused = true)]
async fn shutdown_finishes_what_is_being_sent_and_leaves_the_rest() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::confirm(SECOND));
    let policy = Policy { max_in_flight: 10, ..policy() };
    let instance = Instance::of_policy(&store, &sink, policy);
    schedule(&store, numbered(25), Duration::ZERO);
    sleep(SECOND / 2).await;
    let begun = store.now();
    instance.stop().await;
    assert!(store.now() - begun < 600_000);
    assert_eq!((store.count(&partition("r")), sink.taken().len()), ((15, 0, 0), 10));
}

#[tokio::test(start_paused = true)]
async fn messages_that_wait_at_the_sink_are_given_back_at_shutdown() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::end(SinkEnd::Waits));
    schedule(&store, numbered(5), Duration::ZERO);
    let instance = Instance::of_one(&store, &sink);
    sleep(100 * MILLI).await;
    assert_eq!(store.count(&partition("r")), (0, 5, 0));
    let begun = store.now();
    instance.stop().await;
    assert!(store.now() - begun < 100_000);
    assert_eq!(store.count(&partition("r")), (5, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn lateness_does_not_include_the_time_for_which_a_message_waits_for_its_flow() {
    let recorder = recorder();
    let _metrics = metrics::set_default_local_recorder(&recorder);
    let one_by_one = FlowLimits { rate: None, burst: 1, parallel: Some(1), ordered: false };
    let store = TestStore::with(1, PartitionSettings { flow: Some(one_by_one), ..PartitionSettings::default() });
    let sink = FakeSink::new(&store, |_| Act::confirm(100 * MILLI));
    for id in numbered(5) {
        let metadata = Metadata { flow: Some("f".into()), ..Metadata::default() };
        store.schedule(&partition("r"), &id, SECOND, metadata);
    }
    let usual = setup(&store, "r", to_sink(&sink, &Breaker::new("s")), policy());
    let instance = Instance::start(&store, vec![RouteSetup { has_flows: true, ..usual }]);
    until_empty(&store, "r").await;
    instance.stop().await;
    assert!(sink.most_late() >= 400 && sink.most_inside() == 1);
    let page = recorder.handle().render();
    let late = page.lines().find_map(|line| line.strip_prefix("punctual_delivery_lateness_seconds_sum"));
    let late: f64 = late.and_then(|line| line.rsplit(' ').next()).and_then(|sum| sum.parse().ok()).expect("a sum");
    // Each took 100 ms.
    assert!((0.5..0.6).contains(&late), "{late} s");
}

#[tokio::test(start_paused = true)]
async fn what_was_claimed_but_not_sent_at_shutdown_is_released_at_once() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    store.set_faults(Faults { claim_reply: 100 * MILLI, ..Faults::default() });
    schedule(&store, numbered(5), Duration::ZERO);
    let instance = Instance::of_one(&store, &sink);
    sleep(50 * MILLI).await;
    assert_eq!(store.count(&partition("r")), (0, 5, 0));
    let begun = store.now();
    instance.stop().await;
    assert!(store.now() - begun < 100_000);
    assert_eq!((store.count(&partition("r")), sink.seen().len()), ((5, 0, 0), 0));
}

#[tokio::test(start_paused = true)]
async fn two_instances_share_a_route_without_a_duplicate() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let instances = [Instance::of_one(&store, &sink), Instance::of_one(&store, &sink)];
    for (n, id) in numbered(500).into_iter().enumerate() {
        schedule(&store, [id], u32::try_from(n).unwrap() * 3 * MILLI);
    }
    until_empty(&store, "r").await;
    for instance in instances {
        instance.stop().await;
    }
    assert_eq!(sink.seen().len(), 500);
    assert!(sink.most_late() <= 12);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_several_threads_and_real_time_nothing_is_missed() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let policy = Policy { max_in_flight: 50, ..policy() };
    let instance = Instance::of_policy(&store, &sink, policy);
    for (n, id) in numbered(2000).into_iter().enumerate() {
        schedule(&store, [id], u32::try_from(n).unwrap() * MILLI / 4);
    }
    until_empty(&store, "r").await;
    instance.stop().await;
    assert_eq!((sink.early(), sink.taken().len(), sink.seen().len()), (0, 2000, 2000));
    // Permits are free when a settlement is sent: its messages are unsettled until it is answered.
    assert!(sink.most_inside() <= 50 && store.most_unacked(&partition("r")) <= 2 * 50);
}

#[tokio::test(start_paused = true)]
async fn of_eight_instances_one_serves_a_light_load_and_the_others_look_on() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let mut instances: Vec<_> = (0..8).map(|_| Instance::of_one(&store, &sink)).collect();
    schedule(&store, ["first"], Duration::ZERO);
    for n in 0..1200u32 {
        schedule(&store, [format!("m{n}")], SECOND + n * 50 * MILLI);
    }
    sleep(11 * SECOND).await;
    let before = store.all_calls();
    sleep(20 * SECOND).await;
    let calls = f64::from(store.all_calls() - before) / 400.0;
    assert!(calls <= 3.0, "{calls} calls for each message");
    let mut late: Vec<_> = sink.seen().iter().map(|seen| seen.late).collect();
    late.sort_unstable();
    assert!(late[late.len() * 99 / 100] <= 20, "{late:?}");
    sink.most_late();
    // Each death delays messages by a second at most, whichever instance serves them.
    while instances.len() > 1 {
        instances.pop().expect("more than one").kill().await;
        sleep(2 * SECOND).await;
        let settled = sink.seen().len();
        sleep(2 * SECOND).await;
        let late = sink.seen()[settled..].iter().map(|seen| seen.late).max().unwrap();
        assert!(late <= 60, "{late} ms, {} left", instances.len());
    }
    until_empty(&store, "r").await;
    assert!(sink.most_late() <= 1000, "{} ms", sink.most_late());
    assert_eq!(sink.taken().len(), 1201);
}

#[tokio::test(start_paused = true)]
async fn when_one_instance_cannot_keep_up_the_others_join_soon() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| sink::Act::confirm(200 * MILLI));
    let policy = Policy { max_in_flight: 10, ..policy() };
    let start = || Instance::of_policy(&store, &sink, policy);
    let _instances: Vec<_> = (0..8).map(|_| start()).collect();
    for n in 0..200u32 {
        schedule(&store, [format!("light{n}")], n * 100 * MILLI);
    }
    sleep(20 * SECOND).await;
    sink.most_inside();
    schedule(&store, numbered(80), 100 * MILLI);
    sleep(100 * MILLI + 150 * MILLI).await;
    assert!(sink.most_inside() >= 70, "{} in flight", sink.most_inside());
}

#[tokio::test(start_paused = true)]
async fn a_claim_without_an_answer_is_repeated_and_costs_no_lease() {
    for (fault, long) in [(true, false), (false, false), (false, true)] {
        let store = TestStore::new(1);
        let sink = FakeSink::good(&store);
        let recorder = recorder();
        let _metrics = metrics::set_default_local_recorder(&recorder);
        let _instance = Instance::of_one(&store, &sink);
        let _other = Instance::of_one(&store, &sink);
        schedule(&store, numbered(300), SECOND);
        // First replies are lost. After that the store can be down, for longer than a lease or not.
        store.set_faults(Faults { after: 1.0, only: Some("claim"), ..Faults::default() });
        sleep(SECOND + 100 * MILLI).await;
        store.set_faults(Faults { down: fault || long, ..Faults::default() });
        sleep(if long { 2 * LEASE } else { SECOND }).await;
        store.set_faults(Faults::default());
        let back = store.now();
        until_empty(&store, "r").await;
        assert!(store.now() - back <= 2_000_000, "{} us", store.now() - back);
        assert_eq!(counted(&recorder, "punctual_leases_expired_total", ""), 0);
        assert!(sink.taken().len() == 300 && sink.taken().values().all(|times| *times == 1));
    }
}
