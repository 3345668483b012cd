//! Calls without an answer, and refused for now.

use std::time::Duration;

use futures::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::Instant;

use super::{
    Place,
    producer::{Call, Producer, WAYS, Way},
};

/// `Retry-After` of the API when Redis is down.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A call of each producer over HTTP and in Redis, with its id.
async fn start(environment: &[(&'static str, String)]) -> Vec<(String, Call)> {
    let each = Producer::all().await.iter().flat_map(|producer| WAYS.map(|way| (producer, way)));
    let calls = each.map(async |(producer, way)| {
        let id = producer.id(way);
        (id.clone(), producer.start(environment, way, &["nightly", &id, "0"], b"x").await)
    });
    join_all(calls.collect::<Vec<_>>()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_redis_delays_a_call_and_the_message_is_delivered_once() {
    let mut place = Place::start().await;
    place.redis.kill();
    let started = Instant::now();
    let mut calls = start(&place.environment).await;
    let repeats = calls.iter_mut().map(async |(id, call)| {
        let line = call.repeats().await;
        call.repeats().await;
        if id.contains("Http") {
            assert!(line.contains("503") && started.elapsed() >= RETRY_AFTER, "{:?}: {line}", started.elapsed());
            let seconds: f64 = line.rsplit(' ').nth(1).and_then(|word| word.parse().ok()).expect("seconds");
            assert!(seconds >= RETRY_AFTER.as_secs_f64(), "`Retry-After` is not honoured: {line}");
        }
    });
    join_all(repeats.collect::<Vec<_>>()).await;
    place.redis.restart().await;
    assert_delivered_once(&place, calls, &["scheduled"]).await;
}

/// A call that timed out may have been done.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_an_answer_is_repeated_and_the_message_is_delivered_once() {
    let place = Place::start().await;
    let redis = Pid::from_raw(place.redis.pid().try_into().expect("a process id")).expect("not zero");
    place.punctual.suspend();
    kill_process(redis, Signal::STOP).expect("it is ours");
    let mut calls = start(&place.environment).await;
    join_all(calls.iter_mut().map(|(_, call)| call.repeats()).collect::<Vec<_>>()).await;
    kill_process(redis, Signal::CONT).expect("it is ours");
    place.punctual.resume();
    assert_delivered_once(&place, calls, &["scheduled", "exists", "delivered"]).await;
}

async fn assert_delivered_once(place: &Place, calls: Vec<(String, Call)>, statuses: &[&str]) {
    let mut ids = Vec::new();
    for (id, call) in calls {
        call.end().await.assert_is(statuses, &id);
        ids.push(id);
    }
    ids.sort();
    assert_eq!(place.arrived_ids(ids.len()).await, ids);
    place.assert_drained("nightly").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_gives_up_with_the_last_error() {
    let mut place = Place::start().await;
    place.redis.kill();
    for (id, call) in start(&place.environment_with("PUNCTUAL_GIVE_UP_AFTER", "0.5")).await {
        let ended = call.end().await;
        ended.assert_failed(1, if id.contains("Http") { &["503"] } else { &["schedule: "] });
        assert!(!ended.error.lines().last().is_some_and(|line| line.contains("next attempt")), "{ended:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_route_is_tried_again() {
    let place = Place::start().await;
    let producers = Producer::all().await;
    let Some(first) = producers.first() else { return };
    first.run(&place, Way::Http, &["full", "waits", "3000000"], b"").await.assert_is(&["scheduled"], "waits");
    let environment = place.environment_with("PUNCTUAL_GIVE_UP_AFTER", "6");
    let each = producers.iter().flat_map(|producer| WAYS.map(|way| (producer, way)));
    let calls = each.map(async |(producer, way)| {
        let call = producer.start(&environment, way, &["full", producer.language, "0"], b"").await;
        let ended = call.end().await;
        ended.assert_failed(1, &["limit-messages"]);
        assert!(ended.repeated() > 0, "{ended:#?}");
    });
    join_all(calls.collect::<Vec<_>>()).await;
}
