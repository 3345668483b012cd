//! Groups that are listed, cancelled and moved.

use parking_lot::Mutex;
use tokio::time::sleep;

use super::*;
use crate::{
    message::{FlowLimits, codec},
    store::{NewDue, Rescheduled, RouteFlow, redis::MAX_BATCH},
};

fn grouped(name: &str, group: &str) -> NewMessage {
    NewMessage { metadata: Metadata { group: Some(group.to_owned()), ..Metadata::default() }, ..message(name) }
}

fn members(count: usize) -> impl Iterator<Item = NewMessage> {
    (0..count).map(|n| grouped(&format!("m{n}"), "g"))
}

fn to(millis: u64) -> GroupAction {
    GroupAction::Move(NewDue::At(Due::At(at(millis))))
}

impl Bench {
    async fn page(&self, limit: usize, max_bytes: u64, cursor: Option<&str>) -> Page {
        self.queue.group("r", "g", limit, max_bytes, cursor).await.unwrap()
    }

    async fn change_group(&self, action: GroupAction, cursor: Option<&str>) -> GroupWork {
        let mut work = GroupWork::default();
        self.queue.change_group("r", "g", action, cursor, later(), &mut work).await.unwrap();
        work
    }
}

#[tokio::test(start_paused = true)]
async fn the_pages_of_a_group_have_each_message_once() {
    let bench = Bench::plain().await;
    bench.schedule(members(30).chain([grouped("other", "h"), message("none")])).await;
    bench.bury([grouped("dead", "g")]).await;
    for limit in [1, 4, 10, 30, 31, 1000] {
        let (mut ids, mut pages, mut cursor) = (Vec::new(), 0, None);
        loop {
            let page = bench.page(limit, u64::MAX, cursor.as_deref()).await;
            assert!(page.messages.len() <= limit && page.scanned == page.messages.len() as u64, "{limit}");
            ids.extend(page.messages.into_iter().map(|one| one.id));
            (cursor, pages) = (page.cursor, pages + 1);
            if cursor.is_none() {
                break;
            }
            assert!(pages < 100, "{limit}");
        }
        assert_eq!(ids.len(), 31, "{limit}");
        let in_order = |id: &MessageId| (id.partition(PARTITIONS), id.clone());
        assert!(ids.is_sorted_by_key(in_order), "{ids:?}");
        assert!(pages <= 31 / limit + 2, "{pages} pages of {limit}");
    }
    let wrong = bench.queue.group("r", "g", 1, 1, Some("x")).await;
    assert!(matches!(wrong, Err(QueueError::Invalid(_))));
}

#[tokio::test(start_paused = true)]
async fn a_page_ends_at_its_bytes_too() {
    let bench = Bench::plain().await;
    let large = |mut message: NewMessage| {
        message.payload = (0..100).map(|n: u8| n.wrapping_mul(7)).collect::<Vec<u8>>().into();
        message
    };
    bench.schedule(members(30).map(large)).await;
    let one = bench.page(1, u64::MAX, None).await.messages.remove(0);
    let size = codec::encode(&one.message.unwrap()).len() as u64 + 1;
    let counts = async |max_bytes| {
        let (mut counts, mut cursor) = (Vec::new(), None);
        loop {
            let page = bench.page(1000, max_bytes, cursor.as_deref()).await;
            counts.push(page.messages.len());
            cursor = page.cursor;
            if cursor.is_none() {
                return counts;
            }
        }
    };
    assert_eq!(counts(30 * size).await, [30]);
    let tens = counts(10 * size).await;
    assert!(tens.iter().sum::<usize>() == 30 && tens.iter().all(|count| *count <= 10) && tens.len() <= 5, "{tens:?}");
    assert_eq!(counts(1).await.into_iter().filter(|count| *count > 0).collect::<Vec<_>>(), [1; 30]);
}

#[tokio::test(start_paused = true)]
async fn a_large_group_is_cancelled_in_several_calls() {
    let bench = Bench::plain().await;
    bench.schedule(members(MAX_BATCH + 30).chain([grouped("other", "h")])).await;
    bench.schedule([NewMessage { due: Due::NOW, ..grouped("flies", "g") }]).await;
    assert_eq!(bench.claim().await.len(), 1);
    let work = bench.change_group(GroupAction::Cancel, None).await;
    assert!(work.count + work.in_flight.len() as u64 == MAX_BATCH as u64 && work.cursor.is_some(), "{work:?}");
    let rest = bench.change_group(GroupAction::Cancel, work.cursor.as_deref()).await;
    assert_eq!((work.count + rest.count, rest.cursor), (MAX_BATCH as u64 + 30, None));
    assert_eq!([work.in_flight, rest.in_flight].concat(), [id("flies")]);
    assert_eq!((bench.ids(State::Pending).await, bench.count("cancelled")), (vec!["other".to_owned()], 1030));
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_at_its_deadline() {
    let bench = Bench::plain().await;
    bench.schedule(members(10)).await;
    for action in [GroupAction::Cancel, to(2 * HOUR)] {
        let mut work = GroupWork::default();
        bench.queue.change_group("r", "g", action, None, Instant::now(), &mut work).await.unwrap();
        assert!(work.count == 0 && work.cursor.is_some(), "{work:?}");
    }
    assert_eq!(bench.change_group(GroupAction::Cancel, None).await.count, 10);
}

#[tokio::test(start_paused = true)]
async fn a_group_is_moved_once_whatever_is_moved_or_accepted_later() {
    let bench = Bench::plain().await;
    bench.schedule(members(MAX_BATCH + 30)).await;
    bench.bury([grouped("dead", "g")]).await;
    let (by, before) = (GroupAction::Move(NewDue::By(60_000)), Some(at(bench.now() + 1)));
    let first = bench.change_group(by, None).await;
    assert_eq!((first.count, first.before, first.cursor.is_some()), (MAX_BATCH as u64, before, true));
    sleep(Duration::from_secs(1)).await;
    bench.schedule([grouped("late", "g")]).await;
    let rest = bench.change_group(by, first.cursor.as_deref()).await;
    assert_eq!((rest.count, rest.before, rest.cursor), (30, before, None));
    assert_eq!(
        [bench.due("m0").await, bench.due("m1029").await, bench.due("late").await],
        [HOUR + 60_000, HOUR + 60_000, HOUR]
    );
    // A repeated call with the time of the first one moves none.
    let mut again = GroupWork { before: first.before, ..GroupWork::default() };
    bench.queue.change_group("r", "g", by, None, later(), &mut again).await.unwrap();
    assert_eq!((again.count, again.refused.len()), (0, 0));
    // Each message that a call has named counts.
    let mut full = GroupWork { in_flight: ids("x", MAX_BATCH), ..GroupWork::default() };
    bench.queue.change_group("r", "g", by, None, later(), &mut full).await.unwrap();
    assert_eq!((full.count, full.cursor.is_some()), (0, true));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_moved_is_named() {
    let bench = Bench::plain().await;
    let mut expires = grouped("expires", "g");
    expires.metadata.expires_at = Some(EPOCH + 2 * HOUR);
    let flies = NewMessage { due: Due::NOW, ..grouped("flies", "g") };
    bench.schedule(members(5).chain([expires, flies])).await;
    assert_eq!(bench.claim().await.len(), 1);
    let work = bench.change_group(to(3 * HOUR), None).await;
    assert_eq!((work.count, &work.in_flight[..], work.cursor), (5, &[id("flies")][..], None));
    assert_eq!(work.refused, [(id("expires"), Rescheduled::Expires(at(2 * HOUR)))]);
    let too_long = GroupAction::Move(NewDue::At(Due::After(u64::MAX)));
    let refused = bench.queue.change_group("r", "g", too_long, None, later(), &mut GroupWork::default()).await;
    assert!(matches!(refused, Err(QueueError::Store(StoreError::Refused { .. }))), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_repeated_shift_moves_no_message_twice_although_the_clock_of_the_caller_is_ahead() {
    let bench = Bench::plain().await;
    bench.schedule(members(9)).await;
    let began = bench.now();
    let by = GroupAction::Move(NewDue::By(60_000));
    let shift = async |ahead| {
        let mut work = GroupWork { before: Some(at(began + ahead)), ..GroupWork::default() };
        bench.queue.change_group("r", "g", by, None, later(), &mut work).await.map(|()| work.count)
    };
    let text = "refused: invalid-before: `before` is 1.001s later than the clock of Redis, at most 1s";
    assert_eq!(shift(1001).await.unwrap_err().to_string(), text);
    assert_eq!(shift(1000).await, Ok(9));
    assert_eq!((bench.now(), shift(1000).await), (began, Ok(0)));
    assert_eq!(bench.due("m3").await, HOUR + 60_000);
}

#[tokio::test(start_paused = true)]
async fn the_messages_that_a_call_has_changed_and_those_that_it_names_are_at_most_a_thousand() {
    let bench = Bench::plain().await;
    bench.schedule(members(30)).await;
    let refused = ids("y", 400).into_iter().map(|id| (id, Rescheduled::Later)).collect();
    let mut work = GroupWork { count: 300, in_flight: ids("x", 290), refused, ..GroupWork::default() };
    bench.queue.change_group("r", "g", GroupAction::Cancel, None, later(), &mut work).await.unwrap();
    assert_eq!((work.count, work.cursor.is_some()), (310, true));
}

#[tokio::test(start_paused = true)]
async fn messages_that_wait_for_their_flow_are_moved_in_order_of_their_due_times() {
    let limits = FlowLimits { rate: None, burst: 1, parallel: Some(1), ordered: true };
    let flow = Some(RouteFlow { key: None, limits });
    let bench = Bench::start([RouteSettings { flow, ..RouteSettings::plain("r", 100) }]).await;
    let in_flow = |name: &str, millis| {
        let metadata = Metadata { flow: Some("f".to_owned()), ..grouped(name, "g").metadata };
        NewMessage { metadata, ..due(name, millis) }
    };
    bench.schedule([in_flow("first", 0), in_flow("z", 1), in_flow("y", 2), in_flow("x", 3), in_flow("a", HOUR)]).await;
    bench.until(100).await;
    assert_eq!(bench.claim().await.len(), 1);
    let moved = Arc::new(Mutex::new(Vec::new()));
    let named = moved.clone();
    bench.redis.server.reply_with(move |command| {
        named.lock().extend(command.iter().filter(|word| ["a", "x", "y", "z"].contains(&word.as_str())).cloned());
        None
    });
    let work = bench.change_group(to(2 * HOUR), None).await;
    assert_eq!((work.count, &work.in_flight[..], work.refused), (4, &[id("first")][..], vec![]));
    assert_eq!(*moved.lock(), ["z", "y", "x", "a"]);
}
