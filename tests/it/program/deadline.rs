//! Calls that take longer than the request timeout.

use std::time::Duration;

use super::{client::Client, eventually, redis_outage::configuration};
use crate::support::{
    RedisServer,
    proxy::{Mode, Proxy},
    punctual::Punctual,
    receiver::{Behaviour, Receiver},
};

/// Five calls of the script that redrives.
const MESSAGES: usize = 5000;

#[tokio::test(flavor = "multi_thread")]
async fn a_redrive_that_is_answered_503_goes_on_to_its_end() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    receiver.behave(Behaviour::Status(400));
    let proxy = Proxy::start(redis.port());
    let punctual = Punctual::start(&configuration(&proxy.redis_url(), &receiver)).await;
    let client = Client::of(&punctual);
    for part in 0..MESSAGES / 1000 {
        let messages: Vec<_> = (0..1000).map(|n| format!(r#"{{"id":"m{part}-{n}","payload":""}}"#)).collect();
        client.schedule("web", &format!("[{}]", messages.join(","))).await;
    }
    let patience = Duration::from_mins(1);
    assert_eq!(client.drained("web", patience).await["dead"], MESSAGES);
    assert_eq!(client.call("POST", "/v1/routes/web/pause", "").await.status, 204);
    // The request has two seconds, and each call of a script takes one.
    proxy.set(Mode::Delay(Duration::from_millis(500))).await;
    client.call("POST", "/v1/routes/web/dead/redrive", "").await.problem(503);
    assert_ne!(redis_dead(&redis).await, 0, "it takes longer than the request");
    eventually("all are redriven", Duration::from_secs(20), async || (redis_dead(&redis).await == 0).then_some(()))
        .await;
    proxy.set(Mode::Pass).await;
    assert_eq!(client.stats("web").await["pending"], MESSAGES);
}

async fn redis_dead(redis: &RedisServer) -> usize {
    let mut count = redis::cmd("ZCARD");
    count.arg("{punctual:web:0}:dead").query_async(&mut redis.connection().await).await.expect("a number")
}
