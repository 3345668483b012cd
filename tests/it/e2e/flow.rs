use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{
    alone,
    client::Client,
    p99,
    payload::{array, message},
};
use crate::support::{
    RedisServer,
    punctual::Punctual,
    receiver::{Receiver, wall_clock},
};

const MESSAGES: usize = 10_000;
/// Messages of one request; one request each `TICK` makes 1,000 messages a second.
const ARRAY: usize = 50;
const TICK: Duration = Duration::from_millis(50);
/// Every so many ticks the messages are posted one by one.
const SINGLES_EVERY: usize = 10;
/// How far ahead they are due, in ms.
const AHEAD: u64 = 1000;
/// A debug build on two busy cores keeps this; the printed number is the one to look at.
const LATENESS_P99: u64 = 250;

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_messages_to_each_sink_arrive_once_on_time_and_unchanged() {
    let _alone = alone().await;
    let redis = RedisServer::start().await;
    let receiver = Receiver::start();
    let punctual = Punctual::start(&format!(
        "redis: {{ url: '{}' }}\n\
         sinks: {{ hook: {{ type: http, url: '{}' }}, jobs: {{ type: redis_list, key: jobs }} }}\n\
         routes: {{ web: {{ sink: hook }}, list: {{ sink: jobs }} }}\n",
        redis.url(),
        receiver.url()
    ))
    .await;
    let client = Client::of(&punctual);
    let listed = tokio::spawn(take(redis.connection().await, MESSAGES));

    let (start, start_wall) = (Instant::now(), wall_clock());
    let mut expected = HashMap::new();
    let mut posts = JoinSet::new();
    for (tick, first) in (0..MESSAGES).step_by(ARRAY).enumerate() {
        sleep_until(start + TICK * u32::try_from(tick).unwrap()).await;
        for route in ["web", "list"] {
            let batch: Vec<_> =
                (first..first + ARRAY).map(|n| message(route, n, start_wall + AHEAD + n as u64)).collect();
            let bodies = if tick % SINGLES_EVERY == 0 {
                batch.iter().map(|message| message.json.clone()).collect()
            } else {
                vec![array(&batch)]
            };
            for body in bodies {
                let client = client.clone();
                posts.spawn(async move { client.schedule(route, &body).await });
            }
            expected.extend(batch.into_iter().map(|message| (message.id, (message.due, message.payload))));
        }
    }
    while let Some(posted) = posts.join_next().await {
        posted.expect("every post is accepted");
    }

    receiver.wait_for(MESSAGES, Duration::from_secs(30)).await;
    let listed = listed.await.expect("the list was filled");
    client.drained("web", Duration::from_secs(5)).await;
    client.drained("list", Duration::from_secs(5)).await;

    let requests = receiver.requests();
    let ids: HashSet<&str> = requests.iter().map(|request| request.id()).collect();
    assert_eq!((requests.len(), ids.len()), (MESSAGES, MESSAGES), "each exactly once");
    for request in &requests {
        let (due, payload) = &expected[request.id()];
        assert_eq!(request.body, payload, "{}", request.id());
        assert_eq!((request.due(), request.attempt()), (*due, 1), "{}", request.id());
        assert!(request.arrived >= *due, "{} came {} ms early", request.id(), due - request.arrived);
    }

    let mut by_payload: HashMap<&[u8], u64> = expected
        .iter()
        .filter(|(id, _)| id.starts_with("list"))
        .map(|(_, (due, payload))| (&payload[..], *due))
        .collect();
    let mut list_lateness = Vec::new();
    for (value, taken) in &listed {
        let due = by_payload.remove(&value[..]).expect("as it was sent, and once");
        assert!(*taken >= due, "{} ms early", due - taken);
        list_lateness.push(taken - due);
    }
    assert!(by_payload.is_empty(), "{} did not come", by_payload.len());
    let left: u64 = redis::cmd("LLEN").arg("jobs").query_async(&mut redis.connection().await).await.unwrap();
    assert_eq!(left, 0, "no more than was scheduled");

    let metrics = client.metrics().await;
    for route in ["web", "list"] {
        let label = format!("route=\"{route}\"");
        let total = |name: &str| metrics.sum(&format!("punctual_messages_{name}_total"), &[&label]);
        assert_eq!((total("scheduled"), total("delivered")), (10_000.0, 10_000.0), "{route}");
        for none in ["retried", "dead", "cancelled", "redriven", "purged", "released"] {
            assert_eq!(total(none), 0.0, "{route} {none}");
        }
        assert_eq!(metrics.sum("punctual_delivery_lateness_seconds_count", &[&label]), 10_000.0);
        assert_eq!(metrics.sum("punctual_in_flight_messages", &[&label]), 0.0);
    }

    let web_lateness = p99(requests.iter().map(|request| request.arrived - request.due()).collect());
    let list_lateness = p99(list_lateness);
    let histogram =
        |route: &str| metrics.p99("punctual_delivery_lateness_seconds", &format!("route=\"{route}\"")) * 1e3;
    println!(
        "flow: p99 lateness web {web_lateness} ms (histogram {:.1}), list {list_lateness} ms (histogram {:.1})",
        histogram("web"),
        histogram("list")
    );
    assert!(web_lateness < LATENESS_P99 && list_lateness < LATENESS_P99);
    assert!(histogram("web") < LATENESS_P99 as f64 && histogram("list") < LATENESS_P99 as f64);
}

/// What comes into the list, with the time in epoch milliseconds.
async fn take(mut connection: redis::aio::MultiplexedConnection, count: usize) -> Vec<(Vec<u8>, u64)> {
    connection.set_response_timeout(Duration::from_secs(40));
    let mut taken = Vec::new();
    while taken.len() < count {
        let (_, value): (String, Vec<u8>) =
            redis::cmd("BLPOP").arg("jobs").arg(30).query_async(&mut connection).await.expect("more within 30 s");
        taken.push((value, wall_clock()));
    }
    taken
}
