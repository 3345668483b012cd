//! Numbers of a route over all partitions.

use jiff::tz::TimeZone;
use tokio::time::sleep;

use super::*;
use crate::{
    calendar::{Calendar, Window},
    message::{FlowLimits, Limit, RouteLimits},
    store::{FieldChange, FlowChange, RouteFlow},
};

/// In milliseconds.
async fn overdue(queue: &Queue) -> u128 {
    Duration::from_secs_f64(queue.stats("r").await.unwrap().oldest_overdue_seconds).as_millis()
}

#[tokio::test(start_paused = true)]
async fn the_numbers_of_all_partitions_are_summed() {
    let bench = Bench::plain().await;
    bench.schedule(messages("m", 20)).await;
    bench.schedule((0..7).map(|n| due(&format!("due{n}"), 100 * n))).await;
    bench.schedule([due("soon", 30_000), due("minutes", 200_000)]).await;
    bench.bury((0..5).map(|n| message(&format!("dead{n}")))).await;
    bench.schedule([due("flies0", 0), due("flies1", 0)]).await;
    assert_eq!(bench.claim().await.len(), 3, "with that of the time 0");
    bench.until(1000).await;
    let stats = bench.queue.stats("r").await.unwrap();
    assert_eq!((stats.pending, stats.due, stats.unack, stats.dead, stats.retrying), (28, 6, 3, 5, 0));
    assert_eq!((stats.due_within, stats.next_due), ([7, 8, 28, 28], Some(at(100))));
    assert_eq!((overdue(&bench.queue).await, stats.partitions, stats.moving), (900, PARTITIONS, None));
    assert_eq!((stats.paused, stats.pause, stats.window, stats.history), (false, None, None, None));
    assert_eq!((stats.sink.as_deref(), stats.limits_used, stats.waiting_for_flow), (Some("s"), [None, None], None));
    let bytes: u64 = {
        let mut sum = 0;
        for partition in bench.partitions() {
            sum += bench.redis.store.stats(&partition).await.unwrap().bytes;
        }
        sum
    };
    assert!(bytes > 0 && stats.bytes == bytes);
    assert_eq!(bench.queue.now("r").await, Ok(EPOCH + 1000));
    let retry = ClaimEnd::Retry { delay: Duration::from_secs(9), error: String::new(), hold: None };
    assert_eq!(bench.end(bench.claim().await, retry).await, 6);
    let stats = bench.queue.stats("r").await.unwrap();
    assert_eq!((stats.retrying, stats.due, overdue(&bench.queue).await), (6, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_message_in_flight_was_late_until_its_claim() {
    let bench = Bench::plain().await;
    let shown = ShownRoute { lease: Some(Duration::from_mins(1)), ..ShownRoute::default() };
    let queue = Queue::showing(bench.redis.store.clone(), &BTreeMap::from([("r".into(), shown)]), false);
    bench.schedule([due("a", 1000), due("b", 3500)]).await;
    bench.until(3000).await;
    assert_eq!(bench.claim().await.len(), 1);
    bench.until(4000).await;
    assert_eq!(overdue(&queue).await, 2000, "the time in the sink does not count");
    assert_eq!(overdue(&bench.queue).await, 500, "its lease is not known");
    bench.until(13_000).await;
    assert_eq!(overdue(&queue).await, 9500);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_overdue_before_the_window_opens() {
    let bench = Bench::plain().await;
    // The test begins at 22:13:20.
    let window = Window { days: [true; 7], from: 22 * 60 + 14, to: 22 * 60 + 15, zone: TimeZone::UTC };
    let calendar = Calendar::new(vec![window]).unwrap().into();
    let shown = ShownRoute { window: Some(calendar), ..ShownRoute::default() };
    let queue = Queue::showing(bench.redis.store.clone(), &BTreeMap::from([("r".into(), shown)]), false);
    bench.schedule([due("a", 0)]).await;
    for (passed, late, open) in [(30, 0, false), (40, 0, true), (60, 20_000, true), (100, 0, false)] {
        bench.until(1000 * passed).await;
        let is_open = queue.stats("r").await.unwrap().window.unwrap().open;
        assert_eq!((overdue(&queue).await, is_open), (late, open));
    }
}

#[tokio::test(start_paused = true)]
async fn the_fullest_partition_says_how_full_a_route_is() {
    let limits = RouteLimits { messages: Some(60), bytes: Some(60_000), delay: None };
    let bench = Bench::start([RouteSettings { limits, ..route() }]).await;
    let in_partition = |index| ids("m", 100).into_iter().filter(move |id| id.partition(PARTITIONS) == index);
    bench.schedule(in_partition(2).take(4).map(|id| message(id.as_str()))).await;
    bench.schedule(in_partition(2).skip(4).take(1).map(|id| due(id.as_str(), 0))).await;
    bench.schedule(in_partition(1).take(3).map(|id| message(id.as_str()))).await;
    assert_eq!(bench.claim().await.len(), 1);
    let stats = bench.queue.stats("r").await.unwrap();
    let fullest = bench.redis.store.stats(&bench.partitions()[2]).await.unwrap();
    #[expect(clippy::cast_precision_loss, reason = "few bytes")]
    let bytes = fullest.bytes as f64 / 10_000.0;
    assert_eq!(stats.limits_used, [Some(0.5), Some(bytes)]);
    let free = bench.queue.free_capacity("r").await.unwrap().unwrap();
    // A message has up to 64 KiB of metadata, so that half of the limit is the largest one.
    assert_eq!(free, Capacity { messages: (10_000 - fullest.bytes) / 5000, limit: Limit::Bytes });

    let limits = RouteLimits { messages: Some(60), ..RouteLimits::default() };
    let bench = Bench::start([RouteSettings { limits, ..route() }]).await;
    bench.schedule(in_partition(2).take(4).map(|id| message(id.as_str()))).await;
    let free = bench.queue.free_capacity("r").await.unwrap();
    assert_eq!(free, Some(Capacity { messages: 6, limit: Limit::Messages }));
    assert_eq!(Bench::plain().await.queue.free_capacity("r").await, Ok(None));
}

#[tokio::test(start_paused = true)]
async fn a_number_of_pending_messages_is_used_again_while_it_is_new() {
    let bench = Bench::plain().await;
    bench.schedule(messages("m", 10).chain([due("late", 0), due("soon", 500)])).await;
    let pending = async |max_age| bench.queue.pending("r", Duration::from_secs(max_age)).await.unwrap();
    assert_eq!(pending(5).await, 12, "counted");
    bench.queue.stats("r").await.unwrap();
    bench.schedule([message("more")]).await;
    sleep(Duration::from_secs(5)).await;
    let calls = bench.redis.calls();
    assert_eq!((pending(5).await, bench.redis.calls() - calls), (12, 0));
    sleep(Duration::from_millis(1)).await;
    assert_eq!((pending(5).await, bench.redis.calls() - calls), (13, u64::from(PARTITIONS)));
}

#[tokio::test(start_paused = true)]
async fn a_forecast_adds_up_the_partitions() {
    let bench = Bench::plain().await;
    bench.schedule((0..60).map(|n| due(&format!("m{n}"), 100 * n))).await;
    bench.until(1000).await;
    let forecast = bench.queue.forecast("r", None, Duration::from_millis(500), 4).await.unwrap();
    assert_eq!((forecast.now, forecast.overdue, forecast.later), (at(1000), 11, 30 - 1));
    assert_eq!((forecast.counts.iter().sum::<u64>(), forecast.counts.len()), (20, 4));
    let forecast = bench.queue.forecast("r", Some(at(3000)), Duration::from_secs(1), 2).await.unwrap();
    assert_eq!((forecast.now, forecast.overdue + forecast.later + forecast.counts.iter().sum::<u64>()), (at(3000), 60));
}

#[tokio::test(start_paused = true)]
async fn a_route_with_flows_says_how_many_messages_wait_for_theirs() {
    let limits = FlowLimits { rate: None, burst: 1, parallel: Some(1), ordered: false };
    let bench =
        Bench::start([RouteSettings { flow: Some(RouteFlow { key: None, limits }), ..RouteSettings::plain("r", 100) }])
            .await;
    let in_flow = |n: usize| NewMessage {
        metadata: Metadata { flow: Some(format!("f{}", n % 2)), ..Metadata::default() },
        ..due(&n.to_string(), 0)
    };
    bench.schedule((0..6).map(in_flow)).await;
    assert_eq!(bench.claim().await.len(), 2);
    let stats = bench.queue.stats("r").await.unwrap();
    assert_eq!((stats.waiting_for_flow, stats.waiting_flows, stats.due), (Some(4), Some(2), 0));
    let (flows, more) = bench.queue.flows("r", None, 1).await.unwrap();
    assert_eq!((flows.len(), more, flows[0].waiting), (1, true, 2));
    assert_eq!(bench.queue.flow("r", "f1").await.unwrap().in_flight, 1);
    assert_eq!(bench.queue.resume_flow("r", "f0").await, Ok(false));
    assert_eq!(bench.queue.pause_flow("r", "f0", "ops", "").await, Ok(true));
    assert_eq!(bench.queue.pause_flow("r", "f0", "ops", "").await, Ok(false));
    assert_eq!(bench.queue.resume_flow("r", "f0").await, Ok(true));
    let change = FlowChange { parallel: FieldChange::Set(7), ..FlowChange::default() };
    for is_changed in [true, false] {
        assert_eq!(bench.queue.change_flow("r", "f0", change).await, Ok(is_changed));
        assert_eq!(bench.queue.flow("r", "f0").await.unwrap().rules.parallel, Some(7));
    }
    let plain = Bench::plain().await;
    assert_eq!(plain.queue.flow_limits("r"), Err(QueueError::NoFlows("r".to_owned())));
    assert_eq!(plain.queue.stats("r").await.unwrap().waiting_flows, None);
}

#[tokio::test(start_paused = true)]
async fn a_route_that_is_not_configured_is_shown_while_it_holds_messages() {
    let bench = Bench::start([route(), RouteSettings::plain("gone", 100), RouteSettings::plain("wrong", 100)]).await;
    let other = Queue::new(bench.redis.serving([route()]).await, &BTreeMap::new(), false);
    assert_eq!(other.unconfigured().await.unwrap(), []);
    bench.queue.schedule("gone", "api", vec![message("a"), due("b", 0)]).await.unwrap();
    bench.redis.execute(&["SET", "{p:wrong:0/1}:dead", "text"]);
    let found = other.unconfigured().await.unwrap();
    let [(gone, Ok(stats)), (wrong, Err(StoreError::WrongType { .. }))] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&**gone, &**wrong), ("gone", "wrong"));
    assert_eq!((stats.pending, stats.due, stats.sink.as_deref(), &*stats.route), (2, 1, None, "gone"));
    for name in ["a", "b"] {
        bench.queue.cancel("gone", &id(name).into()).await.unwrap();
    }
    bench.redis.execute(&["DEL", "{p:wrong:0/1}:dead"]);
    assert_eq!(other.unconfigured().await.unwrap(), []);
    // A dead letter alone, or a message in flight.
    bench.redis.execute(&["ZADD", "{p:wrong:0/1}:unack", "1", "x"]);
    assert_eq!(other.unconfigured().await.unwrap().len(), 1);
    assert!(bench.queue.bury("gone", vec![(message("a"), String::new())]).await.unwrap().is_empty());
    assert_eq!(other.unconfigured().await.unwrap().len(), 2);
}
