//! Messages that are scheduled, found, moved and cancelled one by one, and the routes that hold them.

use jiff::tz::TimeZone;

use super::*;
use crate::{
    calendar::{Calendar, Window},
    message::Cancellation,
    store::{
        Cancelled, Rescheduled,
        redis::{ExternalEntry, ExternalPlace},
    },
    time::MAX_DELAY_MILLIS,
};

fn refused<T>(slug: &str, text: &str) -> Result<T, QueueError> {
    Err(StoreError::Refused { slug: slug.into(), text: text.to_owned() }.into())
}

#[tokio::test(start_paused = true)]
async fn the_answers_are_in_the_order_of_the_messages() {
    let bench = Bench::plain().await;
    bench.schedule([message("m3")]).await;
    bench.bury([message("m5")]).await;
    let revived = NewMessage { on_conflict: OnConflict::Replace, ..message("m5") };
    let mut all: Vec<_> = messages("m", 9).collect();
    all[5] = revived;
    let answers = bench.queue.schedule("r", "api", all).await.unwrap();
    assert_eq!(answers.iter().map(|one| one.id.clone()).collect::<Vec<_>>(), ids("m", 9));
    let status = |n: usize| answers[n].status;
    assert_eq!(
        [status(2), status(3), status(5)],
        [ScheduleStatus::Scheduled, ScheduleStatus::Exists(State::Pending), ScheduleStatus::Revived]
    );
    assert_eq!([answers[2].due, answers[3].due], [at(HOUR + 2), at(HOUR)]);
    // The one that is there already is not counted.
    assert_eq!(bench.count("scheduled"), 9);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_scheduled_if_one_message_is_wrong() {
    let bench = Bench::plain().await;
    let sized = |size: usize| NewMessage { payload: vec![0; size].into(), ..message("sized") };
    let too_large = bench.queue.schedule("r", "api", vec![message("a"), sized(101)]).await;
    assert_eq!(too_large, refused("too-large", "the payload of `sized` takes 101 bytes, at most 100"));
    let after = |millis| NewMessage { due: Due::After(millis), ..message("late") };
    let too_long = bench.queue.schedule("r", "api", vec![message("a"), after(MAX_DELAY_MILLIS + 1)]).await;
    assert!(matches!(too_long, Err(QueueError::Store(StoreError::Refused { .. }))), "{too_long:?}");
    assert!(bench.ids(State::Pending).await.is_empty());
    bench.schedule([sized(100), after(MAX_DELAY_MILLIS)]).await;
    let unknown = bench.queue.schedule("x", "api", vec![message("a")]).await;
    assert_eq!(unknown, Err(QueueError::UnknownRoute("x".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn one_message_is_found_moved_and_cancelled_in_its_partition() {
    let bench = Bench::plain().await;
    bench.schedule(messages("m", 12)).await;
    for (n, name) in ids("m", 12).iter().enumerate() {
        let to = Due::At(at(2 * HOUR + n as u64));
        assert_eq!(bench.queue.reschedule("r", name, Some(to)).await, Ok(Rescheduled::Done(at(2 * HOUR + n as u64))));
        assert_eq!(bench.due(name.as_str()).await, 2 * HOUR + n as u64);
    }
    assert_eq!(bench.queue.reschedule("r", &id("m1"), None).await, Ok(Rescheduled::Done(at(bench.now()))));
    let too_long = bench.queue.reschedule("r", &id("m1"), Some(Due::After(MAX_DELAY_MILLIS + 1))).await;
    assert!(matches!(too_long, Err(QueueError::Store(StoreError::Refused { .. }))), "{too_long:?}");
    bench.bury([message("dead"), message("kept")]).await;
    assert_eq!(bench.claim().await.len(), 1);
    let cancel = async |name: &str, keep_dead| {
        let cancellation = Cancellation { keep_dead, ..Cancellation::from(id(name)) };
        bench.queue.cancel("r", &cancellation).await.unwrap()
    };
    assert_eq!(cancel("m7", false).await, Cancelled::Cancelled);
    assert_eq!(cancel("m7", false).await, Cancelled::NotFound);
    assert_eq!(cancel("m1", false).await, Cancelled::InFlight);
    assert_eq!((cancel("dead", false).await, cancel("kept", true).await), (Cancelled::Purged, Cancelled::Dead));
    assert_eq!((bench.count("cancelled"), bench.count("purged")), (1, 1));
    assert!(bench.queue.get("r", &id("m7")).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_listing_merges_all_partitions_in_both_orders() {
    let bench = Bench::plain().await;
    bench.schedule(messages("m", 50)).await;
    let filter = Filter::default();
    for (order, limit) in
        [(Order::Ascending, 1), (Order::Descending, 7), (Order::Ascending, 50), (Order::Descending, 51)]
    {
        let page =
            PageRequest { state: State::Pending, filter: &filter, order, limit, max_bytes: u64::MAX, after: None };
        let (mut found, mut pages, mut cursor) = (Vec::new(), 0, None);
        loop {
            let page = bench.queue.list("r", &page, cursor.as_deref()).await.unwrap();
            assert!(page.messages.len() <= limit && page.scanned >= page.messages.len() as u64);
            found.extend(page.messages.into_iter().map(|one| one.id));
            (cursor, pages) = (page.cursor, pages + 1);
            if cursor.is_none() {
                break;
            }
        }
        let mut expected = ids("m", 50);
        if order == Order::Descending {
            expected.reverse();
        }
        assert_eq!((found, pages), (expected, 50_usize.div_ceil(limit)), "{order:?} {limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_bytes_of_a_page_are_those_of_all_partitions() {
    let bench = Bench::start([RouteSettings { partitions: PARTITIONS, ..RouteSettings::plain("r", 2000) }]).await;
    let large = |n: usize| {
        let payload: Vec<u8> = (0..1000).map(|byte| u8::try_from((n * 31 + byte * byte * 7) % 251).unwrap()).collect();
        NewMessage { payload: payload.into(), ..due(&n.to_string(), HOUR + n as u64) }
    };
    bench.schedule((0..40).map(large)).await;
    let filter = Filter::default();
    let (mut sizes, mut cursor) = (Vec::new(), None);
    loop {
        let page = PageRequest {
            state: State::Pending,
            filter: &filter,
            order: Order::Ascending,
            limit: 1000,
            max_bytes: 12_000,
            after: None,
        };
        let page = bench.queue.list("r", &page, cursor.as_deref()).await.unwrap();
        sizes.push(page.messages.len());
        // Each partition reads its share: two messages.
        assert!(page.scanned <= 2 * u64::from(PARTITIONS), "{}", page.scanned);
        cursor = page.cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert!(sizes.iter().all(|size| *size > 0) && sizes.iter().sum::<usize>() == 40, "{sizes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_part_of_a_listing_grows_with_the_partitions() {
    let routes = [1, 9, 10, 100, 256]
        .map(|partitions| RouteSettings { partitions, ..RouteSettings::plain(&format!("p{partitions}"), 100) });
    let bench = Bench::start(routes).await;
    let bytes = ["p1", "p9", "p10", "p100", "p256", "unknown"].map(|route| bench.queue.part_bytes(route) / 1024);
    assert_eq!(bytes, [256, 256, 280, 2800, 7168, 256]);
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_for_each_partition_until_its_end() {
    let bench = Bench::plain().await;
    bench.schedule((0..20).map(|n| due(&format!("m{n}"), 0))).await;
    assert_eq!(bench.queue.resume("r").await, Ok(false));
    assert_eq!(bench.queue.pause("r", "ops", "a note").await, Ok(true));
    assert_eq!(bench.queue.pause("r", "ops", "a note").await, Ok(false));
    let stats = bench.queue.stats("r").await.unwrap();
    let pause =
        RoutePause { paused_at: at(bench.now()), paused_by: Some("ops".to_owned()), note: Some("a note".to_owned()) };
    assert_eq!((stats.paused, stats.pause), (true, Some(pause)));
    assert!(bench.claim().await.is_empty());
    assert_eq!(bench.queue.resume("r").await, Ok(true));
    assert_eq!(bench.claim().await.len(), 20);
    // One partition is enough, because others may have been out of reach.
    let [first, ..] = &bench.partitions()[..] else { panic!("there are some") };
    bench.redis.store.pause(first, "", "").await.unwrap();
    assert_eq!(bench.queue.pause("r", "", "").await, Ok(true));
}

#[tokio::test(start_paused = true)]
async fn a_route_is_shown_with_its_settings() {
    let bench = Bench::start([route(), RouteSettings::plain("other", 7)]).await;
    let queue = &bench.queue;
    assert_eq!(queue.routes().iter().map(|name| &**name).collect::<Vec<_>>(), ["other", "r"]);
    assert_eq!(["r", "other", "x"].map(|name| queue.has_route(name)), [true, true, false]);
    assert_eq!(["r", "other", "x"].map(|name| queue.max_payload(name)), [100, 7, 0]);
    assert_eq!(
        ["r", "other", "x"].map(|name| queue.sink(name).as_deref().map(str::to_owned)),
        [Some("s".to_owned()), None, None]
    );
    assert_eq!(queue.window("r", at(0)), None);

    let window = Window { days: [true; 7], from: 60, to: 120, zone: TimeZone::UTC };
    let calendar = Calendar::new(vec![window]).unwrap().into();
    let shown = ShownRoute { window: Some(calendar), ..ShownRoute::default() };
    let shown = BTreeMap::from([("r".into(), shown)]);
    let queue = Queue::showing(bench.redis.store.clone(), &shown, false);
    // The test begins on a day at 22:13:20.
    let midnight = (24 * 60 - 22 * 60 - 14) * 60_000 + 40_000;
    let window = RouteWindow { open: true, since: Some(at(midnight + HOUR)), until: Some(at(midnight + 2 * HOUR)) };
    assert_eq!(queue.window("r", at(midnight + HOUR)), Some(window));
    let next = queue.window("r", at(midnight + 2 * HOUR)).unwrap();
    assert_eq!((next.open, next.since), (false, Some(at(midnight + 2 * HOUR))));
    assert_eq!(queue.window("other", at(0)), None);

    // Only a route that changed gets other tables.
    let former = ["r", "other"].map(|name| queue.route(name).unwrap());
    queue.replace(bench.redis.store.clone(), &BTreeMap::new(), |name| name == "r");
    let same = ["r", "other"].map(|name| queue.route(name).unwrap());
    assert_eq!([0, 1].map(|n| Arc::ptr_eq(&former[n], &same[n])), [false, true]);
    assert_eq!(queue.window("r", at(0)), None);
}

#[tokio::test(start_paused = true)]
async fn calls_reach_the_former_partitions_while_messages_move() {
    let bench = Bench::plain().await;
    bench.schedule(messages("m", 40).chain([due("now", 0)])).await;
    bench.bury([message("dead")]).await;
    let claimed = bench.claim().await;
    assert_eq!(bench.queue.choose_partitions("r", PARTITIONS).await, Ok(false));
    assert_eq!(bench.queue.choose_partitions("r", 2).await, Ok(true));
    assert_eq!(bench.queue.choose_partitions("x", 2).await, Err(QueueError::UnknownRoute("x".to_owned())));
    let moving = bench.redis.serving([RouteSettings { partitions: 2, ..route() }]).await;
    let new = Queue::new(moving.clone(), &BTreeMap::new(), false);
    let stats = new.stats("r").await.unwrap();
    let expected = Moving { from: PARTITIONS, to: 2, left: 42 };
    assert_eq!((stats.moving, stats.pending, stats.dead, stats.partitions), (Some(expected), 40, 1, 2));
    assert_eq!((stats.unack, bench.end(claimed, ClaimEnd::Ack).await), (1, 1));
    assert_eq!(new.all_partitions("r").unwrap().len(), usize::from(PARTITIONS) + 2);
    assert_eq!(new.pause("r", "", "").await, Ok(true));
    assert!(bench.claim().await.is_empty(), "the former ones are paused too");
    assert_eq!(new.resume("r").await, Ok(true));
    assert!(matches!(new.get("r", &id("m7")).await.unwrap(), Some(Found::Live { .. })));
    while !moving.move_some("r").await.unwrap().is_done {}
    let stats = new.stats("r").await.unwrap();
    assert_eq!((stats.moving, stats.pending, stats.dead), (None, 40, 1));
    // The former queue does not answer for all messages of the route.
    let all = Filter::default();
    let purge = crate::store::Selection::Where(all);
    let work = crate::store::DeadWork {
        action: crate::store::DeadAction::Purge,
        spread: crate::store::Spread::default(),
        selection: &purge,
        limit: 1,
        dry_run: true,
        deadline: later(),
    };
    let answer = bench.queue.act_on_dead("r", &work, None, &mut Bulk::default()).await;
    assert!(matches!(answer, Err(QueueError::Store(StoreError::Unavailable { .. }))), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn messages_of_another_program_are_counted_as_scheduled_or_dead() {
    let bench = Bench::plain().await;
    let place = ExternalPlace::Members { key: "k".into(), unit: 1 };
    for member in ["a", "b", "c", &"x".repeat(101)] {
        bench.redis.execute(&["ZADD", "k", "0", member]);
    }
    let members = bench.queue.external_due(&place).await.unwrap().members;
    let entry = |(n, member)| ExternalEntry { member, id: id(&format!("m{n}")), metadata: Metadata::default() };
    let entries: Vec<_> = members.into_iter().enumerate().map(entry).collect();
    assert_eq!(bench.queue.take("r", "in", &place, &entries).await.unwrap().len(), 4);
    assert_eq!([bench.count("scheduled"), bench.count("dead")], [3, 1]);
}
