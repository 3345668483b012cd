//! Schedules: seeded runs with faults, after which no occurrence is missing.

use std::collections::BTreeSet;

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{
    sink::{Act, SinkEnd},
    *,
};
use crate::{
    message::{MessageId, Recurring},
    recurrence::{Missed, Rule},
    store::{NextOccurrence, ScheduleDefinition, ScheduleOwner},
    time::UnixMillis,
};

const CALM: Duration = Duration::from_secs(20);
const EVERY: u64 = 1000;

fn definition(missed: Missed) -> ScheduleDefinition {
    let rule = Rule { every: Some(EVERY), missed, ..Rule::default() };
    let recurring = Recurring { revision: "r".into(), rule, expires_after: None };
    ScheduleDefinition {
        id: MessageId::of_schedule("tick").unwrap(),
        owner: ScheduleOwner::Api,
        metadata: Metadata { recurring: Some(recurring.into()), ..Metadata::default() },
        payload: Bytes::new(),
    }
}

/// Sets the schedule. Returns its first occurrence.
fn set(store: &TestStore, missed: Missed) -> u64 {
    let first = (store.now() / 1000 / EVERY + 1) * EVERY;
    let at = UnixMillis::new(first).unwrap();
    store.set_schedule(&partition("r"), &definition(missed), NextOccurrence::At { occurrence: at, at });
    first
}

/// Times of the occurrences that the sink took, or that died.
fn ended(store: &TestStore, sink: &FakeSink) -> BTreeSet<u64> {
    let taken = sink.taken().into_keys().map(|id| {
        let (_, time) = id.split_once('@').expect("an occurrence");
        let time: jiff::Timestamp = time.parse().expect("RFC 3339");
        u64::try_from(time.as_millisecond()).unwrap()
    });
    let dead = store.dead(&partition("r")).into_keys();
    taken.chain(dead.map(|id| id.split_once('~').expect("an occurrence").1.parse().unwrap())).collect()
}

fn simulate(seed: u64, troubled: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut rng = StdRng::seed_from_u64(seed);
        let store = TestStore::new(rng.random());
        let trouble = if troubled { rng.random_range(0.0..0.7) } else { 0.0 };
        let acts = std::sync::Mutex::new(StdRng::seed_from_u64(rng.random()));
        let sink = FakeSink::new(&store, move |_| {
            let mut rng = acts.lock().unwrap();
            let delay = rng.random_range(0..1500) * MILLI;
            if !rng.random_bool(trouble) {
                return Act::confirm(rng.random_range(0..50) * MILLI);
            }
            match rng.random_range(0..6) {
                0 => Act { delay, ..Act::report(failed()) },
                1 => Act::report(Outcome::Rejected { error: "HTTP 400".into() }),
                2 => Act { takes: true, ..Act::end(SinkEnd::Hang) },
                3 => Act::end(SinkEnd::Panic),
                4 => Act { takes: true, ..Act::report(lost()) },
                _ => Act::report(unavailable()),
            }
        });
        let first = set(&store, Missed::All(1000));
        let mut instances = vec![Instance::of_one(&store, &sink), Instance::of_one(&store, &sink)];
        for _ in 0..40 {
            if troubled {
                let share = |rng: &mut StdRng| if rng.random_bool(0.5) { 0.0 } else { rng.random_range(0.0..0.3) };
                let faults = Faults { before: share(&mut rng), after: share(&mut rng), ..Faults::default() };
                store.set_faults(Faults { latency: rng.random_range(0..30) * MILLI, ..faults });
                if rng.random_bool(0.05) {
                    instances.pop().expect("one runs").kill().await;
                    instances.push(Instance::of_one(&store, &sink));
                }
            }
            sleep(CALM / 40).await;
        }
        store.set_faults(Faults::default());
        store.delete_schedule(&partition("r"), &definition(Missed::Last).id);
        until_empty(&store, "r").await;
        store.check();
        let ended = ended(&store, &sink);
        let last = *ended.last().expect("some");
        assert_eq!(ended.len() as u64, (last - first) / EVERY + 1, "{ended:?}");
        if !troubled {
            assert!(ended.len() >= 19, "it stopped: {ended:?}");
            assert!(sink.taken().values().all(|times| *times == 1), "{:?}", sink.taken());
            assert!(sink.most_late() <= 12, "late");
        }
        for instance in instances {
            instance.stop().await;
        }
    });
}

#[test]
fn without_faults_each_occurrence_is_sent_once_and_in_time() {
    (0..50).for_each(|seed| simulate(seed, false));
}

#[test]
fn whatever_fails_no_occurrence_is_left_out() {
    for seed in 0..200 {
        println!("seed {seed}");
        simulate(seed, true);
    }
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_the_last_occurrence_is_sent_and_the_others_are_counted() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    let first = set(&store, Missed::Last);
    sleep(60 * SECOND).await;
    let recorder = recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let instance = Instance::of_one(&store, &sink);
    sleep(100 * MILLI).await;
    let ended = ended(&store, &sink);
    assert_eq!(ended.len(), 1, "{ended:?}");
    assert_eq!(ended.first(), Some(&(store.now() / 1000 / EVERY * EVERY)));
    let missed = counted(&recorder, "punctual_schedule_runs_total", "missed");
    assert_eq!(missed, (ended.first().unwrap() - first) / EVERY);
    instance.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_definition_that_cannot_be_read_causes_no_busy_loop() {
    let store = TestStore::new(1);
    let sink = FakeSink::good(&store);
    set(&store, Missed::Last);
    store.damage_schedule(&partition("r"), "tick@");
    let instance = Instance::of_one(&store, &sink);
    sleep(MINUTE).await;
    let calls = store.all_calls();
    assert!(calls < 200, "{calls} calls in a minute");
    assert!(sink.taken().is_empty());
    store.check();
    instance.stop().await;
}
