//! The store over a model of Redis: on the paused clock, and those of a cluster (`partly`, `shards`) on ports and the real one.

mod batches;
mod bulk;
mod developing;
mod durable;
mod moving;
mod operators;
mod partly;
mod reading;
mod schedules;
mod shards;
mod sharing;
mod waking;

use std::{sync::Arc, time::Duration};

use punctual_model::Reply;
use tokio::time::{advance, sleep};

use super::{
    simulated::{EPOCH, Simulated},
    *,
};
use crate::{
    message::{
        Cancellation, DeadReason, HistoryLimits, MAX_METADATA_BYTES, MessageId, Metadata, NewMessage, OnConflict,
        Remember, RouteLimits, State,
    },
    store::{
        Cancelled, ClaimEnd, ClaimRequest, Claimed, Death, FlowChange, Found, Lease, ScheduleStatus, Settled,
        Settlement, Store, Token, Transfer, Transferred,
    },
    time::Due,
};

fn id(id: &str) -> MessageId {
    MessageId::parse(id).unwrap()
}

fn partition() -> Partition {
    Partition { route: "r".into(), index: 0, count: 1 }
}

fn message(name: &str) -> NewMessage {
    NewMessage {
        id: id(name),
        due: Due::NOW,
        payload: "x".into(),
        metadata: Metadata::default(),
        on_conflict: OnConflict::Keep,
        debounce: None,
        record: None,
    }
}

fn route() -> RouteSettings {
    RouteSettings::plain("r", 100)
}

fn request(sequence: u64) -> ClaimRequest {
    ClaimRequest { lease: Duration::from_secs(10), ..Simulated::claim_of_all(sequence) }
}

impl Simulated {
    async fn schedule(&self, names: &[&str]) {
        let batch: Vec<_> = names.iter().map(|name| message(name)).collect();
        self.store.schedule(&partition(), &batch).await.unwrap();
    }

    /// The messages, and their leases.
    async fn claim(&self, sequence: u64) -> Vec<(Claimed, Lease)> {
        let claim = self.store.claim(&partition(), request(sequence)).await.unwrap();
        let lease = |one: &Claimed| Lease { id: one.id.clone(), token: claim.token, bytes: one.body.len() };
        claim.messages.iter().map(|one| (one.clone(), lease(one))).collect()
    }

    async fn settle(&self, lease: &Lease, end: ClaimEnd) -> Settled {
        self.store.settle(&partition(), &[Settlement::new(lease.clone(), end)]).await.unwrap().remove(0)
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_is_a_suspect_after_two_crashes_and_says_when_it_was_tried() {
    let redis = Simulated::start([route()]).await;
    redis.schedule(&["a"]).await;
    for (crashes, flags) in [(0, [false, false]), (1, [true, false]), (2, [true, true]), (3, [true, true])] {
        let claimed = redis.claim(crashes + 1).await;
        let [(one, _)] = &claimed[..] else { panic!("{claimed:?}") };
        assert_eq!(([one.tried, one.suspect], one.failures), (flags, 0), "{crashes}");
        assert!(!one.crashed_out, "only a schedule outlives that");
        advance(Duration::from_secs(11)).await;
        let recovered = redis.store.recover(&partition()).await.unwrap();
        assert_eq!((recovered.expired, recovered.more), (1, false));
    }
}

#[tokio::test(start_paused = true)]
async fn deaths_are_signalled_and_other_ends_are_not() {
    let redis = Simulated::start([route()]).await;
    let signal = Arc::<WakeSignal>::default();
    let store = redis.store.serving([route()]).notifying_of_deaths([("r".into(), vec![signal.clone()])].into());
    let is_signalled = async || tokio::time::timeout(Duration::ZERO, signal.notified()).await.is_ok();
    let claim = async |sequence| {
        let claim = store.claim(&partition(), request(sequence)).await.unwrap();
        let one = claim.messages.into_iter().next();
        one.map(|one| Lease { id: one.id, token: claim.token, bytes: one.body.len() })
    };
    let settle = async |lease: Lease, end| store.settle(&partition(), &[Settlement::new(lease, end)]).await.unwrap();
    redis.schedule(&["a"]).await;
    settle(claim(1).await.unwrap(), ClaimEnd::Retry { delay: Duration::ZERO, error: "e".into(), hold: None }).await;
    settle(claim(2).await.unwrap(), ClaimEnd::Ack).await;
    assert_eq!(store.recover(&partition()).await.unwrap().expired, 0);
    assert!(!is_signalled().await);
    redis.schedule(&["b"]).await;
    settle(claim(3).await.unwrap(), ClaimEnd::Bury { reason: DeadReason::Rejected, error: "e".into() }).await;
    assert!(is_signalled().await);
    store.bury(&partition(), Death::INVALID, &[(message("c"), "e".into())]).await.unwrap();
    assert!(is_signalled().await);
    // A body that is gone.
    redis.schedule(&["d"]).await;
    redis.execute(&["HDEL", "{p:r:0/1}:messages", "d"]);
    assert_eq!(claim(4).await, None);
    assert!(is_signalled().await);
    // The fifth crash.
    redis.schedule(&["e"]).await;
    for crash in 1..=5 {
        assert!(!is_signalled().await && claim(4 + crash).await.is_some(), "{crash}");
        advance(Duration::from_secs(11)).await;
        assert_eq!(store.recover(&partition()).await.unwrap().dead.count, u32::from(crash == 5));
    }
    assert!(is_signalled().await);
}

#[tokio::test(start_paused = true)]
async fn a_stale_lease_settles_nothing() {
    let redis = Simulated::start([route()]).await;
    redis.schedule(&["a", "b"]).await;
    let claimed = redis.claim(1).await;
    let stale = Lease { token: Token(7), ..claimed[0].1.clone() };
    assert_eq!(redis.settle(&stale, ClaimEnd::Ack).await, Settled::Stale);
    assert_eq!(redis.settle(&claimed[0].1, ClaimEnd::Ack).await, Settled::Done);
    let of = |lease: &Lease, list: &str| Transfer {
        lease: lease.clone(),
        list: list.into(),
        value: "v".into(),
        record: None,
    };
    redis.execute(&["SET", "text", "x"]);
    let transfers = [of(&stale, "list"), of(&claimed[1].1, "text")];
    let refused = Transferred::Refused("the key holds a string".into());
    assert_eq!(redis.store.transfer(&partition(), &transfers).await, Ok(vec![Transferred::Stale, refused]));
    let transfer = [of(&claimed[1].1, "list")];
    assert_eq!(redis.store.transfer(&partition(), &transfer).await, Ok(vec![Transferred::Done]));
    assert_eq!(redis.store.settle_alone(&partition(), &[]).await, Ok(vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_partition_takes_external_messages_while_it_has_capacity() {
    let capacity = async |limits, pending: usize, size: usize| {
        let redis = Simulated::start([RouteSettings { limits, ..route() }]).await;
        let sized = |n: usize| NewMessage {
            payload: vec![b'x'; size].into(),
            due: Due::After(1000),
            ..message(&n.to_string())
        };
        let batch: Vec<_> = (0..pending).map(sized).collect();
        if pending > 0 {
            redis.store.schedule(&partition(), &batch).await.unwrap();
        }
        let capacity = redis.store.capacity(&partition()).await.unwrap();
        (capacity, redis)
    };
    let none = RouteLimits::default();
    let (_, redis) = capacity(none, 500, 1).await;
    advance(Duration::from_secs(1)).await;
    assert_eq!(redis.store.capacity(&partition()).await, Ok(PendingCapacity::Free));
    let (free, redis) = capacity(none, 501, 1).await;
    assert_eq!(free, PendingCapacity::Free);
    // As many are due as a route has in flight.
    advance(Duration::from_secs(1)).await;
    assert_eq!(redis.store.capacity(&partition()).await, Ok(PendingCapacity::Full));
    assert_eq!(redis.claim(1).await.len(), 501);
    assert_eq!(redis.store.capacity(&partition()).await, Ok(PendingCapacity::Free));
    assert!(redis.store.pause(&partition(), "", "").await.unwrap());
    assert_eq!(redis.store.capacity(&partition()).await, Ok(PendingCapacity::Paused));

    let messages = RouteLimits { messages: Some(10), ..none };
    for (pending, expected) in [(0, PendingCapacity::Free), (9, PendingCapacity::Free), (10, PendingCapacity::Full)] {
        assert_eq!(capacity(messages, pending, 1).await.0, expected, "{pending}");
    }
    let (_, redis) = capacity(messages, 9, 1).await;
    advance(Duration::from_secs(1)).await;
    redis.claim(1).await;
    redis.schedule(&["in-flight-messages-count"]).await;
    assert_eq!(redis.store.capacity(&partition()).await, Ok(PendingCapacity::Full));

    let largest = (100 + MAX_METADATA_BYTES + 64) as u64;
    let (_, redis) = capacity(none, 1, 50).await;
    let stored = redis.store.stats(&partition()).await.unwrap().bytes;
    for (bytes, expected) in [(largest + stored, PendingCapacity::Free), (largest + stored - 1, PendingCapacity::Full)]
    {
        let bytes = RouteLimits { bytes: Some(bytes), ..none };
        assert_eq!(capacity(bytes, 1, 50).await.0, expected, "{bytes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_registration_says_what_it_found() {
    let redis = Simulated::start([route()]).await;
    let found = async |store: &RedisStore| {
        let registered = store.register().await.unwrap();
        assert!(registered.may_load);
        registered.routes.into_iter().map(|(_, one)| one).collect::<Vec<_>>()
    };
    assert_eq!(found(&redis.store).await, [Registration::Kept]);
    assert!(redis.store.is_registered().await.unwrap());
    let two = redis.store.serving([RouteSettings::plain("new", 10), route()]);
    assert!(!two.is_registered().await.unwrap());
    assert_eq!(found(&two).await, [Registration::Created, Registration::Kept]);
    redis.execute(&["DEL", "{p:r:0/1}:route"]);
    assert!(!redis.store.is_registered().await.unwrap());
    assert_eq!(found(&redis.store).await, [Registration::Reopened]);
    // Other settings of the same number of partitions are stored, and read again.
    let limits = RouteLimits { messages: Some(7), bytes: Some(200_000), delay: Some(Duration::from_secs(9)) };
    let remember = Some(Remember { period: Duration::from_mins(1), max: 5 });
    let changed = redis.store.serving([RouteSettings { remember, limits, ..route() }]);
    assert_eq!(found(&changed).await, [Registration::Kept]);
    let known = redis.store.known_routes().await.unwrap();
    let [new, known] = &known[..] else { panic!("{known:?}") };
    assert_eq!((&*new.name, &*known.name, known.limits, known.remember), ("new", "r", limits, remember));
    assert_eq!((new.limits, new.remember), (RouteLimits::default(), None));

    assert!(matches!(redis.store.would_move("r", 1).await, Ok(None)));
    assert!(matches!(redis.store.would_move("unknown", 3).await, Ok(None)));
    assert!(matches!(redis.store.would_move("r", 3).await, Ok(Some(1))));
    redis.execute(&["HSET", "p:routes", "r", r#"{"version":99,"partitions":1,"max_payload":100}"#]);
    assert!(matches!(redis.store.would_move("r", 3).await, Err(RegistrationError::Mismatch { .. })));
    assert!(redis.store.register().await.unwrap_err().is_definite());
    assert!(redis.store.known_routes().await.unwrap().iter().all(|one| &*one.name == "new"));
    // Another kind of key is not the fault of a script.
    redis.execute(&["DEL", "p:routes"]);
    redis.execute(&["SET", "p:routes", "text"]);
    let error = redis.store.register().await.unwrap_err();
    assert!(matches!(error, RegistrationError::Store(StoreError::WrongType { .. })), "{error}");
    assert!(!error.is_definite(), "the key can be deleted");
}

#[tokio::test(start_paused = true)]
async fn a_route_that_remembers_ids_for_no_time_is_stored_as_one_that_does_not() {
    let remember = Some(Remember { period: Duration::ZERO, max: 5 });
    let redis = Simulated::start([RouteSettings { remember, ..route() }]).await;
    assert_eq!(redis.store.known_routes().await.unwrap()[0].remember, None);
}

#[tokio::test(start_paused = true)]
async fn reads_of_messages_have_their_own_connection() {
    let redis = Simulated::start([route()]).await;
    let links = punctual_model::Links::new(&redis.server, 2);
    let listings = Connection::to(Arc::new(connection::Upstream::from(links.clone())), Duration::from_secs(1));
    let store = redis.store.serving([route()]).listing_over(Arc::new(listings));
    store.schedule(&partition(), &[message("a")]).await.unwrap();
    assert_eq!(links.received(), 0);
    assert!(store.get(&partition(), &id("a")).await.unwrap().is_some());
    assert!(links.received() > 0);
}

#[tokio::test(start_paused = true)]
async fn a_message_of_another_program_is_signalled_when_it_becomes_a_dead_letter() {
    let redis = Simulated::start([route()]).await;
    let signal = Arc::<WakeSignal>::default();
    let store = redis.store.serving([route()]).notifying_of_deaths([("r".into(), vec![signal.clone()])].into());
    let place = ExternalPlace::Members { key: "theirs".into(), unit: 1000 };
    for (member, outcome) in [("short", MoveOutcome::Taken), ("too long", MoveOutcome::Invalid)] {
        redis.execute(&["ZADD", "theirs", "1", member]);
        let entry = ExternalEntry { member: member.into(), id: id(&member[..3]), metadata: Metadata::default() };
        let moved = store.take(&partition(), &place, 5, &[entry]).await.unwrap();
        assert_eq!(moved[0].outcome, outcome);
        let is_signalled = tokio::time::timeout(Duration::ZERO, signal.notified()).await.is_ok();
        assert_eq!(is_signalled, outcome == MoveOutcome::Invalid, "{member}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_takes_its_message_from_the_former_partition_first() {
    let redis = Simulated::start([route()]).await;
    let (moving, name) = (redis.store.serving([RouteSettings { partitions: 3, ..route() }]), "r");
    let ids: Vec<_> = (0..600).map(|n| n.to_string()).collect();
    for some in ids.chunks(300) {
        let batch: Vec<_> = some.iter().map(|id| NewMessage { due: Due::After(60_000), ..message(id) }).collect();
        redis.store.schedule(&partition(), &batch).await.unwrap();
    }
    redis.schedule(&["flies"]).await;
    let claimed = redis.claim(1).await;
    assert_eq!(claimed.len(), 1);
    redis.store.bury(&partition(), Death::INVALID, &[(message("dead"), "e".into())]).await.unwrap();
    moving.register().await.unwrap();
    let own = |name: &str| partition().among(3, &id(name));
    // In flight there.
    let at = moving.schedule(&own("flies"), &[message("flies")]).await.unwrap().remove(0);
    assert_eq!(at.status, ScheduleStatus::Exists(State::Unack));
    let replacing = NewMessage { on_conflict: OnConflict::Replace, ..message("flies") };
    let at = moving.schedule(&own("flies"), &[replacing]).await.unwrap().remove(0);
    assert_eq!(at.status, ScheduleStatus::InFlight);
    assert_eq!(moving.cancel(&own("flies"), &id("flies").into()).await, Ok(Cancelled::InFlight));
    let batch: Vec<_> = ["flies", "fresh"].map(|name| (message(name), "e".to_owned())).into();
    for (n, one) in batch.iter().enumerate() {
        let buried = moving.bury(&own(one.0.id.as_str()), Death::INVALID, std::slice::from_ref(one)).await;
        assert_eq!(buried, Ok(vec![n == 1]));
    }
    let (index, count) = (own("flies").index, 200);
    let mut others = (0..count).map(|n| format!("n{n}")).filter(|name| own(name).index == index);
    let mixed = ["flies".to_owned(), others.next().unwrap()].map(|name| (message(&name), "e".to_owned()));
    assert_eq!(moving.bury(&own("flies"), Death::INVALID, &mixed).await, Ok(vec![false, true]));
    let mixed = [others.next().unwrap(), "flies".to_owned()].map(|name| message(&name));
    let at = moving.schedule(&own("flies"), &mixed).await.unwrap();
    let statuses: Vec<_> = at.into_iter().map(|one| one.status).collect();
    assert_eq!(statuses, [ScheduleStatus::Scheduled, ScheduleStatus::Exists(State::Unack)]);
    // Those that wait there are moved by the call.
    assert_eq!(moving.cancel(&own("7"), &id("7").into()).await, Ok(Cancelled::Cancelled));
    let kept = Cancellation { keep_dead: true, ..id("dead").into() };
    assert_eq!(moving.cancel(&own("dead"), &kept).await, Ok(Cancelled::Dead));
    assert!(matches!(moving.get(&own("8"), &id("8")).await, Ok(Some(Found::Live { .. }))));
    let mut counts = Vec::new();
    loop {
        let moved = moving.move_some(name).await.unwrap();
        assert_eq!(moved.conflicts, 0);
        counts.push(moved.count);
        if moved.count == 0 {
            // The one in flight is not moved.
            assert!(!moved.is_done);
            break;
        }
    }
    assert_eq!(counts, [250, 250, 99, 0]);
    assert_eq!(redis.settle(&claimed[0].1, ClaimEnd::Ack).await, Settled::Done);
    assert!(moving.move_some(name).await.unwrap().is_done);
    assert!(moving.former_partitions(name).is_empty() && moving.is_registered().await.unwrap());
    // Another instance that still moves them hears of the end.
    assert!(redis.store.schedule(&partition(), &[message("late")]).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_forwarded_dead_letter_has_one_turn_at_a_time() {
    let redis = Simulated::start([RouteSettings { forwards: true, ..route() }]).await;
    let dead: Vec<_> = (0..120).map(|n| (message(&n.to_string()), "e".to_owned())).collect();
    assert!(redis.store.forwards("r") && !redis.store.forwards("x"));
    redis.store.bury(&partition(), Death::INVALID, &dead).await.unwrap();
    let signal = Arc::<WakeSignal>::default();
    let routes = redis.store.routes().cloned().collect::<Vec<_>>();
    let store = redis.store.serving(routes).notifying_of_deaths([("r".into(), vec![signal.clone()])].into());
    let end_turn = async |of: &[Outgoing], turn| {
        store.end_turn(&partition(), of, turn).await.unwrap();
        // One that stays can be evicted from then on.
        let is_signalled = tokio::time::timeout(Duration::ZERO, signal.notified()).await.is_ok();
        assert_eq!(is_signalled, turn == Turn::Keep, "{turn:?}");
    };
    let take = async || redis.store.take_outbox(&partition()).await.unwrap();
    let first = take().await;
    assert_eq!((first.taken.len(), first.waiting), (100, 120));
    assert_eq!((first.taken[0].error.as_str(), first.taken[0].died), ("invalid: e", EPOCH));
    let second = take().await;
    assert_eq!((second.taken.len(), take().await.taken.len()), (20, 0));
    assert_eq!(take().await.next, Some(HOLD));
    end_turn(&first.taken[..40], Turn::Purge).await;
    end_turn(&first.taken[40..], Turn::Keep).await;
    end_turn(&second.taken, Turn::Again(Duration::from_secs(3))).await;
    let rest = take().await;
    assert_eq!((rest.taken.len(), rest.waiting, rest.next), (0, 20, Some(Duration::from_secs(3))));
    assert_eq!(redis.store.stats(&partition()).await.unwrap().dead, 80);
    sleep(Duration::from_secs(3)).await;
    assert_eq!(take().await.taken.len(), 20);
}

#[tokio::test(start_paused = true)]
async fn what_a_partition_keeps_of_its_messages_is_its_share() {
    let settings = RouteSettings {
        partitions: 3,
        remember: Some(Remember { period: Duration::from_mins(1), max: 10 }),
        history: Some(HistoryLimits { period: Duration::from_hours(1), max: 100 }),
        ..route()
    };
    assert_eq!((settings.kept_by_partition(), settings.keep_millis()), (4, 60_000));
    assert_eq!(settings.history_shares(), Some((3_600_000, 34)));
    assert_eq!((route().kept_by_partition(), route().keep_millis(), route().history_shares()), (0, 0, None));
    assert!(settings.to_text().ends_with("100 60000 history 3600000 34"), "{}", settings.to_text());
    let few = HistoryLimits { period: Duration::from_secs(1), max: 0 };
    assert_eq!(RouteSettings { history: Some(few), ..route() }.history_shares(), Some((1000, 1)));
}

#[tokio::test(start_paused = true)]
async fn a_flow_is_paused_and_changed_once() {
    let flow = RouteFlow { key: None, limits: FlowLimits { rate: None, burst: 1, parallel: Some(2), ordered: false } };
    let redis = Simulated::start([RouteSettings { flow: Some(flow), ..route() }]).await;
    let store = &redis.store;
    assert_eq!(store.pause_flow(&partition(), "f", "ops", "why").await, Ok(true));
    assert_eq!(store.pause_flow(&partition(), "f", "ops", "why").await, Ok(false));
    let change = FlowChange { parallel: crate::store::FieldChange::Set(7), ..FlowChange::default() };
    assert_eq!(store.change_flow(&partition(), "f", change).await, Ok(true));
    assert_eq!(store.change_flow(&partition(), "f", change).await, Ok(false));
    let state = store.flow(&partition(), "f").await.unwrap();
    let pause = state.rules.pause.unwrap();
    assert_eq!((pause.by.as_deref(), pause.note.as_deref()), (Some("ops"), Some("why")));
    assert_eq!((state.rules.parallel, state.rules.rate), (Some(7), None));
    assert_eq!(store.resume_flow(&partition(), "f").await, Ok(true));
    assert_eq!(store.resume_flow(&partition(), "f").await, Ok(false));
}
