//! Schedules in the scenes: `tick@` waits, `flying@` and `gone@` are in flight, and `gone@` was deleted during that.

use std::collections::BTreeMap;

use bytes::Bytes;
use punctual::{
    message::{DeadReason, MessageId, Metadata, Recurring, codec},
    recurrence::{Missed, Rule},
    store::{
        ClaimEnd, Lease, NEVER, NextOccurrence, Partition, Planned, ScheduleChange, ScheduleDefinition, ScheduleOwner,
        Settlement, Store, StoreError, Token, Transfer,
        memory::{MemoryPartition, MemorySchedule},
        redis::RedisStore,
    },
    time::UnixMillis,
};

use super::{
    arguments::claim,
    bench::Bench,
    content::{FAR_AHEAD, HELD_UNTIL, LONG_AGO},
    rows::key,
    scene::{LISTS, partition},
};
use crate::support::receiver::wall_clock;

const TOKEN: u64 = HELD_UNTIL - 7;

fn id(name: &str) -> MessageId {
    MessageId::of_schedule(name).expect("a name")
}

fn definition(name: &str, revision: &str) -> ScheduleDefinition {
    let recurring = Recurring { revision: revision.into(), rule: Rule::default(), expires_after: None };
    let metadata = Metadata { recurring: Some(recurring.into()), flow: Some("a".into()), ..Metadata::default() };
    ScheduleDefinition { id: id(name), owner: ScheduleOwner::Api, metadata, payload: Bytes::from_static(b"tick") }
}

fn stored(due: u64) -> Bytes {
    let ScheduleDefinition { metadata, payload, .. } = definition("tick", "r1");
    let at = |millis| UnixMillis::new(millis).expect("below 2^53");
    codec::encode(&punctual::message::StoredMessage { due: at(due), accepted: at(LONG_AGO), metadata, payload })
}

/// Adds the schedules to a state.
pub fn add(rows: &mut MemoryPartition, kind: &str, paused: bool) {
    for (name, is_waiting) in [("tick@", true), ("flying@", false), ("gone@", false)] {
        let due = if is_waiting { FAR_AHEAD } else { LONG_AGO };
        rows.bodies.insert(name.to_owned(), stored(due));
        if is_waiting {
            rows.pending.insert(name, if paused { NEVER } else { due });
        } else {
            rows.unack.insert(name, TOKEN);
        }
        if !kind.is_empty() {
            rows.flow.flows.insert(name.to_owned(), format!("{} a", 90 + name.len()));
            if !is_waiting {
                rows.flow.flights.insert(format!("a\0{name}"));
            }
        }
        if name != "gone@" {
            let ScheduleDefinition { metadata, payload, owner, .. } = definition("tick", "r1");
            let one = MemorySchedule {
                revision: "r1".into(),
                is_paused: paused && is_waiting,
                owner,
                flow: "a".into(),
                since: 0,
                runs: (0..20).map(|n| format!("d{n}+1")).collect(),
                tail: codec::tail(&metadata, &payload),
            };
            rows.schedules.insert(name.to_owned(), one);
        }
    }
    rows.bytes = rows.held_bytes();
}

fn lease(name: &str) -> Lease {
    Lease { id: id(name), token: Token(TOKEN), bytes: stored(LONG_AGO).len() }
}

pub async fn act(store: &RedisStore, scene: &str) -> Result<(), StoreError> {
    let partition: Partition = partition();
    let at = UnixMillis::new(LONG_AGO).expect("below 2^53");
    let next = NextOccurrence::At { occurrence: at, at };
    let set = async |name, revision, replaces, next| {
        store.set_schedule(&partition, &definition(name, revision), replaces, next).await
    };
    let change = match scene {
        "set a schedule" => (set("new", "r1", None, next).await?, ScheduleChange::Created),
        "change a schedule" => (set("tick", "r2", Some("r1"), next).await?, ScheduleChange::Changed),
        "keep a schedule" => (set("tick", "r2", Some("r1"), NextOccurrence::Kept).await?, ScheduleChange::Changed),
        "delete a schedule" => {
            (store.delete_schedule(&partition, &id("tick"), ScheduleOwner::Api).await?, ScheduleChange::Deleted)
        }
        "pause a schedule" | "resume a schedule" => {
            let pause = scene.starts_with("pause");
            (store.pause_schedule(&partition, &id("tick"), pause).await?, ScheduleChange::Changed)
        }
        "look at a schedule" => return store.schedule_state(&partition, &id("tick")).await.map(drop),
        "list schedules" => return store.schedules(&partition).await.map(drop),
        "end occurrences" => return end(store, &partition).await,
        "transfer an occurrence" => {
            let transfer =
                |name| Transfer { lease: lease(name), list: LISTS[0].into(), value: "x".into(), record: None };
            return store.transfer(&partition, &[transfer("flying"), transfer("gone")]).await.map(drop);
        }
        other => panic!("no scene `{other}`"),
    };
    assert_eq!(change.0, change.1, "{scene}");
    Ok(())
}

async fn end(store: &RedisStore, partition: &Partition) -> Result<(), StoreError> {
    let plan = Planned {
        revision: "r1".into(),
        occurrence: UnixMillis::new(FAR_AHEAD),
        at: UnixMillis::new(FAR_AHEAD).unwrap_or_default(),
        missed: 2,
    };
    let ends = [
        ("flying", ClaimEnd::Plan(plan)),
        ("gone", ClaimEnd::Ack),
        ("tick", ClaimEnd::Bury { reason: DeadReason::Expired, error: "stale".into() }),
    ];
    let settlement = |(name, end)| Settlement::new(lease(name), end);
    store.settle(partition, &ends.map(settlement)).await.map(drop)
}

#[tokio::test]
async fn a_schedule_without_its_body_is_changed_and_deleted() {
    let mut bench = Bench::start().await;
    for scene in ["change a schedule", "delete a schedule", "change a schedule, flows"] {
        bench.set(scene).await;
        let messages = key(&partition(), "messages");
        redis::cmd("HDEL").arg(&[&*messages, "tick@"]).exec_async(&mut bench.raw).await.expect("deleted");
        bench.act(scene).await.unwrap_or_else(|error| panic!("{scene}: {error}"));
        let rows = bench.rows(&partition()).await;
        assert_eq!(rows.bodies.contains_key("tick@"), scene.starts_with("change"), "{scene}");
    }
}

#[tokio::test]
async fn an_occurrence_that_follows_is_shown_before_it_is_planned() {
    let bench = Bench::start().await;
    let (partition, store) = (partition(), &bench.store);
    let begin = wall_clock() - 10_500;
    let rule = Rule { every: Some(1000), starts_at: Some(begin), missed: Missed::All(1000), ..Rule::default() };
    let rule = Rule { ends_at: Some(begin + 2000), ..rule };
    let mut definition = definition("tick", "r1");
    definition.metadata.recurring.as_mut().expect("a schedule").rule = rule;
    let at = UnixMillis::new(begin).expect("below 2^53");
    let next = NextOccurrence::At { occurrence: at, at };
    store.set_schedule(&partition, &definition, None, next).await.expect("set");
    let shown = async || {
        let state = store.schedule_state(&partition, &definition.id).await.expect("an answer").expect("a schedule");
        (state.next.map(UnixMillis::get), state.in_flight)
    };
    assert_eq!(shown().await, (Some(begin), false));
    for (number, after) in [(1, Some(begin + 1000)), (2, Some(begin + 1000)), (3, None)] {
        let claim = store.claim(&partition, claim(7, number)).await.expect("claimed");
        let [claimed] = &claim.messages[..] else { panic!("{claim:?}") };
        let lease = Lease { id: claimed.id.clone(), token: claim.token, bytes: claimed.body.len() };
        let end = if number == 2 {
            let (occurrence, at) = (UnixMillis::new(begin + 1000), at);
            ClaimEnd::Plan(Planned { revision: "r1".into(), occurrence, at, missed: 0 })
        } else {
            ClaimEnd::Ack
        };
        store.settle(&partition, &[Settlement::new(lease, end)]).await.expect("settled");
        assert_eq!(shown().await, (after, false), "after claim {number}");
    }
}

#[tokio::test]
async fn an_occurrence_that_ends_is_numbered_in_its_flow_to_be_planned_at_once() {
    let mut bench = Bench::start().await;
    let (rated, store) = (Partition { route: "rated".into(), index: 0, count: 1 }, bench.store.clone());
    let at = UnixMillis::new(LONG_AGO).expect("below 2^53");
    let next = NextOccurrence::At { occurrence: at, at };
    store.set_schedule(&rated, &definition("tick", "r1"), None, next).await.expect("set");
    let claim = store.claim(&rated, claim(7, 1)).await.expect("claimed");
    let [claimed] = &claim.messages[..] else { panic!("{claim:?}") };
    let before = bench.rows(&rated).await.flow.flows;
    let lease = Lease { id: claimed.id.clone(), token: claim.token, bytes: claimed.body.len() };
    store.settle(&rated, &[Settlement::new(lease, ClaimEnd::Ack)]).await.expect("settled");
    let after = bench.rows(&rated).await.flow.flows;
    let number = |flows: &BTreeMap<String, String>| flows[""].parse::<u32>().expect("a number");
    assert_eq!((&*before["tick@"], &*after["tick@"]), ("1 a", "! a"));
    assert_eq!(number(&after), number(&before) + 1);
}
