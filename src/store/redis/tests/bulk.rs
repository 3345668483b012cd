//! Bulk calls on dead letters that continue where an earlier one ended.

use super::*;
use crate::{
    message::Rate,
    store::{BulkProgress, DeadAction, DeadWork, Expiry, Filter, Selection, Spread},
    time::UnixMillis,
};

const REDRIVE: DeadAction = DeadAction::Redrive(Expiry::Drop);

impl Simulated {
    /// Dead letters with the key `k`.
    async fn bury_keyed(&self, names: impl Iterator<Item = String>) {
        let metadata = Metadata { key: Some("k".into()), ..Metadata::default() };
        let keyed = |name: String| (NewMessage { metadata: metadata.clone(), ..message(&name) }, "e".to_owned());
        self.store.bury(&partition(), Death::INVALID, &names.map(keyed).collect::<Vec<_>>()).await.unwrap();
    }

    /// Dead letters with this error.
    async fn bury_with(&self, error: &str, names: impl Iterator<Item = String>) {
        let batch: Vec<_> = names.map(|name| (message(&name), error.to_owned())).collect();
        for some in batch.chunks(MAX_BATCH) {
            self.store.bury(&partition(), Death::INVALID, some).await.unwrap();
        }
    }

    /// Continues up to `limit`. Returns the number so far, and whether more follow.
    async fn act(&self, work: &DeadWork<'_>, limit: u64, done: &mut BulkProgress) -> (u64, bool) {
        done.more = false;
        self.store.act_on_dead(&partition(), &DeadWork { limit, ..*work }, done).await.unwrap();
        (done.count, done.more)
    }
}

fn names(prefix: &str, count: usize) -> impl Iterator<Item = String> {
    (0..count).map(move |n| format!("{prefix}{n:04}"))
}

fn work(action: DeadAction, selection: &Selection) -> DeadWork<'_> {
    let deadline = tokio::time::Instant::now() + Duration::from_hours(1);
    DeadWork { action, spread: Spread::default(), selection, limit: 0, dry_run: false, deadline }
}

fn with_key() -> Selection {
    Selection::Where(Filter { key: Some("k".into()), ..Filter::default() })
}

#[tokio::test(start_paused = true)]
async fn a_filter_by_bodies_leaves_what_died_after_the_first_call() {
    let redis = Simulated::start([route()]).await;
    redis.bury_keyed(names("early", 10)).await;
    let (selection, mut done) = (with_key(), BulkProgress::default());
    let work = work(DeadAction::Purge, &selection);
    assert_eq!(redis.act(&work, 4, &mut done).await, (4, true));
    advance(Duration::from_secs(1)).await;
    redis.bury_keyed(names("late", 3)).await;
    assert_eq!(redis.act(&work, 100, &mut done).await, (10, false));
    assert_eq!(redis.store.stats(&partition()).await.unwrap().dead, 3);
}

#[tokio::test(start_paused = true)]
async fn due_times_that_are_spread_continue_in_the_next_call() {
    let redis = Simulated::start([route()]).await;
    redis.bury_keyed(names("m", 10)).await;
    let at = |millis| UnixMillis::new(EPOCH + millis).unwrap();
    let (selection, mut done) = (with_key(), BulkProgress::default());
    let spread = Spread { start: Some(at(60_000)), rate: Some(Rate::parse("10/s").unwrap()) };
    let work = DeadWork { spread, ..work(REDRIVE, &selection) };
    for (limit, more, next) in [(4, true, 60_400), (7, true, 60_700), (100, false, 61_000)] {
        assert_eq!((redis.act(&work, limit, &mut done).await.1, done.next), (more, Some(at(next))), "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_at_its_limit_looks_for_more_and_the_next_one_counts_each_message_once() {
    let redis = Simulated::start([route()]).await;
    redis.bury_with("first", names("a", 5)).await;
    redis.bury_with("other", names("b", MAX_BATCH + 100)).await;
    let of = |error: Option<&str>| Selection::Where(Filter { contains: error.map(str::to_owned), ..Filter::default() });
    let (selection, mut done) = (of(Some("first")), BulkProgress::default());
    assert_eq!(redis.act(&work(DeadAction::Purge, &selection), 5, &mut done).await, (5, false));
    assert_eq!(done.scanned, (MAX_BATCH + 105) as u64, "none of the others matches");

    let (selection, mut done) = (of(None), BulkProgress::default());
    let counting = DeadWork { dry_run: true, ..work(DeadAction::Purge, &selection) };
    let (limit, all) = (MAX_BATCH as u64, MAX_BATCH as u64 + 100);
    assert_eq!(redis.act(&counting, limit, &mut done).await, (limit, true));
    assert_eq!(redis.act(&counting, 10 * limit, &mut done).await, (all, false));
}
