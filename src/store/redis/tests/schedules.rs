//! Recurring schedules: changes that are refused, and their next occurrence.

use super::*;
use crate::{
    message::Recurring,
    recurrence::Rule,
    store::{NextOccurrence, Planned, ScheduleChange, ScheduleDefinition, ScheduleOwner},
    time::UnixMillis,
};

const API: ScheduleOwner = ScheduleOwner::Api;

fn name() -> MessageId {
    MessageId::of_schedule("s").unwrap()
}

fn at(millis: u64) -> UnixMillis {
    UnixMillis::new(EPOCH + millis).unwrap()
}

impl Simulated {
    /// Sets a schedule of each minute, of which an occurrence is due.
    async fn set(&self, revision: &str, replaces: Option<&str>) -> ScheduleChange {
        let rule = Rule { every: Some(60_000), starts_at: Some(EPOCH), ..Rule::default() };
        let recurring = Recurring { revision: revision.to_owned(), rule, expires_after: None };
        let metadata = Metadata { recurring: Some(recurring.into()), ..Metadata::default() };
        let definition = ScheduleDefinition { id: name(), owner: API, metadata, payload: "x".into() };
        let next = NextOccurrence::At { occurrence: at(0), at: at(0) };
        self.store.set_schedule(&partition(), &definition, replaces, next).await.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_another_revision_or_of_no_schedule_is_not_made() {
    let redis = Simulated::start([route()]).await;
    assert_eq!(redis.store.delete_schedule(&partition(), &name(), API).await, Ok(ScheduleChange::Absent));
    assert_eq!(redis.store.pause_schedule(&partition(), &name(), true).await, Ok(ScheduleChange::Absent));
    assert_eq!(redis.set("1", None).await, ScheduleChange::Created);
    for replaces in [None, Some("0")] {
        assert_eq!(redis.set("2", replaces).await, ScheduleChange::Conflict);
    }
    assert_eq!(redis.set("2", Some("1")).await, ScheduleChange::Changed);
    assert_eq!(redis.store.delete_schedule(&partition(), &name(), API).await, Ok(ScheduleChange::Deleted));
}

#[tokio::test(start_paused = true)]
async fn a_schedule_that_has_ended_has_no_next_occurrence() {
    let redis = Simulated::start([route()]).await;
    redis.set("1", None).await;
    let (_, lease) = redis.claim(1).await.remove(0);
    let plan = Planned { revision: "1".into(), occurrence: None, at: at(0), missed: 0 };
    assert_eq!(redis.settle(&lease, ClaimEnd::Plan(plan)).await, Settled::Done);
    let state = redis.store.schedule_state(&partition(), &name()).await.unwrap().unwrap();
    assert_eq!((state.next, state.in_flight, state.is_lost), (None, false, false));
}

#[tokio::test(start_paused = true)]
async fn a_schedule_in_flight_in_the_former_partition_is_found_there() {
    let redis = Simulated::start([route()]).await;
    redis.set("1", None).await;
    assert_eq!(redis.claim(1).await.len(), 1);
    let moving = redis.serving([RouteSettings { partitions: 2, ..route() }]).await;
    let state = moving.schedule_state(&partition().among(2, &name()), &name()).await.unwrap().unwrap();
    assert!(state.in_flight && state.next == Some(at(0)), "{state:?}");
}
