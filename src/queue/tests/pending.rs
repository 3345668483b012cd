//! Pending messages that are cancelled or moved in bulk.

use super::*;
use crate::{
    queue::pending::Refused,
    store::{NewDue, PendingAction, PendingWork, Rescheduled, Selection, redis::MAX_BATCH},
    time::MAX_DELAY_MILLIS,
};

fn named(ids: impl IntoIterator<Item = MessageId>) -> Selection {
    Selection::Ids { ids: ids.into_iter().collect(), until: None }
}

fn work(action: PendingAction, selection: &Selection) -> PendingWork<'_> {
    PendingWork { action, selection, before: None, limit: 1000, dry_run: false, deadline: later(), by: None }
}

/// To two hours after the beginning.
const LATER: PendingAction = PendingAction::Move(NewDue::By(3_600_000));

impl Bench {
    async fn change(&self, work: &PendingWork<'_>, cursor: Option<&str>) -> (Bulk, Refused) {
        let (mut bulk, mut refused) = (Bulk::default(), Vec::new());
        self.queue.change_pending("r", work, cursor, &mut bulk, &mut refused).await.unwrap();
        (bulk, refused)
    }

    /// Calls until none remain. Returns the numbers of changed messages.
    async fn change_all(&self, work: PendingWork<'_>) -> Vec<u64> {
        let (mut counts, mut cursor, mut before) = (Vec::new(), None, None);
        loop {
            let (bulk, refused) = self.change(&PendingWork { before, ..work }, cursor.as_deref()).await;
            assert!(refused.is_empty(), "{refused:?}");
            counts.push(bulk.count);
            (cursor, before) = (bulk.cursor, bulk.before);
            assert_eq!(cursor.is_some(), bulk.more);
            if !bulk.more {
                return counts;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_messages_are_cancelled_up_to_the_limit() {
    let bench = Bench::plain().await;
    bench.schedule(messages("m", 20).chain([due("now", 0)])).await;
    assert_eq!(bench.claim().await.len(), 1);
    let all = Selection::Where(Filter::default());
    let work = PendingWork { limit: 7, ..work(PendingAction::Cancel, &all) };
    let (counted, _) = bench.change(&PendingWork { dry_run: true, ..work }, None).await;
    assert_eq!((counted.count, counted.more, bench.count("cancelled")), (7, true, 0));
    let (counted, _) = bench.change(&PendingWork { dry_run: true, limit: 20, ..work }, None).await;
    assert_eq!((counted.count, counted.more), (20, false));
    let (cancelled, _) = bench.change(&work, None).await;
    assert_eq!((cancelled.count, cancelled.more, cancelled.cursor, bench.count("cancelled")), (7, true, None, 7));
    let (late, _) = bench.change(&PendingWork { deadline: Instant::now(), ..work }, None).await;
    assert_eq!((late.count, late.more), (0, true));
    let (cancelled, _) = bench.change(&PendingWork { limit: 13, ..work }, None).await;
    assert_eq!((cancelled.count, cancelled.more, bench.count("cancelled")), (13, false, 20));
    assert_eq!((bench.ids(State::Pending).await.len(), bench.ids(State::Unack).await.len()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_call_cancels_more_than_one_script_can() {
    let bench = Bench::start([RouteSettings::plain("r", 100)]).await;
    bench.schedule(messages("m", 2 * MAX_BATCH + 5)).await;
    let ids = named(ids("m", 2 * MAX_BATCH + 2).into_iter().chain([id("unknown")]));
    let all = PendingWork { limit: 9999, ..work(PendingAction::Cancel, &ids) };
    let (cancelled, refused) = bench.change(&PendingWork { limit: 3, ..all }, None).await;
    assert_eq!((cancelled.count, cancelled.more, refused.len()), (3, true, 0));
    let (cancelled, _) = bench.change(&all, None).await;
    assert_eq!((cancelled.count, cancelled.more), (2 * MAX_BATCH as u64 - 1, false));
    assert_eq!(bench.ids(State::Pending).await, ["m2002", "m2003", "m2004"]);
    let rest = Selection::Where(Filter::default());
    bench.schedule(messages("n", MAX_BATCH)).await;
    let (cancelled, _) = bench.change(&PendingWork { limit: 9999, ..work(PendingAction::Cancel, &rest) }, None).await;
    assert_eq!((cancelled.count, cancelled.more), (MAX_BATCH as u64 + 3, false));
}

#[tokio::test(start_paused = true)]
async fn messages_that_were_accepted_later_are_not_cancelled() {
    let bench = Bench::plain().await;
    bench.schedule([message("a")]).await;
    bench.until(1000).await;
    bench.schedule([message("b")]).await;
    let accepted = bench.now();
    for selection in [named(ids("", 0).into_iter().chain([id("a"), id("b")])), Selection::Where(Filter::default())] {
        let both = PendingWork { before: Some(at(accepted)), dry_run: true, ..work(PendingAction::Cancel, &selection) };
        assert_eq!(bench.change(&both, None).await.0.count, 1);
        let both = PendingWork { before: Some(at(accepted + 1)), ..both };
        assert_eq!(bench.change(&both, None).await.0.count, 2);
    }
    let selection = Selection::Where(Filter::default());
    let both = PendingWork { before: Some(at(accepted)), ..work(PendingAction::Cancel, &selection) };
    assert_eq!(bench.change(&both, None).await.0.count, 1);
    assert_eq!(bench.ids(State::Pending).await, ["b"]);
}

#[tokio::test(start_paused = true)]
async fn a_filter_cancels_what_matches_and_continues_where_it_ended() {
    let bench = Bench::plain().await;
    let some = |n: usize| keyed(&format!("m{n}"), if n.is_multiple_of(2) { "k" } else { "other" });
    bench.schedule((0..60).map(some)).await;
    let selection = Selection::Where(key("k"));
    let work = PendingWork { limit: 8, ..work(PendingAction::Cancel, &selection) };
    let before = Some(at(bench.now() + 1));
    let (counted, _) = bench.change(&PendingWork { dry_run: true, ..work }, None).await;
    assert_eq!((counted.count, counted.more, counted.before), (8, true, before));
    let (counted, _) = bench.change(&PendingWork { dry_run: true, limit: 30, ..work }, None).await;
    assert_eq!((counted.count, counted.more, counted.scanned), (30, false, Some(60)));
    let (late, _) = bench.change(&PendingWork { deadline: Instant::now(), ..work }, None).await;
    assert_eq!((late.count, late.more, late.cursor.is_some()), (0, true, true));
    assert_eq!(bench.change_all(work).await, [8, 8, 8, 6]);
    assert_eq!((bench.ids(State::Pending).await.len(), bench.count("cancelled")), (30, 30));
    let wrong = bench.queue.change_pending("r", &work, Some("x"), &mut Bulk::default(), &mut Vec::new()).await;
    assert!(matches!(wrong, Err(QueueError::Invalid(_))), "{wrong:?}");
}

#[tokio::test(start_paused = true)]
async fn a_filter_moves_each_message_once() {
    let bench = Bench::plain().await;
    let all = Selection::Where(Filter::default());
    bench.schedule(messages("m", 130)).await;
    let work = PendingWork { limit: 50, ..work(LATER, &all) };
    let (counted, _) = bench.change(&PendingWork { dry_run: true, ..work }, None).await;
    assert_eq!((counted.count, counted.more), (50, true));
    // A message that arrives while the call goes on is not moved.
    let before = Some(at(bench.now() + 1));
    let (first, _) = bench.change(&work, None).await;
    assert_eq!((first.count, first.more, first.before), (50, true, before));
    bench.until(bench.now() + 1).await;
    bench.schedule([message("late")]).await;
    let (mut count, mut cursor) = (first.count, first.cursor);
    while cursor.is_some() {
        let (bulk, refused) = bench.change(&PendingWork { before: first.before, ..work }, cursor.as_deref()).await;
        assert!(refused.is_empty() && bulk.before == first.before);
        (count, cursor) = (count + bulk.count, bulk.cursor);
    }
    assert_eq!((count, bench.due("late").await), (130, HOUR));
    for n in [0, 7, 129] {
        assert_eq!(bench.due(&format!("m{n}")).await, 2 * HOUR + n, "{n}");
    }
    // Another call moves what arrived in between, too.
    let (again, _) = bench.change(&PendingWork { limit: 1000, ..work }, None).await;
    assert_eq!((again.count, bench.due("late").await, bench.due("m7").await), (131, 2 * HOUR, 3 * HOUR + 7));
    let (late, _) = bench.change(&PendingWork { deadline: Instant::now(), ..work }, None).await;
    assert_eq!((late.count, late.more, late.scanned), (0, true, Some(0)));
}

#[tokio::test(start_paused = true)]
async fn named_messages_are_moved_or_refused_with_the_reason() {
    let bench = Bench::plain().await;
    bench.schedule(messages("m", 9).chain([due("flies", 0)])).await;
    bench.bury([message("dead")]).await;
    assert_eq!(bench.claim().await.len(), 1);
    let selection = named(ids("m", 8).into_iter().chain(["unknown", "flies", "dead"].map(id)));
    let work = work(PendingAction::Move(NewDue::At(Due::At(at(5 * HOUR)))), &selection);
    let (counted, refused) = bench.change(&PendingWork { dry_run: true, ..work }, None).await;
    assert_eq!((counted.count, refused.len(), counted.before), (8, 0, Some(at(bench.now() + 1))));
    let (late, _) = bench.change(&PendingWork { deadline: Instant::now(), ..work }, None).await;
    assert_eq!((late.count, late.more), (0, true));
    bench.until(1000).await;
    let moved_at = bench.now();
    let (moved, mut refused) = bench.change(&work, None).await;
    refused.sort_by(|(one, _), (other, _)| one.cmp(other));
    let expected = [("dead", Rescheduled::Dead), ("flies", Rescheduled::InFlight), ("unknown", Rescheduled::NotFound)];
    assert_eq!(refused, expected.map(|(name, why)| (id(name), why)));
    assert_eq!((moved.count, moved.more, bench.due("m7").await, bench.due("m8").await), (8, false, 5 * HOUR, HOUR + 8));
    // A message that was moved after this time stays.
    let before = PendingWork { before: Some(at(moved_at)), ..work };
    assert_eq!(bench.change(&before, None).await.0.count, 0);

    let more = named(ids("m", 9));
    let limited = PendingWork { selection: &more, limit: 5, ..work };
    let (moved, refused) = bench.change(&limited, None).await;
    assert_eq!((moved.count, moved.more, refused.len()), (5, true, 0));
    let (moved, _) = bench.change(&PendingWork { limit: 9, ..limited }, None).await;
    assert_eq!((moved.count, moved.more), (9, false));
}

#[tokio::test(start_paused = true)]
async fn a_delay_that_is_too_long_moves_nothing() {
    let bench = Bench::plain().await;
    bench.schedule([message("a")]).await;
    let selection = named([id("a")]);
    for (delay, is_right) in [(MAX_DELAY_MILLIS, true), (MAX_DELAY_MILLIS + 1, false)] {
        let work = PendingWork { dry_run: true, ..work(PendingAction::Move(Due::After(delay).into()), &selection) };
        let moved = bench.queue.change_pending("r", &work, None, &mut Bulk::default(), &mut Vec::new()).await;
        assert_eq!(moved.is_ok(), is_right, "{moved:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeated_move_leaves_what_it_moved_although_the_clock_of_the_caller_is_ahead() {
    let bench = Bench::plain().await;
    bench.schedule((0..9).map(|n| keyed(&format!("m{n}"), "k"))).await;
    for selection in [named(ids("m", 9)), Selection::Where(key("k"))] {
        let began = bench.now();
        let ahead = |millis| PendingWork { before: Some(at(began + millis)), ..work(LATER, &selection) };
        let refused = bench.queue.change_pending("r", &ahead(1001), None, &mut Bulk::default(), &mut Vec::new()).await;
        assert!(matches!(refused, Err(QueueError::Store(StoreError::Refused { .. }))), "{refused:?}");
        assert_eq!(bench.change(&ahead(1000), None).await.0.count, 9);
        assert_eq!((bench.now(), bench.change(&ahead(1000), None).await.0.count), (began, 0));
        // Later it is moved again, by a call of that time.
        bench.until(began + 2000).await;
        // A cancellation can be repeated anyway.
        let cancel =
            PendingWork { dry_run: true, before: Some(at(10 * HOUR)), ..work(PendingAction::Cancel, &selection) };
        assert_eq!(bench.change(&cancel, None).await.0.count, 9);
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_back_of_the_clock_within_a_move_moves_nothing_twice() {
    let bench = Bench::plain().await;
    bench.schedule((0..20).map(|n| keyed(&format!("m{n}"), "k"))).await;
    bench.until(10_000).await;
    let selection = Selection::Where(key("k"));
    let some = PendingWork { limit: 8, ..work(LATER, &selection) };
    let (first, _) = bench.change(&some, None).await;
    assert_eq!((first.count, first.more), (8, true));
    bench.redis.server.step_clock(-5_000_000);
    let next = PendingWork { before: first.before, ..some };
    let (second, _) = bench.change(&next, first.cursor.as_deref()).await;
    assert_eq!((second.count, second.more), (8, true));
    // Its answer was lost.
    let (again, _) = bench.change(&PendingWork { limit: 99, ..next }, first.cursor.as_deref()).await;
    assert_eq!((again.count, again.more), (4, false));
    for n in 0..20 {
        assert_eq!(bench.due(&format!("m{n}")).await, 2 * HOUR, "{n}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_ends_with_a_partition_says_whether_another_one_has_more() {
    let all = Selection::Where(Filter::default());
    for (first, last, more) in [(2, 0, false), (2, 1, true), (0, 2, false), (0, 3, true)] {
        let bench = Bench::plain().await;
        let some = |index, count| {
            let own = ids("m", 200).into_iter().filter(move |id| id.partition(PARTITIONS) == index);
            own.take(count).map(|id| message(id.as_str()))
        };
        bench.schedule(some(0, first).chain(some(PARTITIONS - 1, last))).await;
        let work = PendingWork { limit: 2, ..work(PendingAction::Cancel, &all) };
        for dry_run in [true, false] {
            let (bulk, _) = bench.change(&PendingWork { dry_run, ..work }, None).await;
            assert_eq!((bulk.count, bulk.more), (2, more), "{first} and {last}, {dry_run}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_claimed_while_a_filter_moves_it_is_left_and_not_refused() {
    let mut counts = Vec::new();
    for calls in 1..=6 {
        let bench = Bench::start([RouteSettings::plain("r", 100)]).await;
        bench.schedule(messages("m", 3)).await;
        let latency = Duration::from_millis(20);
        bench.redis.links.set_faults(punctual_model::LinkFaults { latency, ..punctual_model::LinkFaults::default() });
        let all = Selection::Where(Filter::default());
        let before = bench.redis.calls();
        let work = work(LATER, &all);
        let moving = bench.change(&work, None);
        // It is claimed after this number of calls of the move.
        let claiming = async {
            while bench.redis.calls() < before + calls && bench.now() < 1000 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            bench.redis.execute(&["ZREM", "{p:r:0/1}:pending", "m1"]);
            bench.redis.execute(&["ZADD", "{p:r:0/1}:unack", "9999999999999", "m1"]);
        };
        let ((bulk, refused), ()) = tokio::join!(moving, claiming);
        assert_eq!(refused, [], "{calls} calls");
        counts.push(bulk.count);
    }
    assert!(counts.contains(&2) && counts.contains(&3), "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn to_cancel_takes_as_many_calls_as_to_count() {
    let all = Selection::Where(Filter::default());
    let bench = Bench::plain().await;
    bench.schedule(messages("m", 20)).await;
    let mut calls = Vec::new();
    for dry_run in [true, false] {
        let before = bench.redis.calls();
        let (bulk, _) = bench.change(&PendingWork { dry_run, ..work(PendingAction::Cancel, &all) }, None).await;
        assert_eq!((bulk.count, bulk.more), (20, false));
        calls.push(bench.redis.calls() - before);
    }
    assert_eq!(calls[0], calls[1]);
}
