//! Groups in Redis: what they cost routes without groups, and the moves of groups between partitions.

use std::sync::Arc;

use punctual::{
    message::{Metadata, NewMessage, OnConflict, State},
    queue::{GroupAction, GroupWork, Queue},
    store::{NewDue, Partition, Rescheduled, Store},
    time::{Due, MAX_DELAY_MILLIS, UnixMillis},
};

use super::{
    arguments::claim,
    bench::{Bench, id, later},
    operation::{FAR, ROUTES, ids},
    scene::{NEW, ROUTE, SCENES, partition, split},
};

/// A command on a group key that is not free.
const COSTS: &str = "string.find(key, '}:group', 1, true) and command ~= 'EXISTS' and command ~= 'UNLINK'";

#[tokio::test]
async fn without_groups_no_script_runs_a_command_for_them() {
    let mut bench = Bench::start().await;
    for (scene, script) in SCENES.iter().filter(|(scene, _)| split(scene).1 != "groups") {
        // A group is named, or the command replaces two that are not needed.
        if split(scene).0.contains("group") || scene.starts_with("produce in place") {
            continue;
        }
        let seen = bench.watch((scene, script), COSTS).await;
        assert_eq!(seen, None, "{scene}");
    }
}

fn message(text: &str, group: Option<&str>, due: Due) -> NewMessage {
    NewMessage {
        id: id(text),
        due,
        payload: "payload".into(),
        metadata: Metadata { group: group.map(str::to_owned), ..Metadata::default() },
        on_conflict: OnConflict::Replace,
        debounce: None,
        record: None,
    }
}

async fn change(queue: &Queue, route: &str, action: GroupAction, work: GroupWork, cursor: Option<&str>) -> GroupWork {
    let mut work = work;
    queue.change_group(route, "g", action, cursor, later(), &mut work).await.expect("changed");
    work
}

#[tokio::test]
async fn a_group_that_moves_to_other_partitions_is_cancelled_as_a_whole() {
    let mut bench = Bench::start().await;
    bench.clear().await;
    let batch = ["a", "b", "c", "d"].map(|text| message(text, Some("g"), Due::After(FAR)));
    bench.store.schedule(&partition(), &batch).await.expect("accepted");
    let now = [message("flying", Some("g"), Due::NOW), message("other", Some("g:1"), Due::After(FAR))];
    bench.store.schedule(&partition(), &now).await.expect("accepted");
    let claimed = bench.store.claim(&partition(), claim(NEW, 1)).await.expect("claimed");
    assert_eq!(claimed.messages.len(), 1);
    bench.moving.register().await.expect("the move begins");

    let queue = Queue::new(Arc::clone(&bench.moving), &std::collections::BTreeMap::new(), false);
    queue.prepare().await.expect("registered");
    let page = queue.group(ROUTE, "g", 10, u64::MAX, None).await.expect("a page");
    assert_eq!((page.messages.len(), page.cursor), (5, None));
    let work = change(&queue, ROUTE, GroupAction::Cancel, GroupWork::default(), None).await;
    assert_eq!((work.count, &work.in_flight[..], work.cursor), (4, &[id("flying")][..], None));
    let rows = bench.rows(&partition()).await;
    rows.check_invariants();
    assert_eq!((rows.state("flying"), rows.state("other")), (Some(State::Unack), Some(State::Pending)));
}

#[tokio::test]
async fn a_shift_that_is_repeated_moves_no_message_twice() {
    let mut bench = Bench::start().await;
    bench.clear().await;
    let (route, count) = ROUTES[1];
    let at = |n: u64| Due::At(UnixMillis::new(4_000_000_000_000 + n).expect("small"));
    let mut all = Vec::new();
    for partition in Partition::all(&route.into(), count) {
        // As many as the limits of the route allow.
        let own: Vec<_> = ids(&partition).into_iter().take(3).collect();
        let batch: Vec<_> = own.iter().zip(0..).map(|(id, n)| message(id.as_str(), Some("g"), at(n))).collect();
        bench.store.schedule(&partition, &batch).await.expect("accepted");
        all.extend(own.into_iter().zip(0..));
    }
    let shift = GroupAction::Move(NewDue::By(1000));
    // As a caller that got no reply: with the time that it asked at.
    let before = UnixMillis::new(bench.micros().await / 1000 + 1);
    let asked = || GroupWork { before, ..GroupWork::default() };
    while bench.micros().await / 1000 <= before.expect("a time").get() {}
    assert_eq!(change(&bench.queue, route, shift, asked(), None).await.count, 9);
    assert_eq!(change(&bench.queue, route, shift, asked(), None).await.count, 0);
    for (id, n) in all {
        let snapshot = bench.live(route, id.as_str()).await.expect("pending");
        assert_eq!(snapshot.deliver_at.get(), 4_000_000_001_000 + n);
    }
}

#[tokio::test]
async fn shifts_lead_no_further_than_the_longest_delay() {
    let mut bench = Bench::start().await;
    bench.clear().await;
    let (route, count) = ROUTES[1];
    let partition = Partition::all(&route.into(), count).next().expect("a partition");
    let id = ids(&partition).remove(0);
    bench.store.schedule(&partition, &[message(id.as_str(), Some("g"), Due::After(1000))]).await.expect("accepted");
    // Without a bound 15 of them would lead to the scores of parked messages.
    let longest = i64::try_from(MAX_DELAY_MILLIS).expect("small");
    for shift in [longest; 20].into_iter().chain([-1000]) {
        let work = change(&bench.queue, route, GroupAction::Move(NewDue::By(shift)), GroupWork::default(), None).await;
        assert_eq!(work.count, 1);
        let due = bench.live(route, id.as_str()).await.expect("pending").deliver_at.get();
        let latest = bench.micros().await / 1000 + MAX_DELAY_MILLIS;
        assert!((latest - 60_000..=latest).contains(&due), "{shift}: {due}");
    }
}

#[tokio::test]
async fn a_group_of_thousands_is_cancelled_a_thousand_at_a_time() {
    let mut bench = Bench::start().await;
    bench.clear().await;
    for part in 0..5 {
        let batch: Vec<_> = (0..500).map(|n| message(&format!("m{part}-{n}"), Some("g"), Due::After(FAR))).collect();
        bench.store.schedule(&partition(), &batch).await.expect("accepted");
    }
    let (mut cursor, mut counts) = (None, Vec::new());
    loop {
        let work = change(&bench.queue, ROUTE, GroupAction::Cancel, GroupWork::default(), cursor.as_deref()).await;
        counts.push(work.count);
        cursor = work.cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(counts.iter().sum::<u64>(), 2500);
    assert!(counts.iter().all(|count| *count <= 1000), "{counts:?}");
    assert!(bench.rows(&partition()).await.groups.is_empty());
}

#[tokio::test]
async fn in_an_ordered_flow_the_first_message_of_a_group_is_delivered_and_the_others_wait() {
    let mut bench = Bench::start().await;
    bench.clear().await;
    let partition = Partition { route: "ordered".into(), index: 0, count: 1 };
    // The ids are in another order than the due times.
    let batch = [("c", 0), ("b", 1), ("a", 2)].map(|(text, n)| message(text, Some("g"), Due::After(FAR - 10 + n)));
    bench.store.schedule(&partition, &batch).await.expect("accepted");
    let deliver = GroupAction::Move(NewDue::Now);
    let work = change(&bench.queue, "ordered", deliver, GroupWork::default(), None).await;
    assert_eq!(work.count, 1);
    assert_eq!(work.refused, [("b", "c"), ("a", "c")].map(|(one, first)| (id(one), Rescheduled::Held(id(first)))));
}
