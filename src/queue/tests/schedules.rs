//! Recurring schedules that are set, found, paused, run and deleted.

use tokio::time::sleep;

use super::*;
use crate::{
    message::{OccurrenceMessage, StoredMessage},
    recurrence::Rule,
    store::{Death, ScheduleChange, ScheduleOwner},
};

const FILE: ScheduleOwner = ScheduleOwner::File { revision: 7 };
const API: ScheduleOwner = ScheduleOwner::Api;

fn of(name: &str) -> MessageId {
    MessageId::of_schedule(name).unwrap()
}

/// Each minute from the beginning of the test on.
fn schedule(name: &str, route: &str, owner: ScheduleOwner) -> NewSchedule {
    NewSchedule {
        id: of(name),
        route: route.into(),
        owner,
        rule: Rule { every: Some(60_000), starts_at: Some(EPOCH), ..Rule::default() },
        expires_after: None,
        metadata: Metadata::default(),
        payload: "x".into(),
    }
}

impl Bench {
    async fn with_routes() -> Self {
        Self::start([route(), RouteSettings::plain("other", 100)]).await
    }

    async fn set(&self, new: NewSchedule) -> Result<ScheduleChange, String> {
        self.queue.set_schedule(new).await.map_err(|error| error.to_string())
    }

    /// Names and routes.
    async fn all(&self) -> Vec<String> {
        let all = self.queue.schedules(&self.queue.routes()).await.unwrap();
        all.iter().map(|one| format!("{} of {}", one.name(), one.route)).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_schedule_is_set_once_and_changed_by_its_owner() {
    let bench = Bench::with_routes().await;
    assert_eq!(bench.set(schedule("a", "r", API)).await, Ok(ScheduleChange::Created));
    assert_eq!(bench.set(schedule("a", "r", API)).await, Ok(ScheduleChange::Unchanged));
    let changes = [
        NewSchedule { payload: "y".into(), ..schedule("a", "r", API) },
        NewSchedule { payload: "y".into(), expires_after: Some(5), ..schedule("a", "r", API) },
        NewSchedule {
            payload: "y".into(),
            expires_after: Some(5),
            metadata: keyed("a", "k").metadata,
            ..schedule("a", "r", API)
        },
        schedule("a", "r", API),
    ];
    for change in changes {
        assert_eq!(bench.set(change.clone()).await, Ok(ScheduleChange::Changed));
        assert_eq!(bench.set(change).await, Ok(ScheduleChange::Unchanged));
    }
    let found = bench.queue.find_schedule(&of("a")).await.unwrap().unwrap();
    assert_eq!(
        (&*found.route, found.name(), found.state.next, found.sends_at()),
        ("r", "a", Some(at(60_000)), Some(EPOCH + 60_000))
    );
    assert_eq!(found.following(EPOCH, 3), [1, 2, 3].map(|n| at(60_000 * n)));
    assert_eq!(found.following(EPOCH + 150_000, 3), [1, 3, 4].map(|n| at(60_000 * n)));

    let text = "the schedule `a` is of the route `r`, which cannot be changed: delete it first";
    assert_eq!(bench.set(schedule("a", "other", API)).await, Err(text.to_owned()));
    assert_eq!(bench.set(schedule("file", "r", FILE)).await, Ok(ScheduleChange::Created));
    let text = "the schedule `file` is of the configuration file: change it there";
    let other = NewSchedule { payload: "y".into(), ..schedule("file", "r", API) };
    assert_eq!(bench.set(other).await, Err(text.to_owned()));
    let older = ScheduleOwner::File { revision: 6 };
    let other = NewSchedule { payload: "y".into(), ..schedule("file", "r", older) };
    let text = "the schedule `file` is of a file with a higher `schedules_revision`";
    assert_eq!(bench.set(other).await, Err(text.to_owned()));
    // A file moves its schedules to another route.
    assert_eq!(bench.set(schedule("file", "other", FILE)).await, Ok(ScheduleChange::Created));
    assert_eq!(bench.all().await, ["a of r", "file of other"]);
}

#[tokio::test(start_paused = true)]
async fn a_wrong_schedule_changes_nothing() {
    let bench = Bench::with_routes().await;
    let large = |size: usize| NewSchedule { payload: vec![0; size].into(), ..schedule("a", "r", API) };
    let text = "refused: too-large: the payload takes 101 bytes, at most 100";
    assert_eq!(bench.set(large(101)).await, Err(text.to_owned()));
    let ends = |ends_at| NewSchedule {
        rule: Rule { ends_at: Some(EPOCH + ends_at), ..schedule("a", "r", API).rule },
        ..schedule("a", "r", API)
    };
    sleep(Duration::from_secs(70)).await;
    assert!(bench.set(ends(69_000)).await.unwrap_err().starts_with("ends_at: "));
    assert!(bench.all().await.is_empty());
    assert_eq!(bench.set(large(100)).await, Ok(ScheduleChange::Created));
    assert_eq!(bench.set(ends(130_000)).await, Ok(ScheduleChange::Changed));
    // A rule stays in force after its end, too.
    sleep(Duration::from_secs(70)).await;
    assert_eq!(bench.set(ends(130_000)).await, Ok(ScheduleChange::Unchanged));
    assert_eq!(bench.set(NewSchedule { payload: "z".into(), ..ends(130_000) }).await, Ok(ScheduleChange::Changed));
}

#[tokio::test(start_paused = true)]
async fn a_new_rule_begins_now_and_an_equal_one_goes_on() {
    let bench = Bench::with_routes().await;
    bench.set(schedule("a", "r", API)).await.unwrap();
    sleep(Duration::from_secs(100)).await;
    let next = async || bench.queue.known_schedule(&of("a")).await.unwrap().state.next;
    bench.set(NewSchedule { payload: "y".into(), ..schedule("a", "r", API) }).await.unwrap();
    assert_eq!(next().await, Some(at(60_000)), "that which is overdue");
    let rule = Rule { every: Some(90_000), ..schedule("a", "r", API).rule };
    bench.set(NewSchedule { rule, ..schedule("a", "r", API) }).await.unwrap();
    assert_eq!(next().await, Some(at(180_000)));
    let text = "there is no schedule `b`";
    assert_eq!(bench.queue.known_schedule(&of("b")).await.unwrap_err().to_string(), text);
    assert_eq!(
        bench.queue.schedule_on(&"other".into(), &of("a")).await.unwrap_err().to_string(),
        "there is no schedule `a`"
    );
    assert_eq!(bench.queue.schedule_on(&"r".into(), &of("a")).await.unwrap().state.next, Some(at(180_000)));
}

#[tokio::test(start_paused = true)]
async fn a_schedule_is_paused_resumed_and_deleted() {
    let bench = Bench::with_routes().await;
    for (name, owner) in [("a", API), ("file", FILE)] {
        bench.set(schedule(name, "r", owner)).await.unwrap();
    }
    for (pause, has_changed) in [(false, false), (true, true), (true, false)] {
        let (one, changed) = bench.queue.pause_schedule(&of("a"), pause).await.unwrap();
        assert_eq!((one.name(), changed), ("a", has_changed));
    }
    let paused = bench.queue.find_schedule(&of("a")).await.unwrap().unwrap();
    assert_eq!((paused.state.is_paused, paused.sends_at()), (true, None));
    assert_eq!(paused.following(EPOCH + 60_000, 2), [at(120_000), at(180_000)]);
    assert!(bench.queue.pause_schedule(&of("a"), false).await.unwrap().1);
    assert!(bench.queue.pause_schedule(&of("b"), true).await.is_err());

    let managed = bench.queue.delete_schedule(&of("file"), API).await.unwrap_err();
    assert!(matches!(managed, ScheduleError::Managed(_)), "{managed}");
    let older = bench.queue.delete_schedule(&of("file"), ScheduleOwner::File { revision: 6 }).await.unwrap_err();
    assert!(matches!(older, ScheduleError::Older(_)), "{older}");
    assert_eq!(bench.queue.delete_schedule(&of("a"), API).await.unwrap().name(), "a");
    assert!(matches!(bench.queue.delete_schedule(&of("a"), API).await, Err(ScheduleError::Unknown(_))));
    assert_eq!(bench.all().await, ["file of r"]);
    bench.queue.delete_schedule(&of("file"), FILE).await.unwrap();
    assert!(bench.ids(State::Pending).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_call_changes_all_schedules_of_a_name() {
    let bench = Bench::with_routes().await;
    let other = Queue::new(bench.redis.serving([RouteSettings::plain("other", 100)]).await, &BTreeMap::new(), false);
    bench.set(schedule("a", "r", FILE)).await.unwrap();
    other.set_schedule(schedule("a", "other", FILE)).await.unwrap();
    assert!(bench.queue.pause_schedule(&of("a"), true).await.unwrap().1);
    let all = bench.queue.known_schedules(&of("a")).await.unwrap();
    assert_eq!(
        all.iter().map(|one| (&*one.route, one.state.is_paused)).collect::<Vec<_>>(),
        [("other", true), ("r", true)]
    );
    other.pause_schedule(&of("a"), false).await.unwrap();
    assert!(bench.queue.pause_schedule(&of("a"), false).await.unwrap().1, "one of both was paused");
    let managed = bench.queue.delete_schedule(&of("a"), API).await.unwrap_err();
    assert!(matches!(managed, ScheduleError::Managed(_)), "{managed}");
    assert_eq!(bench.all().await, ["a of other", "a of r"]);
    bench.queue.delete_schedule(&of("a"), FILE).await.unwrap();
    assert!(bench.all().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_schedule_of_a_route_that_is_not_configured_keeps_its_name() {
    let bench = Bench::with_routes().await;
    let one = Queue::new(bench.redis.serving([route()]).await, &BTreeMap::new(), false);
    bench.set(schedule("a", "other", API)).await.unwrap();
    bench.set(schedule("file", "other", FILE)).await.unwrap();
    let text =
        "the schedule `a` is of the route `other`, which is not configured: configure that to change or delete it";
    let refused = one.set_schedule(schedule("a", "r", API)).await.unwrap_err();
    assert_eq!(refused.to_string(), text);
    assert_eq!(one.set_schedule(schedule("b", "r", API)).await.unwrap(), ScheduleChange::Created);
    // A file is applied again when the route is configured.
    assert_eq!(one.set_schedule(schedule("file", "r", FILE)).await.unwrap(), ScheduleChange::Created);
    bench.set(schedule("file", "r", FILE)).await.unwrap();
    assert_eq!(bench.all().await, ["a of other", "b of r", "file of r"]);
    // Keys of another type hold no schedule.
    bench.redis.execute(&["DEL", "{p:other:0/1}:schedules"]);
    bench.redis.execute(&["SET", "{p:other:0/1}:schedules", "text"]);
    assert_eq!(one.set_schedule(schedule("a", "r", API)).await.unwrap(), ScheduleChange::Created);
}

#[tokio::test(start_paused = true)]
async fn a_dead_occurrence_is_stored_once_unless_another_message_has_its_id() {
    let bench = Bench::with_routes().await;
    let (store, death) = (bench.redis.store.clone(), Death { reason: DeadReason::Rejected, failures: 1 });
    let partition = Partition { route: "r".into(), index: 0, count: PARTITIONS };
    let occurrence = |time: u64| {
        let due = at(time);
        let message = StoredMessage { due, accepted: due, metadata: Metadata::default(), payload: "x".into() };
        OccurrenceMessage::of("a", &message).unwrap()
    };
    let bury = async |one: &OccurrenceMessage| store.bury_occurrence(&partition, one, death, "HTTP 400").await.unwrap();
    let (first, second) = (occurrence(60_000), occurrence(120_000));
    assert_eq!((bury(&first).await, bury(&first).await), (true, true), "a repeated call");
    bench.schedule([message(second.id.as_str())]).await;
    assert!(!bury(&second).await);
    assert!(bury(&second.under(1)).await && bury(&second.under(1)).await);
    assert_eq!(bench.ids(State::Dead).await, [first.id.to_string(), format!("{}~1", second.id)]);
}

#[tokio::test(start_paused = true)]
async fn an_additional_run_is_a_message_of_its_own() {
    let bench = Bench::with_routes().await;
    bench.set(NewSchedule { expires_after: Some(5000), ..schedule("a", "r", API) }).await.unwrap();
    bench.until(1000).await;
    let now = bench.now();
    let (one, scheduled) = bench.queue.run_schedule(&of("a"), "api").await.unwrap();
    assert_eq!(
        (one.state.next, scheduled.status, scheduled.due),
        (Some(at(60_000)), ScheduleStatus::Scheduled, at(bench.now()))
    );
    let Some(Found::Live { snapshot, .. }) = bench.queue.get("r", &scheduled.id).await.unwrap() else { panic!() };
    let message = snapshot.message.unwrap();
    assert_eq!((message.metadata.expires_at, &message.payload[..]), (Some(EPOCH + now + 5000), &b"x"[..]));
    assert_eq!((bench.count("scheduled"), bench.ids(State::Pending).await.len()), (1, 2));
    assert!(matches!(bench.queue.run_schedule(&of("b"), "api").await, Err(ScheduleError::Unknown(_))));
}

#[tokio::test(start_paused = true)]
async fn a_schedule_that_lost_its_message_is_restored() {
    let bench = Bench::with_routes().await;
    bench.set(schedule("a", "other", FILE)).await.unwrap();
    let one = bench.queue.known_schedule(&of("a")).await.unwrap();
    assert!(!bench.queue.restore_schedule(&one).await.unwrap());
    let key = |name: &str| format!("{{p:other:0/1}}:{name}");
    bench.redis.execute(&["ZREM", &key("pending"), of("a").as_str()]);
    bench.redis.execute(&["HDEL", &key("messages"), of("a").as_str()]);
    let one = bench.queue.known_schedule(&of("a")).await.unwrap();
    assert!(one.state.is_lost && one.state.next.is_none(), "{one:?}");
    sleep(Duration::from_secs(70)).await;
    assert!(bench.queue.restore_schedule(&one).await.unwrap());
    let one = bench.queue.known_schedule(&of("a")).await.unwrap();
    assert_eq!((one.state.is_lost, one.state.next, one.state.owner), (false, Some(at(120_000)), FILE));
}

#[tokio::test(start_paused = true)]
async fn schedules_are_found_although_another_route_cannot_be_read() {
    let bench = Bench::with_routes().await;
    bench.set(schedule("a", "r", FILE)).await.unwrap();
    bench.redis.execute(&["SET", "{p:other:0/1}:schedules", "text"]);
    assert_eq!(&*bench.queue.find_schedule(&of("a")).await.unwrap().unwrap().route, "r");
    assert!(bench.queue.find_schedule(&of("b")).await.is_err());
    // Another type stays as it is; a Redis that is unavailable may have one.
    assert_eq!(bench.queue.schedules_of_name(&of("b"), "r").await.unwrap().len(), 0);
    assert_eq!(bench.queue.schedules_of_name(&of("a"), "r").await.unwrap().len(), 1);
    let faults = punctual_model::LinkFaults { down: true, ..punctual_model::LinkFaults::default() };
    bench.redis.links.set_faults(faults);
    assert!(bench.queue.schedules_of_name(&of("a"), "r").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_route_that_cannot_be_read_matters_unless_it_is_another_one() {
    let bench = Bench::with_routes().await;
    bench.set(schedule("a", "other", FILE)).await.unwrap();
    bench.redis.server.reply_with(|command| {
        let is_of_route = command.iter().any(|word| word.starts_with("{p:r:"));
        is_of_route.then(|| punctual_model::Reply::error("OOM command not allowed when used memory > 'maxmemory'."))
    });
    let error = bench.queue.schedules_of_name(&of("a"), "r").await.unwrap_err();
    assert!(matches!(error, QueueError::Store(StoreError::Unavailable { .. })), "{error}");
    assert_eq!(bench.queue.schedules_of_name(&of("a"), "other").await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn calls_at_the_same_time_take_effect_in_sequence() {
    let bench = Bench::with_routes().await;
    let other = NewSchedule { payload: "y".into(), ..schedule("a", "r", API) };
    let (one, two) = tokio::join!(bench.set(schedule("a", "r", API)), bench.set(other));
    // The later one replaces the other.
    let payload = match (one, two) {
        (Ok(ScheduleChange::Created), Ok(ScheduleChange::Changed)) => b"y",
        (Ok(ScheduleChange::Changed), Ok(ScheduleChange::Created)) => b"x",
        other => panic!("{other:?}"),
    };
    let found = bench.queue.known_schedule(&of("a")).await.unwrap();
    assert_eq!(&found.state.payload[..], payload);
    let name = of("a");
    let both = tokio::join!(bench.queue.delete_schedule(&name, API), bench.queue.delete_schedule(&name, API));
    let is_unknown = |one: &Result<_, ScheduleError>| matches!(one, Err(ScheduleError::Unknown(_)));
    assert!(both.0.is_ok() && is_unknown(&both.1) || both.1.is_ok() && is_unknown(&both.0), "{both:?}");
}

#[tokio::test(start_paused = true)]
async fn a_schedule_is_not_changed_while_it_is_in_flight_in_a_former_partition() {
    let bench = Bench::start([route()]).await;
    bench.set(schedule("a", "r", API)).await.unwrap();
    bench.until(60_000).await;
    assert_eq!(bench.claim().await.len(), 1);
    assert_eq!(bench.queue.choose_partitions("r", 1).await, Ok(true));
    let moving = bench.redis.serving([RouteSettings { partitions: 1, ..route() }]).await;
    let new = Queue::new(moving, &BTreeMap::new(), false);
    let other = NewSchedule { payload: "y".into(), ..schedule("a", "r", API) };
    let refused = new.set_schedule(other).await;
    assert!(matches!(refused, Err(ScheduleError::Moving(_))), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn the_next_message_of_a_route_is_not_that_of_a_paused_schedule() {
    let bench = Bench::with_routes().await;
    bench.set(schedule("a", "r", API)).await.unwrap();
    let next_due = async || bench.queue.stats("r").await.unwrap().next_due;
    assert_eq!(next_due().await, Some(at(60_000)));
    bench.queue.pause_schedule(&of("a"), true).await.unwrap();
    assert_eq!(next_due().await, None);
}
