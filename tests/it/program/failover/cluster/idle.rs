//! What an idle instance asks of each primary.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::sleep;

use crate::{
    program::{alone, idle::commands},
    support::{
        cluster::ClusterRedis,
        punctual::Punctual,
        receiver::Receiver,
        scale::{rounds, seconds},
    },
};

const ROUTES: u32 = 10;
const PARTITIONS: u32 = 6;

/// `max_sleep`, after which each route polls: in the long run the default.
fn max_sleep() -> Duration {
    seconds(10, 30)
}

/// How long it is watched, and how many commands each primary may get in this time.
fn bound() -> (Duration, usize) {
    // In the plain run as many as a single server: a poll of each route, and five others. By default one in two seconds.
    rounds((Duration::from_secs(10), 15), (Duration::from_secs(66), 33))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_instance_hardly_polls_any_primary() {
    let _alone = alone().await;
    let (redis, receiver) = (ClusterRedis::start().await, Receiver::start());
    let routes: Vec<String> =
        (0..ROUTES).map(|n| format!("route-{n}: {{ sink: hook, partitions: {PARTITIONS} }}")).collect();
    let _punctual = Punctual::start(&format!(
        "max_sleep: {}s\nredis: {{ {} }}\nsinks: {{ hook: {{ type: http, url: '{}' }} }}\nroutes: {{ {} }}\n",
        max_sleep().as_secs(),
        redis.setting(),
        receiver.url(),
        routes.join(", ")
    ))
    .await;
    // What the start set off is over.
    sleep(Duration::from_secs(2)).await;
    let (time, most) = bound();
    let primaries = redis.primaries().await;
    let seen = join_all(primaries.iter().map(|place| commands(redis.server(*place), time))).await;
    for (place, commands) in primaries.iter().zip(&seen) {
        println!("cluster: idle: primary {place}: {} commands in {time:?}", commands.len());
    }
    for commands in &seen {
        assert!(commands.len() <= most, "{} commands: {commands:#?}", commands.len());
    }
    let seen = seen.concat();
    for route in 0..ROUTES {
        for number in (0..PARTITIONS).map(|index| PARTITIONS * (PARTITIONS - 1) / 2 + index) {
            let pending = format!("{{punctual:route-{route}:{number}}}:pending");
            assert!(seen.iter().any(|line| line.contains(&pending)), "no poll of {pending}");
        }
    }
}
