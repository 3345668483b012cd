//! Dead letters that are redriven, purged, summarized and edited.

use tokio::time::sleep;

use super::*;
use crate::store::{BulkProgress, DeadAction, DeadWork, Edit, Edited, Expiry, Selection, Spread};

const REDRIVE: DeadAction = DeadAction::Redrive(Expiry::Drop);

fn work(action: DeadAction, selection: &Selection) -> DeadWork<'_> {
    DeadWork { action, spread: Spread::default(), selection, limit: 1000, dry_run: false, deadline: later() }
}

impl Bench {
    async fn act(&self, work: &DeadWork<'_>, cursor: Option<&str>) -> Bulk {
        let mut bulk = Bulk::default();
        self.queue.act_on_dead("r", work, cursor, &mut bulk).await.unwrap();
        bulk
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_at_its_limit_and_the_next_one_continues() {
    let bench = Bench::plain().await;
    bench.bury(messages("m", 30)).await;
    let all = Selection::Where(Filter::default());
    let counted = bench.act(&DeadWork { dry_run: true, ..work(REDRIVE, &all) }, None).await;
    assert_eq!((counted.count, counted.more, counted.scanned, counted.cursor), (30, false, None, None));
    assert_eq!(bench.count("redriven"), 0);
    let some = DeadWork { limit: 12, ..work(REDRIVE, &all) };
    let (mut counts, mut cursor) = (Vec::new(), None);
    loop {
        let bulk = bench.act(&some, cursor.as_deref()).await;
        counts.push(bulk.count);
        // A message that died again after the first call is left.
        if counts.len() == 1 {
            sleep(Duration::from_secs(1)).await;
            bench.bury([message("late")]).await;
        }
        assert_eq!(bulk.until, Some(at(1)));
        cursor = bulk.cursor;
        if !bulk.more {
            break;
        }
    }
    assert_eq!((counts, bench.ids(State::Dead).await), (vec![12, 12, 6], vec!["late".to_owned()]));
    assert_eq!((bench.ids(State::Pending).await.len(), bench.count("redriven")), (30, 30));
    let late = DeadWork { deadline: Instant::now(), ..work(DeadAction::Purge, &all) };
    assert_eq!((bench.act(&late, None).await.more, bench.ids(State::Dead).await.len()), (true, 1));
}

#[tokio::test(start_paused = true)]
async fn a_filter_says_how_many_it_looked_at() {
    let bench = Bench::plain().await;
    bench.bury(messages("m", 20).chain((0..10).map(|n| keyed(&format!("k{n}"), "k")))).await;
    let selection = Selection::Where(key("k"));
    let purge = work(DeadAction::Purge, &selection);
    let counted = bench.act(&DeadWork { dry_run: true, ..purge }, None).await;
    assert_eq!((counted.count, counted.scanned, counted.cursor), (10, Some(30), None));
    let purged = bench.act(&DeadWork { limit: 4, ..purge }, None).await;
    assert_eq!((purged.count, purged.more, purged.cursor.is_some()), (4, true, true));
    assert_eq!(bench.act(&purge, purged.cursor.as_deref()).await.count, 6);
    assert_eq!(bench.ids(State::Dead).await.len(), 20);
}

#[tokio::test(start_paused = true)]
async fn named_dead_letters_are_taken_from_each_partition() {
    let bench = Bench::plain().await;
    bench.bury(messages("m", 20)).await;
    let selection = Selection::Ids { ids: ids("m", 10), until: None };
    let redriven = bench.act(&DeadWork { limit: 6, ..work(REDRIVE, &selection) }, None).await;
    assert_eq!((redriven.count, redriven.more, redriven.cursor, redriven.scanned), (6, true, None, None));
    assert_eq!(bench.act(&work(REDRIVE, &selection), None).await.count, 4);
    // Later deaths are left out.
    let selection = Selection::Ids { ids: ids("m", 20), until: Some(at(0)) };
    assert_eq!(bench.act(&work(DeadAction::Purge, &selection), None).await.count, 0);
    let selection = Selection::Ids { ids: ids("m", 20), until: Some(at(1)) };
    assert_eq!(bench.act(&work(DeadAction::Purge, &selection), None).await.count, 10);
    let error = bench.queue.act_on_dead("r", &work(DeadAction::Forward, &selection), None, &mut Bulk::default()).await;
    assert_eq!(error, Err(QueueError::NoForwarding("r".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn a_summary_has_each_reason_with_its_times_and_its_last_message() {
    let bench = Bench::plain().await;
    bench.schedule((0..4).map(|n| due(&format!("early{n}"), 0))).await;
    let bury = |reason, error: &str| ClaimEnd::Bury { reason, error: error.to_owned() };
    assert_eq!(bench.end(bench.claim().await, bury(DeadReason::Rejected, "one")).await, 4);
    let first = bench.now();
    sleep(Duration::from_secs(1)).await;
    bench.bury(messages("m", 40)).await;
    let second = bench.now();
    bench.schedule([due("crash0", 0), due("crash1", 0), due("crash2", 0), due("crash3", 0)]).await;
    assert_eq!(bench.end(bench.claim().await, bury(DeadReason::Crash, "two")).await, 4);
    let third = bench.now();
    sleep(Duration::from_secs(1)).await;
    bench.schedule([due("last", 0)]).await;
    bench.end(bench.claim().await, bury(DeadReason::Rejected, "three")).await;
    let last = bench.now();
    let summary = bench.queue.summary("r", &Filter::default(), later()).await.unwrap();
    let shown = |one: &DeadGroup| (one.reason.clone(), one.count, one.oldest, one.newest);
    let row = |reason: &str, count, oldest, newest| (reason.to_owned(), count, at(oldest), at(newest));
    assert_eq!(
        summary.groups.iter().map(shown).collect::<Vec<_>>(),
        [row("invalid", 40, second, second), row("rejected", 5, first, last), row("crash", 4, third, third)]
    );
    assert_eq!((summary.total, summary.complete), (49, true));
    assert_eq!(summary.groups[1].sample, (id("last"), "three".to_owned()));
    let late = bench.queue.summary("r", &Filter::default(), Instant::now()).await.unwrap();
    assert_eq!(late, DeadSummary::default());
}

#[tokio::test(start_paused = true)]
async fn reasons_that_are_as_frequent_are_in_order_of_their_names() {
    let mut summary = DeadSummary::default();
    let group = |reason: &str, count, time, sample: &str| DeadGroup {
        reason: reason.to_owned(),
        count,
        oldest: at(time),
        newest: at(time + 10),
        sample: (id(sample), String::new()),
    };
    summary.add(group("b", 1, 5, "first"));
    summary.add(group("b", 2, 5, "second"));
    summary.add(group("b", 4, 3, "before"));
    assert_eq!(summary.groups, [DeadGroup { newest: at(15), ..group("b", 7, 3, "second") }]);
    assert_eq!(summary.total, 7);
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_is_edited_unless_the_payload_is_too_large() {
    let bench = Bench::plain().await;
    bench.bury([message("a")]).await;
    let edit = |size: usize| Edit { payload: Some(vec![b'y'; size].into()), ..Edit::default() };
    let edited = bench.queue.edit("r", &id("a"), &edit(100), None).await.unwrap();
    assert!(matches!(edited, Edited::Done { .. }), "{edited:?}");
    assert_eq!(bench.listed("r", State::Dead).await[0].message.as_ref().unwrap().payload, vec![b'y'; 100]);
    let refused = bench.queue.edit("r", &id("a"), &edit(101), None).await.unwrap_err();
    assert_eq!(refused.to_string(), "refused: too-large: the payload of `a` takes 101 bytes, at most 100");
    assert_eq!(bench.queue.edit("r", &id("b"), &edit(1), None).await, Ok(Edited::NotFound));
}

#[test]
fn a_bulk_call_has_a_cursor_only_if_a_filter_continues() {
    let filters = [Filter::default(), key("k")].map(Selection::Where);
    let named = Selection::Ids { ids: ids("m", 1), until: None };
    let reached = |selection: &Selection, more| {
        let mut bulk = Bulk::default();
        let done = BulkProgress { count: 3, scanned: 5, more, until: Some(at(1)), next: Some(at(2)), place: None };
        bulk.reach(4, selection, &done);
        assert_eq!((bulk.count, bulk.more, bulk.until, bulk.next), (3, more, Some(at(1)), Some(at(2))));
        (bulk.scanned, bulk.cursor.map(|cursor| cursor::decode_bulk(&cursor).unwrap().0))
    };
    assert_eq!([true, false].map(|more| reached(&filters[0], more)), [(None, Some(4)), (None, None)]);
    assert_eq!([true, false].map(|more| reached(&filters[1], more)), [(Some(5), Some(4)), (Some(5), None)]);
    assert_eq!([true, false].map(|more| reached(&named, more)), [(None, None), (None, None)]);
}

#[tokio::test(start_paused = true)]
async fn each_partition_gets_its_own_ids_alone() {
    let bench = Bench::plain().await;
    bench.bury(messages("m", 20)).await;
    let sent = Arc::new(AtomicU64::new(0));
    let named = sent.clone();
    bench.redis.server.reply_with(move |command| {
        let is_id = |word: &&String| word.strip_prefix('m').is_some_and(|number| number.parse::<u64>().is_ok());
        named.fetch_add(command.iter().filter(is_id).count() as u64, Ordering::Relaxed);
        None
    });
    let selection = Selection::Ids { ids: ids("m", 20), until: None };
    assert_eq!(bench.act(&work(REDRIVE, &selection), None).await.count, 20);
    assert_eq!(sent.load(Ordering::Relaxed), 20);
}
