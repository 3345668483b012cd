//! A route with windows: claims in them alone, at once when one opens, and counts lateness from there.

use jiff::{Timestamp, tz::TimeZone};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{sink::Act, *};
use crate::calendar::{Calendar, DAY, Window};

const MINUTE: Duration = Duration::from_mins(1);

/// Open each day from `from` to `to` minutes after the full minute before now, in UTC.
fn window(store: &TestStore, from: u16, to: u16) -> Arc<Calendar> {
    let now = Timestamp::from_millisecond(i64::try_from(store.now() / 1000).unwrap()).unwrap();
    let now = now.to_zoned(TimeZone::UTC);
    let minute = u16::try_from(i32::from(now.hour()) * 60 + i32::from(now.minute())).unwrap();
    let [from, to] = [from, to].map(|at| (minute + at) % DAY);
    Arc::new(Calendar::new(vec![Window { days: [true; 7], from, to, zone: TimeZone::UTC }]).unwrap())
}

fn start(store: &Arc<TestStore>, sink: &Arc<FakeSink>, window: &Arc<Calendar>) -> Instance {
    let usual = setup(store, "r", to_sink(sink, &Breaker::new("s")), policy());
    Instance::start(store, vec![RouteSetup { window: Some(window.clone()), ..usual }])
}

/// Until the second at which the window opens, or closes.
fn wait(store: &TestStore, window: &Calendar) -> Duration {
    Duration::from_millis(window.at(store.now() / 1000).until.unwrap())
        .saturating_sub(Duration::from_micros(store.now()))
}

#[tokio::test(start_paused = true)]
async fn what_is_due_outside_leaves_at_the_opening_and_not_before() {
    let recorder = recorder();
    let _metrics = metrics::set_default_local_recorder(&recorder);
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let window = window(&store, 3, 5);
    schedule(&store, ["before"], Duration::ZERO);
    let instance = start(&store, &sink, &window);
    schedule(&store, numbered(1000), SECOND);
    let opens = wait(&store, &window);
    assert!(opens > MINUTE);
    sleep(opens.saturating_sub(MILLI)).await;
    assert!(sink.seen().is_empty());
    sleep(100 * MILLI).await;
    assert_eq!(sink.taken().len(), 1001);
    instance.stop().await;
    let page = recorder.handle().render();
    let late = |line: &&str| line.starts_with("punctual_delivery_lateness_seconds_bucket") && line.contains("le=\"1\"");
    let within = page.lines().find(late).and_then(|line| line.rsplit(' ').next());
    assert_eq!(within, Some("1001"), "lateness counts from the opening: {page}");
}

#[tokio::test(start_paused = true)]
async fn nothing_leaves_after_the_closing_and_what_is_in_flight_ends() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |delivery| match delivery.attempt {
        1 => Act { delay: SECOND, ..Act::report(failed()) },
        _ => Act::confirm(MILLI),
    });
    let window = window(&store, 0, 2);
    let instance = start(&store, &sink, &window);
    let closes = wait(&store, &window);
    schedule(&store, ["in-flight"], closes.saturating_sub(SECOND / 2));
    schedule(&store, ["at-the-closing"], closes);
    schedule(&store, ["later"], closes + MILLI);
    sleep(closes + 10 * SECOND).await;
    let seen = sink.seen();
    assert_eq!(seen.iter().map(|one| (&*one.id, one.attempt)).collect::<Vec<_>>(), [("in-flight", 1)]);
    assert_eq!(store.count(&partition("r")), (3, 0, 0), "the retry waits, too");
    sleep(wait(&store, &window) + 100 * MILLI).await;
    let again: Vec<_> = sink.seen()[1..].iter().map(|one| (one.id.clone(), one.attempt)).collect();
    assert!(again.len() == 3 && again.contains(&("in-flight".into(), 2)), "{again:?}");
    instance.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_closed_route_makes_the_calls_of_an_idle_one() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let window = window(&store, 60, 61);
    schedule(&store, numbered(100), Duration::ZERO);
    let closed = start(&store, &sink, &window);
    sleep(10 * SECOND).await;
    let before = store.all_calls();
    sleep(10 * MINUTE).await;
    let calls = store.all_calls() - before;
    closed.stop().await;
    let (idle_store, idle_sink) = (TestStore::new(1), FakeSink::good(&store));
    let idle = Instance::of_one(&idle_store, &idle_sink);
    sleep(10 * SECOND).await;
    let before = idle_store.all_calls();
    sleep(10 * MINUTE).await;
    assert_eq!((calls, sink.seen().len()), (idle_store.all_calls() - before, 0));
    idle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn two_instances_open_at_once_and_deliver_each_message_once() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::confirm(20 * MILLI));
    let window = window(&store, 2, 30);
    let instances = [start(&store, &sink, &window), start(&store, &sink, &window)];
    schedule(&store, numbered(2000), Duration::ZERO);
    let (start_of, opens) = (Instant::now(), wait(&store, &window));
    sleep(opens + 5 * SECOND).await;
    let first = sink.seen().iter().map(|one| one.at).min().expect("a delivery");
    assert!(sink.taken().len() == 2000 && sink.taken().values().all(|times| *times == 1));
    let after = (first - start_of).as_millis();
    assert!((0..50).contains(&(after - opens.as_millis())), "{after} ms, {opens:?}");
    for instance in instances {
        instance.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_of_all_time_has_no_closing() {
    let store = TestStore::new(1);
    let late = Arc::new(Mutex::new(0));
    let closing = late.clone();
    let sink = FakeSink::new(&store, move |delivery| {
        *closing.lock() += u32::from(delivery.send_until.is_some());
        Act::confirm(MILLI)
    });
    let always = Window { days: [true; 7], from: 0, to: DAY, zone: TimeZone::UTC };
    let instance = start(&store, &sink, &Arc::new(Calendar::new(vec![always]).unwrap()));
    for hour in 0..50 {
        schedule(&store, [format!("m{hour}")], hour * 60 * MINUTE);
    }
    sleep(51 * 60 * MINUTE).await;
    assert_eq!((sink.taken().len(), *late.lock(), store.count(&partition("r"))), (50, 0, (0, 0, 0)));
    assert!(sink.most_late() <= 5);
    instance.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_steps_back_closes_the_route_again() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let window = window(&store, 2, 10);
    let instance = start(&store, &sink, &window);
    sleep(wait(&store, &window) + SECOND).await;
    store.step_back(MINUTE);
    schedule(&store, ["a"], Duration::ZERO);
    sleep(SECOND).await;
    assert_eq!((sink.seen().len(), store.count(&partition("r")).0), (0, 1), "a claim that finds it closed gives back");
    sleep(wait(&store, &window) + SECOND).await;
    assert_eq!(sink.taken().len(), 1);
    instance.stop().await;
}

#[tokio::test(start_paused = true)]
async fn messages_that_are_unsent_from_the_closing_on_do_not_show_that_the_sink_is_slow() {
    const MANY: usize = 100;
    // Unsent this long after the last second before the closing.
    for (after, is_slow) in [(Duration::ZERO, true), (SECOND, false), (SECOND + 400 * MILLI, false)] {
        let store = TestStore::new(1);
        let sent = Mutex::new(0);
        let sink = FakeSink::new(&store, move |delivery| {
            let at = delivery.send_until.expect("a closing") - SECOND + after;
            *sent.lock() += 1;
            let is_early = *sent.lock() <= MANY;
            let delay = at.saturating_duration_since(Instant::now());
            if is_early { Act { delay, ..Act::report(unsent()) } } else { Act::confirm(100 * MILLI) }
        });
        let window = window(&store, 1, 2);
        let policy = Policy { max_in_flight: MANY, ..policy() };
        let usual = setup(&store, "r", to_sink(&sink, &Breaker::new("s")), policy);
        let instance = Instance::start(&store, vec![RouteSetup { window: Some(window.clone()), ..usual }]);
        schedule(&store, numbered(MANY), wait(&store, &window) + MINUTE.saturating_sub(3 * SECOND / 2));
        sleep(wait(&store, &window) + MINUTE.saturating_sub(SECOND).saturating_add(after + MILLI)).await;
        assert_eq!(sink.most_inside(), MANY);
        // The rest of the window, or the next one.
        sleep(SECOND.saturating_sub(after) + wait(&store, &window)).await;
        until_empty(&store, "r").await;
        let most = sink.most_inside();
        assert_eq!(most < MANY / 2, is_slow, "{after:?}: {most} at once");
        instance.stop().await;
    }
}
