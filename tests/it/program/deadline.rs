//! Calls that take longer than the request timeout.

use std::time::Duration;

use super::{client::Client, redis_outage::configuration};
use crate::support::{
    RedisServer,
    proxy::{Mode, Proxy},
    punctual::Punctual,
    receiver::{Behaviour, Receiver},
};

/// Five calls of the script that redrives.
const MESSAGES: usize = 5000;

#[tokio::test(flavor = "multi_thread")]
async fn a_redrive_of_many_ends_in_time_and_the_next_goes_on() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    receiver.behave(Behaviour::Status(400));
    let proxy = Proxy::start(redis.port());
    let punctual = Punctual::start(&configuration(&proxy.redis_url(), &receiver)).await;
    let client = Client::of(&punctual);
    for part in 0..MESSAGES / 1000 {
        let messages: Vec<_> = (0..1000).map(|n| format!(r#"{{"id":"m{part}-{n}","payload":""}}"#)).collect();
        client.schedule("web", &format!("[{}]", messages.join(","))).await;
    }
    let max_wait = Duration::from_mins(1);
    assert_eq!(client.drained("web", max_wait).await["dead"], MESSAGES);
    assert_eq!(client.call("POST", "/v1/routes/web/pause", "").await.status, 204);
    // The request has two seconds, and each call of a script takes more than half of one.
    proxy.set(Mode::Delay(Duration::from_millis(300))).await;
    let redriven = client.call("POST", "/v1/routes/web/dead/redrive", r#"{"all":true}"#).await;
    assert_eq!((redriven.status, &redriven.json["more"]), (200, &true.into()), "{}", redriven.text);
    let left = redis_dead(&redis).await;
    assert_eq!(redriven.json["count"], MESSAGES - left, "it reports what it did");
    assert_ne!(left, 0, "it takes longer than the request");
    proxy.set(Mode::Pass).await;
    let body = serde_json::json!({ "all": true, "cursor": redriven.json["cursor"] });
    let rest = client.call("POST", "/v1/routes/web/dead/redrive", &body.to_string()).await;
    assert_eq!((&rest.json["count"], &rest.json["more"]), (&left.into(), &false.into()), "{}", rest.text);
    assert_eq!(client.stats("web").await["pending"], MESSAGES);
}

async fn redis_dead(redis: &RedisServer) -> usize {
    let mut count = redis::cmd("ZCARD");
    count.arg("{punctual:web:0/1}:dead").query_async(&mut redis.connection().await).await.expect("a number")
}
