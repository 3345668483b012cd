//! Dead letters that are edited and selected, ends, flows, and single messages that are moved.

use super::*;
use crate::{
    message::{EndRecord, Limit, Rate},
    sink::template::FlowTemplate,
    store::{
        BulkProgress, CutLeases, DeadAction, DeadWork, Edit, Edited, Expiry, FieldChange, Filter, NewDue, Order,
        PageRequest, Rescheduled, ScheduleStatus, Selection, Spread,
    },
    time::UnixMillis,
};

fn at(millis: u64) -> UnixMillis {
    UnixMillis::new(EPOCH + millis).unwrap()
}

fn keyed(name: &str, key: &str) -> NewMessage {
    NewMessage { metadata: Metadata { key: Some(key.to_owned()), ..Metadata::default() }, ..message(name) }
}

fn in_flow(name: &str, flow: &str) -> NewMessage {
    NewMessage { metadata: Metadata { flow: Some(flow.to_owned()), ..Metadata::default() }, ..message(name) }
}

fn flows(limits: FlowLimits) -> RouteSettings {
    RouteSettings { flow: Some(RouteFlow { key: None, limits }), ..route() }
}

impl Simulated {
    async fn bury(&self, messages: impl IntoIterator<Item = NewMessage>) {
        let messages: Vec<_> = messages.into_iter().map(|one| (one, "e".to_owned())).collect();
        self.store.bury(&partition(), Death::INVALID, &messages).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_dead_letter_with_the_expected_revision_is_edited() {
    let redis = Simulated::start([RouteSettings { forwards: true, ..route() }]).await;
    let edit = Edit {
        payload: Some("new".into()),
        key: FieldChange::Set(crate::store::NewKey::Text("k".into())),
        ..Edit::default()
    };
    let edited = async |name: &str, edit: &Edit, revision: Option<&str>| {
        redis.store.edit(&partition(), &id(name), edit, revision).await.unwrap()
    };
    redis.schedule(&["flies"]).await;
    redis.claim(1).await;
    let later = NewMessage { due: Due::After(60_000), ..message("waits") };
    redis.store.schedule(&partition(), &[later]).await.unwrap();
    redis.bury(["a", "b", "c"].map(message)).await;
    assert_eq!(edited("flies", &edit, None).await, Edited::InFlight);
    assert_eq!(edited("waits", &edit, None).await, Edited::Pending);
    assert_eq!(edited("unknown", &edit, None).await, Edited::NotFound);
    // Those that were buried wait for being forwarded.
    assert_eq!(edited("a", &edit, None).await, Edited::Forwarding);
    let outbox = redis.store.take_outbox(&partition()).await.unwrap();
    redis.store.end_turn(&partition(), &outbox.taken, Turn::Keep).await.unwrap();
    let Edited::Done { changes, revision } = edited("a", &edit, None).await else { panic!("it is edited") };
    assert_eq!(changes.to_string(), "payload 1 to 3 bytes, key 0 to 1 bytes");
    let Some(Found::Live { snapshot, .. }) = redis.store.get(&partition(), &id("a")).await.unwrap() else { panic!() };
    assert_eq!(
        (snapshot.revision.as_deref(), snapshot.message.unwrap().metadata.key.as_deref()),
        (Some(&*revision), Some("k"))
    );
    // A repeated call finds its own change; another one is too late.
    assert!(matches!(edited("a", &edit, Some("other")).await, Edited::Done { .. }));
    let other = Edit { payload: Some("other".into()), ..Edit::default() };
    assert_eq!(edited("a", &other, Some("other")).await, Edited::Changed);
    assert!(matches!(edited("a", &other, Some(&revision)).await, Edited::Done { .. }));
    let wrong = Edit { max_attempts: FieldChange::Set(0), ..Edit::default() };
    assert!(matches!(edited("b", &wrong, None).await, Edited::Invalid(mistakes) if mistakes.len() == 1));
    redis.execute(&["HSET", "{p:r:0/1}:messages", "c", "?"]);
    assert!(matches!(edited("c", &edit, None).await, Edited::Unreadable(_)));
}

#[tokio::test(start_paused = true)]
async fn a_filter_by_bodies_acts_up_to_its_limit_and_counts_what_it_did() {
    let redis = Simulated::start([route()]).await;
    redis.bury((0..40).map(|n| keyed(&n.to_string(), if n % 2 == 0 { "k" } else { "other" }))).await;
    let died = UnixMillis::new(redis.server.now() / 1000).unwrap();
    let of = |until| Selection::Where(Filter { key: Some("k".into()), until, ..Filter::default() });
    let act = async |selection: &Selection, limit, spread| {
        let mut done = BulkProgress::default();
        let deadline = tokio::time::Instant::now() + Duration::from_hours(1);
        let action = DeadAction::Redrive(Expiry::Drop);
        let work = DeadWork { action, spread, selection, limit, dry_run: false, deadline };
        redis.store.act_on_dead(&partition(), &work, &mut done).await.unwrap();
        (done.count, done.more, done.next)
    };
    // Those that died at this time or later stay.
    assert_eq!(act(&of(Some(died)), 5, Spread::default()).await, (0, false, None));
    assert_eq!(act(&of(None), 5, Spread::default()).await, (5, true, None));
    let spread = Spread { start: Some(at(60_000)), rate: Some(Rate::parse("10/s").unwrap()) };
    assert_eq!(act(&of(None), 7, spread).await, (7, true, Some(at(60_700))));
    assert_eq!(act(&of(None), 8, spread).await, (8, false, Some(at(60_800))));
    assert_eq!(redis.store.stats(&partition()).await.unwrap().dead, 20);
    // By ids, as many as there are.
    let ids = Selection::Ids { ids: (0..40).map(|n| id(&n.to_string())).collect(), until: None };
    assert_eq!(act(&ids, 1000, Spread::default()).await, (20, false, None));
}

#[tokio::test(start_paused = true)]
async fn the_oldest_dead_letters_are_evicted_beyond_age_and_number() {
    let settings = RouteSettings { partitions: 2, ..route() };
    let redis = Simulated::start([settings]).await;
    let own = Partition { route: "r".into(), index: 0, count: 2 };
    let names: Vec<_> = (0..100).map(|n| id(&n.to_string())).filter(|id| id.partition(2) == 0).take(10).collect();
    for name in &names {
        let one = [(message(name.as_str()), "e".to_owned())];
        redis.store.bury(&own, Death::INVALID, &one).await.unwrap();
        advance(Duration::from_secs(10)).await;
    }
    let evict = async |max_age, max_count| {
        let limits = crate::message::DeadLimits { max_age, max_count };
        redis.store.evict(&own, limits).await.unwrap()
    };
    let none = evict(None, None).await;
    assert_eq!((none.aged, none.beyond, none.more, none.next), (0, 0, false, None));
    // A share of the limit for each partition.
    let some = evict(None, Some(16)).await;
    assert_eq!((some.aged, some.beyond, some.more), (0, 2, false));
    let aged = evict(Some(Duration::from_secs(61)), Some(16)).await;
    assert_eq!((aged.aged, aged.beyond, aged.more), (2, 0, false));
    assert!(aged.next.is_some_and(|next| next <= Duration::from_secs(2)), "{aged:?}");
    let one = evict(None, Some(1)).await;
    assert_eq!((one.beyond, redis.store.stats(&own).await.unwrap().dead), (5, 1));
}

#[tokio::test(start_paused = true)]
async fn ends_are_shown_and_trimmed_by_their_age_and_number() {
    let history = HistoryLimits { period: Duration::from_mins(1), max: 20 };
    let remember = Some(Remember { period: Duration::from_secs(30), max: 10 });
    let redis = Simulated::start([RouteSettings { history: Some(history), remember, ..route() }]).await;
    assert!(redis.store.keeps_history("r") && !redis.store.keeps_history("x"));
    redis.schedule(&["a", "b"]).await;
    for (claimed, lease) in redis.claim(1).await {
        let record = Some(EndRecord::of(&claimed.body, claimed.failures));
        let settlement = Settlement { record, ..Settlement::new(lease, ClaimEnd::Ack) };
        redis.store.settle(&partition(), &[settlement]).await.unwrap();
    }
    let ends = async |order, place| redis.store.ends(&partition(), order, place, 100).await.unwrap();
    let ids = |part: &EndsPart| part.ends.iter().map(|(_, end)| end.id.to_string()).collect::<Vec<_>>();
    assert_eq!(ids(&ends(Order::Ascending, EndPlace::Start).await), ["a", "b"]);
    assert_eq!(ids(&ends(Order::Descending, EndPlace::Start).await), ["b", "a"]);
    let found = redis.store.get(&partition(), &id("a")).await.unwrap().unwrap();
    let Found::Ended { remembered: Some(_), ends: of_id } = found else { panic!("{found:?}") };
    assert_eq!((of_id.len(), of_id[0].attempts), (1, 1));
    // Remembered for half a minute, ended for a minute.
    advance(Duration::from_secs(59)).await;
    let found = redis.store.get(&partition(), &id("a")).await.unwrap().unwrap();
    assert!(matches!(&found, Found::Ended { remembered: None, ends } if ends.len() == 1), "{found:?}");
    assert_eq!(ends(Order::Ascending, EndPlace::Start).await.ends.len(), 2);
    let cancel = async |name: &str| {
        redis.schedule(&[name]).await;
        redis.store.cancel(&partition(), &self::id(name).into()).await.unwrap();
    };
    cancel("later").await;
    let (first, _) = redis.store.trim_history(&partition()).await.unwrap();
    assert_eq!(first, 3);
    advance(Duration::from_secs(1)).await;
    let ended = ends(Order::Ascending, EndPlace::Start).await.ends[0].1.ended;
    assert_eq!(redis.server.now() / 1000 - ended.get(), 60_000, "its last millisecond");
    assert_eq!(ids(&ends(Order::Ascending, EndPlace::Start).await), ["a", "b", "later"]);
    advance(Duration::from_secs(1)).await;
    assert!(redis.store.get(&partition(), &id("a")).await.unwrap().is_none());
    assert_eq!(ids(&ends(Order::Ascending, EndPlace::Start).await), ["later"]);
    assert_eq!(ids(&ends(Order::Descending, EndPlace::Start).await), ["later"]);
    advance(Duration::from_secs(61)).await;
    assert!(ends(Order::Ascending, EndPlace::Start).await.ends.is_empty());
    assert!(ends(Order::Descending, EndPlace::Start).await.ends.is_empty());
    for n in 0..100 {
        cancel(&n.to_string()).await;
    }
    let (mut kept, mut more) = redis.store.trim_history(&partition()).await.unwrap();
    while more {
        (kept, more) = redis.store.trim_history(&partition()).await.unwrap();
    }
    // Whole blocks of 16.
    assert!((20..36).contains(&kept), "{kept}");
    let without = redis.store.serving([route()]);
    while without.trim_history(&partition()).await.unwrap().1 {}
    assert_eq!(without.trim_history(&partition()).await, Ok((0, false)));
    assert!(without.ends(&partition(), Order::Ascending, EndPlace::Start, 10).await.unwrap().ends.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_call_reads_a_few_more_ends_than_it_needs() {
    let history = Some(HistoryLimits { period: Duration::from_mins(1), max: 1000 });
    let redis = Simulated::start([RouteSettings { history, ..route() }]).await;
    for n in 0..100 {
        redis.schedule(&[&n.to_string()]).await;
        redis.store.cancel(&partition(), &id(&n.to_string()).into()).await.unwrap();
    }
    // Blocks of 16, and the first and the last one can be cut.
    let some = redis.store.ends(&partition(), Order::Ascending, EndPlace::Start, 20).await.unwrap();
    assert!((20..=48).contains(&some.ends.len()) && some.reached.is_some(), "{}", some.ends.len());
}

#[tokio::test(start_paused = true)]
async fn flows_are_listed_by_name_with_what_waits_for_them() {
    let redis = Simulated::start([flows(FlowLimits { rate: None, burst: 1, parallel: Some(1), ordered: false })]).await;
    let batch: Vec<_> = (0..12).map(|n| in_flow(&n.to_string(), &format!("f{}", n % 3))).collect();
    redis.store.schedule(&partition(), &batch).await.unwrap();
    assert_eq!(redis.claim(1).await.len(), 3, "one of each");
    let (all, more) = redis.store.flows(&partition(), None, 10).await.unwrap();
    let shown =
        |flow: &crate::store::FlowState| (flow.key.clone(), flow.waiting, flow.in_flight, flow.held_by.is_some());
    let row = |key: &str| (key.to_owned(), 3, 1, true);
    assert_eq!((all.iter().map(shown).collect::<Vec<_>>(), more), (["f0", "f1", "f2"].map(row).into(), false));
    let (page, more) = redis.store.flows(&partition(), None, 2).await.unwrap();
    assert_eq!((page.len(), more), (2, true));
    let (rest, more) = redis.store.flows(&partition(), Some("f1"), 2).await.unwrap();
    assert_eq!((rest.iter().map(shown).collect::<Vec<_>>(), more), (vec![row("f2")], false));
    assert_eq!(redis.store.tidy(&partition()).await, Ok(0), "nothing to repair");
    let stats = redis.store.stats(&partition()).await.unwrap();
    assert_eq!((stats.parked, stats.waiting_flows, stats.due), (9, 3, 0));
    // Without flows the messages return to their due times.
    let without = redis.store.serving([route()]);
    assert!(redis.store.has_flows("r") && !without.has_flows("r") && !redis.store.has_flows("x"));
    assert_eq!((without.unpark(&partition()).await, without.unpark(&partition()).await), (Ok(9), Ok(0)));
    assert_eq!(without.tidy(&partition()).await, Ok(0));
    assert_eq!(without.stats(&partition()).await.unwrap().due, 9);
}

#[tokio::test(start_paused = true)]
async fn a_route_makes_the_flow_of_a_message_that_has_none() {
    let limits = FlowLimits { rate: None, burst: 1, parallel: Some(1), ordered: false };
    let flow = Some(RouteFlow { key: Some(FlowTemplate::parse("{key}").unwrap()), limits });
    let settings = RouteSettings { flow, ..route() };
    let of = |flow: Option<&str>, key: Option<&str>| {
        let metadata = Metadata { flow: flow.map(str::to_owned), key: key.map(str::to_owned), ..Metadata::default() };
        settings.with_flow(&metadata).flow.clone()
    };
    assert_eq!(of(None, Some("k")).as_deref(), Some("k"));
    assert_eq!(of(Some(""), Some("k")).as_deref(), Some("k"));
    assert_eq!(of(Some("own"), Some("k")).as_deref(), Some("own"));
    assert_eq!((of(None, None), of(None, Some(""))), (None, None));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_cannot_be_moved_says_why() {
    let limits = RouteLimits { delay: Some(Duration::from_mins(1)), ..RouteLimits::default() };
    let ordered = flows(FlowLimits { rate: None, burst: 1, parallel: Some(1), ordered: true });
    let redis = Simulated::start([RouteSettings { limits, ..ordered }]).await;
    let expires = NewMessage {
        metadata: Metadata { expires_at: Some(EPOCH + 20_000), flow: Some("e".into()), ..Metadata::default() },
        due: Due::After(10_000),
        ..message("expires")
    };
    let later = |name: &str, millis| NewMessage { due: Due::After(millis), ..in_flow(name, "f") };
    redis.store.schedule(&partition(), &[later("first", 0), later("second", 0), expires]).await.unwrap();
    let moved =
        async |name: &str, due, only| redis.store.reschedule_if(&partition(), &id(name), due, only).await.unwrap();
    assert_eq!(moved("second", NewDue::Now, None).await, Rescheduled::Held(id("first")));
    assert_eq!(moved("first", NewDue::At(Due::After(60_001)), None).await, Rescheduled::Over(Limit::Delay));
    assert!(matches!(moved("first", NewDue::At(Due::After(60_000)), None).await, Rescheduled::Done(_)));
    assert_eq!(moved("expires", NewDue::By(15_000), None).await, Rescheduled::Expires(at(20_000)));
    assert_eq!(moved("first", NewDue::By(1), Some(("", at(0)))).await, Rescheduled::Later);
    assert_eq!(moved("first", NewDue::By(1), Some(("group", at(9999)))).await, Rescheduled::NotFound);
    redis.bury([message("dead")]).await;
    assert_eq!(moved("dead", NewDue::Now, None).await, Rescheduled::Dead);
    let over = redis.store.schedule(&partition(), &[later("over", 60_001)]).await.unwrap();
    assert_eq!(over[0].status, ScheduleStatus::Over(Limit::Delay));
}

#[tokio::test(start_paused = true)]
async fn a_batch_with_large_live_messages_is_sent_in_halves() {
    let redis = Simulated::start([RouteSettings::plain("r", MAX_CALL_BYTES)]).await;
    // Not compressible.
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()[0]
    };
    let payload: bytes::Bytes = (0..MAX_CALL_BYTES / 3).map(|_| next()).collect::<Vec<_>>().into();
    let large = |n: usize| NewMessage { payload: payload.clone(), ..message(&n.to_string()) };
    for n in 0..4 {
        redis.store.schedule(&partition(), &[large(n)]).await.unwrap();
    }
    let small: Vec<_> =
        (0..4).map(|n| NewMessage { on_conflict: OnConflict::Replace, ..message(&n.to_string()) }).collect();
    let calls = redis.calls();
    let answers = redis.store.schedule(&partition(), &small).await.unwrap();
    assert!(answers.iter().all(|one| one.status == ScheduleStatus::Replaced), "{answers:?}");
    assert_eq!(answers.iter().map(|one| one.id.clone()).collect::<Vec<_>>(), ["0", "1", "2", "3"].map(id));
    // The whole, which is refused, and its halves.
    assert_eq!(redis.calls() - calls, 3);
}

#[tokio::test(start_paused = true)]
async fn leases_that_end_too_late_are_found_and_cut() {
    let redis = Simulated::start([route()]).await;
    redis.schedule(&["a", "b"]).await;
    redis.claim(1).await;
    let deadline = redis.server.now() + 10_000_000;
    let cut =
        async |longest, from| redis.store.cut_leases(&partition(), Duration::from_secs(longest), from).await.unwrap();
    assert_eq!(cut(10, None).await, CutLeases { cut: 0, beyond: None });
    redis.server.step_clock(-60_000_000);
    let found = cut(10, None).await;
    assert!(found.cut == 0 && found.beyond.is_some_and(|beyond| beyond < deadline), "{found:?}");
    assert_eq!(cut(10, found.beyond).await.cut, 2);
    assert_eq!(redis.store.recover(&partition()).await.unwrap().expired, 2);
}

#[tokio::test(start_paused = true)]
async fn bodies_without_a_place_are_restored() {
    let redis = Simulated::start([route()]).await;
    redis.schedule(&["a", "b", "c"]).await;
    redis.execute(&["ZREM", "{p:r:0/1}:pending", "a", "b"]);
    let (mut restored, mut cursor, mut rounds) = (0, String::new(), 0);
    loop {
        let (some, next, has_flows) = redis.store.restore(&partition(), &cursor).await.unwrap();
        assert!(!has_flows);
        (restored, cursor, rounds) = (restored + some, next, rounds + 1);
        if cursor.is_empty() || rounds > 100 {
            break;
        }
    }
    assert_eq!((restored, redis.claim(1).await.len()), (2, 3));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_waits_for_its_retry_holds_its_ordered_flow() {
    let redis = Simulated::start([flows(FlowLimits { rate: None, burst: 1, parallel: None, ordered: true })]).await;
    redis.store.schedule(&partition(), &[in_flow("first", "f"), in_flow("second", "f")]).await.unwrap();
    let claimed = redis.claim(1).await;
    assert_eq!(claimed.len(), 1, "in order");
    let retry = ClaimEnd::Retry { delay: Duration::from_mins(1), error: "e".into(), hold: None };
    assert_eq!(redis.settle(&claimed[0].1, retry).await, Settled::Done);
    assert_eq!(redis.store.flow(&partition(), "f").await.unwrap().held_by, Some(id("first")));
}

#[tokio::test(start_paused = true)]
async fn a_later_message_of_a_flow_without_order_can_be_sent_first() {
    let redis = Simulated::start([flows(FlowLimits { rate: None, burst: 1, parallel: Some(1), ordered: false })]).await;
    redis.store.schedule(&partition(), &[in_flow("first", "f"), in_flow("second", "f")]).await.unwrap();
    let moved = redis.store.reschedule(&partition(), &id("second"), None).await.unwrap();
    assert!(matches!(moved, Rescheduled::Done(_)), "{moved:?}");
}

impl Simulated {
    /// The first `limit` messages of a state that match.
    async fn listed(&self, state: State, filter: &Filter, limit: usize) -> ListedPart {
        let page = PageRequest { state, filter, order: Order::Ascending, limit, max_bytes: u64::MAX, after: None };
        self.store.list(&partition(), &page).await.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_filtered_page_is_filled_from_many_messages() {
    let redis = Simulated::start([route()]).await;
    let batch = (0..40).map(|n| {
        let (key, error) = if n % 4 == 0 { ("k", "rare") } else { ("other", "usual") };
        (keyed(&format!("{n:02}"), key), error.to_owned())
    });
    redis.store.bury(&partition(), Death::INVALID, &batch.collect::<Vec<_>>()).await.unwrap();
    let none = Filter::default();
    for (filter, scanned) in [
        (Filter { key: Some("k".into()), ..none.clone() }, 40),
        (Filter { contains: Some("rare".into()), ..none.clone() }, 20),
        (none, 5),
    ] {
        let part = redis.listed(State::Dead, &filter, 5).await;
        assert_eq!((part.listed.len(), part.scanned), (5, scanned), "{filter:?}");
        assert!(part.reached.is_some(), "more follow: {filter:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_shows_its_due_time_in_every_state() {
    let redis = Simulated::start([flows(FlowLimits { rate: None, burst: 1, parallel: Some(1), ordered: false })]).await;
    let later = NewMessage { due: Due::At(at(9_000_000)), ..message("later") };
    let [first, second] = ["first", "second"].map(|name| NewMessage { due: Due::At(at(5)), ..in_flow(name, "f") });
    redis.store.schedule(&partition(), &[later, first, second]).await.unwrap();
    advance(Duration::from_secs(1)).await;
    let claimed = redis.claim(1).await;
    assert_eq!(claimed.len(), 1, "the other one is parked");
    let shown = async |state| {
        let part = redis.listed(state, &Filter::default(), 10).await;
        let shown = |one: Listed| (one.snapshot.id.to_string(), one.snapshot.deliver_at, one.snapshot.parked);
        part.listed.into_iter().map(shown).collect::<Vec<_>>()
    };
    let row = |name: &str, millis, parked| (name.to_owned(), at(millis), parked);
    assert_eq!(shown(State::Pending).await, [row("later", 9_000_000, false), row("second", 5, true)]);
    assert_eq!(shown(State::Unack).await, [row("first", 5, false)]);
    let bury = ClaimEnd::Bury { reason: DeadReason::Rejected, error: "e".into() };
    assert_eq!(redis.settle(&claimed[0].1, bury).await, Settled::Done);
    assert_eq!(shown(State::Dead).await, [row("first", 5, false)]);
}
