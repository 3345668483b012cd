//! Schedules over the in-memory store: an outage, and a definition that is damaged.

use std::collections::BTreeSet;

use super::{sink::Act, *};
use crate::{
    message::{MessageId, Recurring},
    recurrence::{Missed, Rule},
    store::{NextOccurrence, ScheduleDefinition, ScheduleOwner},
    time::UnixMillis,
};

pub const EVERY: u64 = 1000;

pub fn definition(missed: Missed) -> ScheduleDefinition {
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
pub fn ended(sink: &FakeSink, dead: impl IntoIterator<Item = String>) -> BTreeSet<u64> {
    let taken = sink.taken().into_keys().map(|id| {
        let (_, time) = id.split_once('@').expect("an occurrence");
        let time: jiff::Timestamp = time.parse().expect("RFC 3339");
        u64::try_from(time.as_millisecond()).unwrap()
    });
    let dead = dead.into_iter().map(|id| id.split_once('~').expect("an occurrence").1.parse().unwrap());
    taken.chain(dead).collect()
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
    let ended = ended(&sink, store.dead(&partition("r")).into_keys());
    assert_eq!(ended.len(), 1, "{ended:?}");
    assert_eq!(ended.first(), Some(&(store.now() / 1000 / EVERY * EVERY)));
    let missed = counted(&recorder, "punctual_schedule_runs_total", "missed");
    assert_eq!(missed, (ended.first().unwrap() - first) / EVERY);
    instance.stop().await;
}

/// A fail-over can lose the dead letter, and the call that ends its occurrence.
#[tokio::test(start_paused = true)]
async fn a_dead_letter_is_stored_again_with_a_repeated_settlement() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::report(Outcome::Rejected { error: "HTTP 400".into() }));
    let first = set(&store, Missed::All(1000));
    store.set_faults(Faults { before: 1.0, only: Some("settle"), ..Faults::default() });
    let instance = Instance::of_one(&store, &sink);
    until("a dead letter", || !store.dead(&partition("r")).is_empty()).await;
    store.forget_dead(&partition("r"));
    store.set_faults(Faults::default());
    let dead = || store.dead(&partition("r")).into_keys().collect::<Vec<_>>();
    until("the occurrence that follows is dead", || dead().contains(&format!("tick~{}", first + EVERY))).await;
    assert!(dead().contains(&format!("tick~{first}")), "{:?}", dead());
    assert!(dead().iter().all(|id| id.matches('~').count() == 1), "each once: {:?}", dead());
    store.check();
    instance.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_occurrence_gets_another_id_if_messages_have_its_own() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::report(Outcome::Rejected { error: "HTTP 400".into() }));
    let first = set(&store, Missed::All(1000));
    let taken = [format!("tick~{first}"), format!("tick~{first}~1")];
    for id in &taken {
        store.schedule(&partition("r"), id, 10 * MINUTE, Metadata::default());
    }
    let instance = Instance::of_one(&store, &sink);
    let dead = || store.dead(&partition("r")).into_keys().collect::<Vec<_>>();
    until("the occurrence that follows is dead", || dead().contains(&format!("tick~{}", first + EVERY))).await;
    assert!(dead().contains(&format!("tick~{first}~2")) && !taken.iter().any(|id| dead().contains(id)), "{:?}", dead());
    store.check();
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

#[tokio::test(start_paused = true)]
async fn the_dead_letter_of_an_occurrence_counts_its_attempts() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::report(failed()));
    let first = set(&store, Missed::All(1000));
    let instance = Instance::of_one(&store, &sink);
    let id = format!("tick~{first}");
    until("a dead letter", || store.dead(&partition("r")).contains_key(&id)).await;
    assert_eq!(store.dead_failures(&partition("r"), &id), policy().retry.max_attempts);
    instance.stop().await;
}
