use std::{collections::HashMap, time::Duration};

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
    scale::rounds,
};

/// Messages of one request; one request each `TICK` makes 1,000 messages a second.
const ARRAY: usize = 50;
const TICK: Duration = Duration::from_millis(50);
/// Messages are posted one by one once in this number of ticks.
const SINGLES_EVERY: usize = 10;
/// How far ahead they are due, in ms.
const AHEAD: u64 = 1000;
/// A debug build on two busy cores keeps this; the printed number is the one that counts.
const LATENESS_P99: u64 = 250;
const MAX_WAIT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn messages_arrive_at_an_endpoint_once_in_time_and_unchanged() {
    let _alone = alone().await;
    let world = World::start().await;
    let expected = world.post_all("web").await;
    world.receiver.wait_for(messages(), MAX_WAIT).await;
    world.client.drained("web", MAX_WAIT).await;
    let requests = world.receiver.requests();
    for request in &requests {
        let (id, due) = &expected[&request.body[..]];
        assert_eq!((request.id(), request.due(), request.attempt()), (&**id, *due, 1));
    }
    let arrivals = requests.into_iter().map(|request| (request.body.to_vec(), request.arrived)).collect();
    world.judge("web", expected, arrivals).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_arrive_in_a_list_once_in_time_and_unchanged() {
    let _alone = alone().await;
    let world = World::start().await;
    let taking = tokio::spawn(take(world.redis.connection().await, messages()));
    let expected = world.post_all("list").await;
    let arrivals = taking.await.expect("the list was filled");
    world.client.drained("list", MAX_WAIT).await;
    let left: u64 = redis::cmd("LLEN").arg("jobs").query_async(&mut world.redis.connection().await).await.unwrap();
    assert_eq!(left, 0, "no more than was scheduled");
    world.judge("list", expected, arrivals).await;
}

/// At 1,000 a second: three thousand, too, are more than a route has in flight, and enough for a p99.
fn messages() -> usize {
    rounds(3000, 10_000)
}

/// Id and due time by payload.
type Expected = HashMap<Vec<u8>, (String, u64)>;

struct World {
    redis: RedisServer,
    receiver: Receiver,
    _punctual: Punctual,
    client: Client,
}

impl World {
    async fn start() -> Self {
        let (redis, receiver) = (RedisServer::start().await, Receiver::start());
        let punctual = Punctual::start(&format!(
            "redis: {{ url: '{}' }}\n\
             sinks: {{ hook: {{ type: http, url: '{}' }}, jobs: {{ type: redis_list, key: jobs }} }}\n\
             routes: {{ web: {{ sink: hook }}, list: {{ sink: jobs }} }}\n",
            redis.url(),
            receiver.url()
        ))
        .await;
        let client = Client::of(&punctual);
        Self { redis, receiver, _punctual: punctual, client }
    }

    /// Evenly, over the same time in which they are due.
    async fn post_all(&self, route: &'static str) -> Expected {
        let (start, start_wall) = (Instant::now(), wall_clock());
        let mut expected = HashMap::new();
        let mut posts = JoinSet::new();
        for (tick, first) in (0..messages()).step_by(ARRAY).enumerate() {
            sleep_until(start + TICK * u32::try_from(tick).unwrap()).await;
            let batch: Vec<_> =
                (first..first + ARRAY).map(|n| message(route, n, start_wall + AHEAD + n as u64)).collect();
            let bodies = if tick % SINGLES_EVERY == 0 {
                batch.iter().map(|message| message.json.clone()).collect()
            } else {
                vec![array(&batch)]
            };
            for body in bodies {
                let client = self.client.clone();
                posts.spawn(async move { client.schedule(route, &body).await });
            }
            expected.extend(batch.into_iter().map(|message| (message.payload, (message.id, message.due))));
        }
        while let Some(posted) = posts.join_next().await {
            posted.expect("every post is accepted");
        }
        assert_eq!(expected.len(), messages());
        expected
    }

    /// `arrivals`: payloads with their time.
    async fn judge(&self, route: &str, mut expected: Expected, arrivals: Vec<(Vec<u8>, u64)>) {
        let mut lateness = Vec::new();
        for (payload, arrived) in arrivals {
            let (id, due) = expected.remove(&payload).expect("as it was sent, and once");
            assert!(arrived >= due, "{id} came {} ms early", due - arrived);
            lateness.push(arrived - due);
        }
        assert!(expected.is_empty(), "{} did not come", expected.len());

        let metrics = self.client.metrics().await;
        let label = format!("route=\"{route}\"");
        let total = |name: &str| metrics.sum(&format!("punctual_messages_{name}_total"), &[&label]);
        let count = messages() as u64;
        assert_eq!((total("scheduled"), total("delivered")), (count, count));
        for none in ["retried", "dead", "cancelled", "redriven", "purged", "released"] {
            assert_eq!(total(none), 0, "{none}");
        }
        assert_eq!(metrics.sum("punctual_delivery_lateness_seconds_count", &[&label]), count);
        assert_eq!(metrics.sum("punctual_in_flight_messages", &[&label]), 0);

        let (seen, reported) = (p99(lateness), metrics.p99("punctual_delivery_lateness_seconds", &label) * 1e3);
        println!("flow: {route}: p99 lateness {seen} ms as seen, {reported:.0} ms by the histogram");
        assert!(seen < LATENESS_P99, "{seen} ms");
        assert!(reported > 0.0 && reported < 2.0 * f64::from(u32::try_from(LATENESS_P99).unwrap()), "{reported} ms");
    }
}

/// Takes the elements of the list, with the times in epoch milliseconds at which they came.
async fn take(mut connection: redis::aio::MultiplexedConnection, count: usize) -> Vec<(Vec<u8>, u64)> {
    connection.set_response_timeout(MAX_WAIT * 2);
    let mut taken = Vec::new();
    while taken.len() < count {
        let (_, value): (String, Vec<u8>) = redis::cmd("BLPOP")
            .arg("jobs")
            .arg(MAX_WAIT.as_secs())
            .query_async(&mut connection)
            .await
            .expect("more within the time");
        taken.push((value, wall_clock()));
    }
    taken
}
