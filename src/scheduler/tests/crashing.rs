//! Messages that crash their process or their destination.

use tokio::sync::Notify;

use super::{sink::Act, *};
use crate::message::DeadReason;

/// Shorter than the timeout of the sink.
const HANG: Duration = Duration::from_millis(1900);

/// Maximum suspects in flight at a time.
const COMPANY: usize = 32;

/// Schedules due messages with two crashes.
fn schedule_suspects(store: &TestStore, ids: impl IntoIterator<Item = impl AsRef<str>>) {
    for id in ids {
        schedule(store, [&id], Duration::ZERO);
        store.set_crashes(&partition("r"), id.as_ref(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn poison_is_dead_after_five_claims_and_every_innocent_lives() {
    let store = TestStore::new(1);
    let crash = Arc::new(Notify::new());
    let trigger = Arc::clone(&crash);
    let sink = FakeSink::new(&store, move |delivery| {
        if delivery.id.as_str() == "poison" {
            trigger.notify_one();
            return Act::end(sink::SinkEnd::Hang);
        }
        Act::confirm(20 * MILLI)
    });
    schedule(&store, numbered(200), Duration::ZERO);
    schedule(&store, ["poison"], Duration::ZERO);
    schedule(&store, (200..400).map(|n| format!("m{n:05}")), MILLI);
    let mut crashes = 0;
    loop {
        let instance = Instance::of_one(&store, &sink);
        let done = until_empty(&store, "r");
        tokio::select! {
            () = done => break,
            () = crash.notified() => instance.kill().await,
        }
        crashes += 1;
        assert!(crashes <= 5);
    }
    assert_eq!(store.claims(&partition("r"), "poison"), 5);
    assert_eq!(store.dead(&partition("r")).into_keys().collect::<Vec<_>>(), ["poison"]);
    assert_eq!(store.dead(&partition("r"))["poison"].0, DeadReason::Crash);
    assert_eq!(sink.taken().len(), 400);
}

#[tokio::test(start_paused = true)]
async fn few_suspects_are_in_flight_at_a_time_and_delay_no_other_message() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::confirm(10 * MILLI));
    let hanging = FakeSink::new(&store, |delivery| {
        if delivery.id.as_str().starts_with("suspect") {
            return Act { delay: HANG, ..Act::report(failed()) };
        }
        Act::confirm(10 * MILLI)
    });
    let routes = vec![
        setup(&store, "r", to_sink(&hanging, &Breaker::new("r")), policy()),
        setup(&store, "q", to_sink(&sink, &Breaker::new("q")), policy()),
    ];
    for n in 0..1000u32 {
        schedule(&store, [format!("m{n}")], n * 5 * MILLI);
        store.schedule(&partition("q"), &format!("q{n}"), n * 5 * MILLI, Metadata::default());
    }
    schedule_suspects(&store, (0..1000).map(|n| format!("suspect{n:04}")));
    let _instance = Instance::start(&store, routes);
    sleep(6 * SECOND).await;
    let ordinary = hanging.taken().keys().filter(|id| id.starts_with('m')).count();
    assert_eq!((ordinary, sink.taken().len()), (1000, 1000));
    assert!(sink.most_late() <= 12, "{} ms: the other route", sink.most_late());
    let late = hanging.seen().iter().filter(|seen| seen.id.starts_with('m')).map(|seen| seen.late).max().unwrap();
    assert!(late <= 50, "{late} ms: ordinary messages of the same route");
    // A settled message is no longer a suspect.
    let first = |seen: &sink::Seen| seen.id.starts_with("suspect") && seen.attempt == 1;
    let times: Vec<_> = hanging.seen().into_iter().filter(first).map(|seen| seen.at).collect();
    let apart = |run: &[tokio::time::Instant]| run[COMPANY] - run[0] >= HANG;
    assert!(times.len() >= 3 * COMPANY && times.windows(COMPANY + 1).all(apart), "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn suspects_that_wait_for_others_cause_few_polls() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::confirm(HANG));
    schedule_suspects(&store, (0..2 * COMPANY).map(|n| format!("suspect{n:04}")));
    let _instance = Instance::of_one(&store, &sink);
    sleep(HANG).await;
    assert_eq!(sink.seen().len(), COMPANY);
    let claims = store.calls("claim");
    assert!(claims <= 20, "{claims} in two seconds");
    until_empty(&store, "r").await;
}

#[tokio::test(start_paused = true)]
async fn a_thousand_suspects_of_one_crash_are_delivered_soon() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::confirm(100 * MILLI));
    schedule_suspects(&store, (0..1000).map(|n| format!("suspect{n:04}")));
    let _instance = Instance::of_one(&store, &sink);
    until_empty(&store, "r").await;
    assert_eq!(sink.taken().len(), 1000);
    assert!(sink.most_late() < 10_000, "{} ms", sink.most_late());
}

#[tokio::test(start_paused = true)]
async fn when_only_suspects_are_due_they_probe_and_the_other_routes_go_on() {
    let store = TestStore::new(1);
    let begun = tokio::time::Instant::now();
    let down =
        FakeSink::new(
            &store,
            move |_| {
                if begun.elapsed() < MINUTE { Act::report(unavailable()) } else { Act::confirm(MILLI) }
            },
        );
    let good = FakeSink::good(&store);
    let breaker = Breaker::new("down");
    let routes = vec![
        setup(&store, "r", to_sink(&down, &breaker), policy()),
        setup(&store, "good", to_sink(&good, &Breaker::new("good")), policy()),
    ];
    schedule_suspects(&store, ["a", "b", "c"]);
    for n in 0..1000u32 {
        store.schedule(&partition("good"), &format!("g{n}"), n * 60 * MILLI, Metadata::default());
    }
    let _instance = Instance::start(&store, routes);
    sleep(MINUTE).await;
    assert!((50..=62).contains(&down.seen().len()), "{} probes", down.seen().len());
    assert!(good.most_late() <= 12);
    until_empty(&store, "r").await;
    assert_eq!(down.taken().len(), 3);
    assert!(begun.elapsed() < 2 * MINUTE);
}

#[tokio::test(start_paused = true)]
async fn suspects_at_the_head_do_not_keep_others_from_probing() {
    let store = TestStore::new(1);
    let begun = tokio::time::Instant::now();
    let down = FakeSink::new(&store, move |_| {
        if begun.elapsed() < 10 * SECOND { Act::report(unavailable()) } else { Act::confirm(MILLI) }
    });
    schedule_suspects(&store, ["a", "b", "c", "d", "e"]);
    schedule(&store, ["x"], MILLI);
    let _instance = Instance::of_one(&store, &down);
    until("a taken message", || !down.taken().is_empty()).await;
    assert!(begun.elapsed() < 12 * SECOND, "{:?}", begun.elapsed());
    until_empty(&store, "r").await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_breaks_the_connection_ends_dead_and_the_others_pass() {
    // One among a stream; ten at the head, which fill the window of a slow start; one with a few others.
    for (poisons, others, gap) in [(1, 3000, 20 * MILLI), (10, 3000, 20 * MILLI), (1, 12, 5 * SECOND)] {
        let store = TestStore::new(1);
        let sink = FakeSink::new(&store, |delivery| {
            if delivery.id.as_str().starts_with("poison") { Act::report(lost()) } else { Act::confirm(20 * MILLI) }
        });
        let breaker = Breaker::new("s");
        schedule(&store, (0..poisons).map(|n| format!("poison{n}")), Duration::ZERO);
        for (n, id) in (0..).zip(numbered(others)) {
            schedule(&store, [id], n * gap);
        }
        let _instance = Instance::start(&store, vec![setup(&store, "r", to_sink(&sink, &breaker), policy())]);
        until_empty(&store, "r").await;
        let dead = store.dead(&partition("r"));
        assert_eq!((dead.len(), sink.taken().len()), (poisons, others));
        for (id, (reason, error)) in &dead {
            assert!(id.starts_with("poison") && *reason == DeadReason::Attempts, "{id}: {reason:?}");
            assert!(error.starts_with("connection reset; again and again"), "{error}");
        }
        let late = sink.most_late();
        assert!(late < 30_000, "{poisons} among {others}: {late} ms late");
        let innocent = sink.seen().into_iter().filter(|seen| !seen.id.starts_with("poison"));
        assert!(innocent.clone().all(|seen| seen.attempt == 1) && innocent.count() == others, "each once");
    }
}
