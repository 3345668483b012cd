//! One part of a destination fails: the effect on the others.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{sink::Act, *};
use crate::{scheduler::BreakerState, sink::Domain};

const PARTS: usize = 10;
const BROKEN: &str = "part 3";

/// The part of a message: the last digit of its id.
fn part(delivery: &Delivery) -> Option<Domain> {
    delivery.id.as_str().chars().last().map(|digit| format!("part {digit}").into())
}

/// A sink of ten parts. While the flag is set, one of them follows `act`.
fn partly_broken(
    store: &Arc<TestStore>,
    act: impl Fn() -> Act + Send + Sync + 'static,
) -> (Arc<FakeSink>, Arc<AtomicBool>) {
    let broken = Arc::new(AtomicBool::new(true));
    let flag = Arc::clone(&broken);
    let sink = FakeSink::with_domains(store, part, move |delivery| {
        let hit = flag.load(Ordering::SeqCst) && part(delivery).as_deref() == Some(BROKEN);
        if hit { act() } else { Act::confirm(5 * MILLI) }
    });
    (sink, broken)
}

/// The names of the domains that are down.
fn down(breaker: &Breaker) -> Vec<Domain> {
    breaker.status().down.into_iter().map(|down| down.name).collect()
}

fn late(sink: &FakeSink, of: impl Fn(&str) -> bool) -> Vec<u64> {
    let mut late: Vec<_> = sink.seen().iter().filter(|seen| of(&seen.id)).map(|seen| seen.late).collect();
    late.sort_unstable();
    late
}

#[tokio::test(start_paused = true)]
async fn a_part_that_gives_no_answer_waits_alone_and_burns_no_attempt() {
    for hang in [MILLI, 1999 * MILLI] {
        let store = TestStore::new(1);
        let (sink, broken) = partly_broken(&store, move || Act { delay: hang, ..Act::report(unavailable()) });
        let breaker = Breaker::new("s");
        for n in 0..1500u32 {
            schedule(&store, [format!("m{n:05}")], n * 40 * MILLI);
        }
        let _instance = Instance::start(&store, vec![setup(&store, "r", to_sink(&sink, &breaker), policy())]);
        sleep(MINUTE).await;
        assert_eq!((breaker.status().state, down(&breaker)), (BreakerState::Closed, vec![Domain::from(BROKEN)]));
        let others = late(&sink, |id| !id.ends_with('3'));
        assert_eq!(others.len(), 1500 * (PARTS - 1) / PARTS);
        assert!(*others.last().unwrap() <= 20, "{:?} ms late", others.last());
        let tried = late(&sink, |id| id.ends_with('3')).len();
        // Messages sent before the first one of them failed, and a probe a second.
        assert!(tried <= 75, "{tried} attempts");
        broken.store(false, Ordering::SeqCst);
        let back = store.now() / 1000;
        until_empty(&store, "r").await;
        assert!(store.now() / 1000 - back <= 4000, "{} ms", store.now() / 1000 - back);
        assert_eq!((sink.taken().len(), store.count(&partition("r")).2), (1500, 0));
        assert!(sink.seen().iter().all(|seen| seen.attempt == 1));
        assert!(breaker.status().down.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_lone_message_does_not_wait_behind_a_thousand_of_a_part_that_is_down() {
    let store = TestStore::new(1);
    let (sink, _broken) = partly_broken(&store, || Act::report(unavailable()));
    let _instance = Instance::of_one(&store, &sink);
    schedule(&store, (0..1000).map(|n| format!("m{n}3")), Duration::ZERO);
    sleep(20 * SECOND).await;
    for n in 0..10 {
        schedule(&store, [format!("lone{n}1")], Duration::ZERO);
        sleep(1700 * MILLI).await;
    }
    let lone = late(&sink, |id| id.starts_with("lone"));
    assert!(lone.len() == 10 && lone[9] <= 20, "{lone:?}");
}

#[tokio::test(start_paused = true)]
async fn a_part_that_answers_with_failures_only_is_down_and_its_messages_live() {
    let store = TestStore::new(1);
    let (sink, broken) = partly_broken(&store, || Act::report(failed()));
    let breaker = Breaker::new("s");
    let backoff = Backoff::new(4 * SECOND, 2.0, MINUTE, 0.2).unwrap();
    let policy = Policy { retry: RetryPolicy { max_attempts: 4, backoff }, ..policy() };
    let _instance = Instance::start(&store, vec![setup(&store, "r", to_sink(&sink, &breaker), policy)]);
    for n in 0..1000u32 {
        schedule(&store, [format!("m{n:05}")], n * 20 * MILLI);
    }
    sleep(3 * MINUTE).await;
    assert_eq!(down(&breaker), [Domain::from(BROKEN)]);
    let (pending, unack, dead) = store.count(&partition("r"));
    assert_eq!((pending + unack, dead, sink.taken().len()), (100, 0, 900));
    broken.store(false, Ordering::SeqCst);
    until_empty(&store, "r").await;
    assert_eq!(sink.taken().len(), 1000);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_breaks_its_domain_ends_dead_and_the_others_pass() {
    let store = TestStore::new(1);
    let sink = FakeSink::with_domains(&store, part, |delivery| {
        if delivery.id.as_str().starts_with("poison") { Act::report(unavailable()) } else { Act::confirm(5 * MILLI) }
    });
    schedule(&store, ["poison3"], Duration::ZERO);
    for n in 0..600u32 {
        schedule(&store, [format!("m{n:05}")], n * 100 * MILLI);
    }
    let _instance = Instance::of_one(&store, &sink);
    until_empty(&store, "r").await;
    let dead = store.dead(&partition("r"));
    assert_eq!((dead.into_keys().collect::<Vec<_>>(), sink.taken().len()), (vec!["poison3".to_owned()], 600));
    let late = late(&sink, |id| id.starts_with('m'));
    assert!(late[late.len() * 9 / 10] <= 20 && *late.last().unwrap() <= 4000, "{:?}", late.last());
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_is_up_again_is_noticed_behind_a_backlog_of_one_domain() {
    for outcome in [throttled(), unavailable()] {
        let store = TestStore::new(1);
        let is_down = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_down);
        // Without a connection there is no part.
        let flagged = Arc::clone(&is_down);
        let domain = move |delivery: &Delivery| part(delivery).filter(|_| !flagged.load(Ordering::SeqCst));
        let sink = FakeSink::with_domains(&store, domain, move |delivery| {
            if flag.load(Ordering::SeqCst) {
                return Act::report(unavailable());
            }
            let broken = part(delivery).as_deref() == Some(BROKEN);
            if broken { Act::report(outcome.clone()) } else { Act::confirm(5 * MILLI) }
        });
        let breaker = Breaker::new("s");
        let _instance = Instance::start(&store, vec![setup(&store, "r", to_sink(&sink, &breaker), policy())]);
        schedule(&store, (0..2000).map(|n| format!("m{n}3")), Duration::ZERO);
        for n in 0..600u32 {
            schedule(&store, [format!("lone{n}1")], n * 100 * MILLI);
        }
        sleep(20 * SECOND).await;
        is_down.store(true, Ordering::SeqCst);
        sleep(20 * SECOND).await;
        is_down.store(false, Ordering::SeqCst);
        sleep(5 * SECOND).await;
        assert_eq!(breaker.status().state, BreakerState::Closed);
        sleep(15 * SECOND).await;
        assert_eq!(sink.taken().len(), 600);
        let seen = sink.seen();
        let lone = seen.iter().filter(|seen| seen.id.starts_with("lone")).rev().take(100);
        let late = lone.map(|seen| seen.late).max().unwrap();
        assert!(late <= 50, "{late} ms");
    }
}
