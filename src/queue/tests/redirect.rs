//! Dead letters that are redriven into another route.

use tokio::time::sleep;

use super::*;
use crate::{
    message::{Limit, Rate, Remember, RouteLimits},
    store::{DeadAction, DeadWork, Expiry, Selection, Spread},
};

const REDRIVE: DeadAction = DeadAction::Redrive(Expiry::Drop);

fn work(selection: &Selection) -> DeadWork<'_> {
    DeadWork { action: REDRIVE, spread: Spread::default(), selection, limit: 1000, dry_run: false, deadline: later() }
}

fn named(names: &[&str]) -> Selection {
    Selection::Ids { ids: names.iter().map(|name| id(name)).collect(), until: None }
}

fn all() -> Selection {
    Selection::Where(Filter::default())
}

/// The other route, for payloads of at most 50 bytes.
fn other() -> RouteSettings {
    RouteSettings::plain("other", 50)
}

impl Bench {
    async fn redirect(&self, work: &DeadWork<'_>, cursor: Option<&str>) -> (Bulk, Vec<(String, &'static str, String)>) {
        let (mut bulk, mut stayed) = (Bulk::default(), Vec::new());
        self.queue.redrive_to("r", "other", work, cursor, &mut bulk, &mut stayed).await.unwrap();
        let mut stayed: Vec<_> =
            stayed.into_iter().map(|Stayed { id, reason, detail }| (id.to_string(), reason, detail)).collect();
        stayed.sort();
        (bulk, stayed)
    }

    async fn others(&self) -> Vec<(String, u64)> {
        let shown = |one: Snapshot| (one.id.to_string(), one.deliver_at.get() - EPOCH);
        self.listed("other", State::Pending).await.into_iter().map(shown).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_stays_if_the_other_route_does_not_take_it() {
    let remember = Some(Remember { period: Duration::from_hours(1), max: 100 });
    let bench = Bench::start([route(), RouteSettings { remember, ..other() }]).await;
    let sized = |name: &str, size: usize| NewMessage { payload: vec![b'x'; size].into(), ..message(name) };
    let there = vec![sized("same", 1), sized("differs", 2), message("ended"), keyed("key", "k")];
    bench.queue.schedule("other", "api", there).await.unwrap();
    bench.queue.cancel("other", &id("ended").into()).await.unwrap();
    let here = ["same", "differs", "ended", "key", "small"].map(|name| sized(name, 1));
    bench.bury(here.into_iter().chain([sized("large", 51), sized("fits", 50)])).await;
    let expected = [
        ("differs", "exists", "`other` has another message with this id"),
        ("ended", "cancelled", "`other` remembers this id as cancelled"),
        ("key", "exists", "`other` has another message with this id"),
        ("large", "too_large", "its payload takes 51 bytes, at most 50"),
    ]
    .map(|(name, reason, detail)| (name.to_owned(), reason, detail.to_owned()));
    for selection in [all(), named(&["same", "differs", "ended", "key", "small", "large", "fits", "unknown"])] {
        let (counted, stayed) = bench.redirect(&DeadWork { dry_run: true, ..work(&selection) }, None).await;
        assert_eq!((counted.count, stayed.len(), bench.ids(State::Dead).await.len()), (6, 1, 7));
    }
    let (moved, stayed) = bench.redirect(&work(&all()), None).await;
    assert_eq!((moved.count, moved.more, stayed), (3, false, expected.clone().into()));
    let mut dead = bench.ids(State::Dead).await;
    dead.sort();
    assert_eq!(dead, ["differs", "ended", "key", "large"]);
    let (again, stayed) = bench.redirect(&work(&named(&["differs", "ended", "key", "large"])), None).await;
    assert_eq!((again.count, again.more, stayed), (0, false, expected.into()));
    // Those that were dead are due at once.
    let others: BTreeMap<_, _> = bench.others().await.into_iter().collect();
    assert_eq!(
        [others["same"], others["small"], others["fits"], others.len() as u64],
        [HOUR, bench.now(), bench.now(), 5]
    );
}

#[tokio::test(start_paused = true)]
async fn a_full_route_takes_what_fits() {
    let limits = RouteLimits { messages: Some(4), ..RouteLimits::default() };
    let bench = Bench::start([route(), RouteSettings { limits, ..other() }]).await;
    bench.bury(messages("m", 10)).await;
    let (mut bulk, mut stayed) = (Bulk::default(), Vec::new());
    let error = bench.queue.redrive_to("r", "other", &work(&all()), None, &mut bulk, &mut stayed).await;
    assert_eq!((error, bulk.count, stayed.len()), (Err(QueueError::Full(Limit::Messages)), 4, 0));
    assert_eq!((bench.ids(State::Dead).await.len(), bench.others().await.len()), (6, 4));
    let nowhere = bench.queue.redrive_to("r", "none", &work(&all()), None, &mut bulk, &mut stayed).await;
    assert_eq!(nowhere, Err(QueueError::UnknownRoute("none".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_at_its_limit_and_the_next_one_continues() {
    let bench = Bench::start([route(), other()]).await;
    bench.bury(messages("m", 25)).await;
    let died = bench.now();
    let (all, some) = (all(), Selection::Ids { ids: ids("m", 12), until: None });
    let (late, _) = bench.redirect(&DeadWork { deadline: Instant::now(), ..work(&some) }, None).await;
    assert_eq!((late.count, late.more, late.cursor), (0, true, None));
    let (moved, _) = bench.redirect(&DeadWork { limit: 7, ..work(&some) }, None).await;
    assert_eq!((moved.count, moved.more, moved.cursor, moved.until), (7, true, None, Some(at(died + 1))));
    let (moved, _) = bench.redirect(&DeadWork { limit: 5, ..work(&some) }, None).await;
    assert_eq!((moved.count, moved.more), (5, false));

    let (late, _) = bench.redirect(&DeadWork { deadline: Instant::now(), ..work(&all) }, None).await;
    assert_eq!((late.count, late.more, late.cursor.is_some()), (0, true, true));
    let (moved, _) = bench.redirect(&DeadWork { limit: 8, ..work(&all) }, None).await;
    assert_eq!((moved.count, moved.more, moved.until), (8, true, Some(at(bench.now() + 1))));
    sleep(Duration::from_secs(1)).await;
    bench.bury([message("late")]).await;
    let (moved, _) = bench.redirect(&work(&all), moved.cursor.as_deref()).await;
    assert_eq!((moved.count, moved.more, moved.scanned), (5, false, None));
    assert_eq!(bench.ids(State::Dead).await, ["late"]);
    assert_eq!((bench.others().await.len(), bench.ids(State::Pending).await.len()), (25, 0));
}

#[tokio::test(start_paused = true)]
async fn only_those_that_died_in_time_are_moved() {
    let bench = Bench::start([route(), other()]).await;
    bench.bury([keyed("early", "k"), message("other")]).await;
    sleep(Duration::from_secs(1)).await;
    bench.bury([keyed("late", "k")]).await;
    let died = bench.now();
    bench.schedule([message("pending")]).await;
    let ids = |until| Selection::Ids { ids: ["early", "late", "pending"].map(id).into(), until: Some(at(until)) };
    for (until, count) in [(0, 0), (died, 1), (died + 1, 2)] {
        let selection = ids(until);
        let (counted, _) = bench.redirect(&DeadWork { dry_run: true, ..work(&selection) }, None).await;
        assert_eq!((counted.count, counted.until), (count, Some(at(until))), "{until}");
        let selection = Selection::Where(Filter { until: Some(at(until)), ..key("k") });
        let (counted, _) = bench.redirect(&DeadWork { dry_run: true, ..work(&selection) }, None).await;
        assert_eq!((counted.count, counted.until), (count, Some(at(until))), "{until}");
    }
    let (selection, now) = (Selection::Where(key("k")), bench.now());
    let (moved, _) = bench.redirect(&work(&selection), None).await;
    assert_eq!((moved.count, moved.scanned, moved.until), (2, Some(3), Some(at(now + 1))));
    assert_eq!(bench.ids(State::Dead).await, ["other"]);
}

#[tokio::test(start_paused = true)]
async fn a_rate_spreads_the_due_times_over_all_partitions() {
    let bench = Bench::start([route(), other()]).await;
    bench.bury(messages("m", 8)).await;
    let (all, rate) = (all(), Some(Rate::parse("2/s").unwrap()));
    let spread = Spread { start: Some(at(60_000)), rate };
    let (first, _) = bench.redirect(&DeadWork { spread, limit: 3, ..work(&all) }, None).await;
    assert_eq!((first.count, first.next), (3, Some(at(61_500))));
    let spread = Spread { start: first.next, rate };
    let (rest, _) = bench.redirect(&DeadWork { spread, ..work(&all) }, first.cursor.as_deref()).await;
    assert_eq!((rest.count, rest.next), (5, Some(at(64_000))));
    let due: Vec<u64> = bench.others().await.into_iter().map(|(_, due)| due).collect();
    assert_eq!(due, (0..8).map(|n| 60_000 + 500 * n).collect::<Vec<_>>());

    // From now on, if the start has passed.
    bench.bury(messages("n", 2)).await;
    sleep(Duration::from_secs(10)).await;
    let spread = Spread { start: Some(at(1)), rate: None };
    let now = bench.now();
    let (moved, _) = bench.redirect(&DeadWork { spread, ..work(&all) }, None).await;
    assert_eq!((moved.count, moved.next), (2, Some(at(now))));
    assert_eq!(bench.others().await[..2].iter().map(|(_, due)| *due).collect::<Vec<_>>(), [now, now]);
}

#[tokio::test(start_paused = true)]
async fn the_expiry_is_dropped_kept_or_begins_anew() {
    let bench = Bench::start([route(), other()]).await;
    let expires = |name: &str| NewMessage {
        metadata: Metadata { expires_at: Some(EPOCH + 9 * HOUR), ..Metadata::default() },
        ..message(name)
    };
    let rules = [("drop", Expiry::Drop), ("keep", Expiry::Keep), ("after", Expiry::After(5000))];
    for (name, expiry) in rules {
        bench.bury([expires(name)]).await;
        let selection = named(&[name]);
        let spread = Spread { start: Some(at(HOUR)), rate: None };
        let work = DeadWork { action: DeadAction::Redrive(expiry), spread, ..work(&selection) };
        assert_eq!(bench.redirect(&work, None).await.0.count, 1, "{name}");
    }
    let shown = |one: Snapshot| (one.id.to_string(), one.message.unwrap().metadata.expires_at.map(|at| at - EPOCH));
    let ends: BTreeMap<_, _> = bench.listed("other", State::Pending).await.into_iter().map(shown).collect();
    assert_eq!([ends["drop"], ends["keep"], ends["after"]], [None, Some(9 * HOUR), Some(HOUR + 5000)]);
}

#[tokio::test(start_paused = true)]
async fn a_call_for_named_ones_says_whether_its_limit_left_some() {
    let bench = Bench::start([RouteSettings::plain("r", 100), other()]).await;
    bench.bury(["a", "b", "c"].map(message)).await;
    let selection = named(&["a", "b", "c"]);
    for (limit, count, more) in [(2, 2, true), (1, 1, false)] {
        let (bulk, _) = bench.redirect(&DeadWork { limit, ..work(&selection) }, None).await;
        assert_eq!((bulk.count, bulk.more), (count, more), "{limit}");
    }
}
