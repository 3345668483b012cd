//! Limits of a route and of a token.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use punctual::{
    config::{AuthConfig, Right, TokenConfig, TokenDigest},
    message::RouteLimits,
    store::{ClaimEnd, Partition, Store},
};
use redis::{RedisResult, aio::MultiplexedConnection};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{Answer, ApiServer, Setup, all, noise};

const PATH: &str = "/v1/routes/a/messages";

async fn limited(limits: RouteLimits) -> ApiServer {
    let server = ApiServer::start_with(Setup { limits, ..Setup::default() }).await;
    server.store.register().await.expect("nothing is registered yet");
    server
}

fn messages(most: u64) -> RouteLimits {
    RouteLimits { messages: Some(most), ..RouteLimits::default() }
}

async fn held(server: &ApiServer, route: &str) -> u64 {
    let stats = server.call("GET", &format!("/v1/routes/{route}"), "").await.json;
    stats["pending"].as_u64().unwrap() + stats["unack"].as_u64().unwrap()
}

async fn produce(connection: &mut MultiplexedConnection, id: &str, when: &str, options: &str) -> RedisResult<Value> {
    let (status, ..): (String, String, u64) = redis::cmd("EVAL")
        .arg(include_str!("../../../lua/produce.lua"))
        .arg(&["1", "{punctual:a:0/1}:pending", "1", id, when, "x", options])
        .query_async(connection)
        .await?;
    Ok(status.into())
}

fn statuses(answer: &Answer) -> Vec<&str> {
    answer.json["results"].as_array().expect("a batch").iter().map(|one| one["status"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_full_route_takes_no_message_by_any_way_in_until_one_is_removed() {
    let server = limited(messages(3)).await;
    let later = |id: &str| json!({"id": id, "payload": "x", "delay": "1h"});
    let batch = json!([later("1"), later("2")]).to_string();
    assert_eq!(statuses(&server.call("POST", PATH, &batch).await), ["scheduled", "scheduled"]);
    let batch = json!([later("2"), later("3"), later("4"), later("5"), later("1")]).to_string();
    let answer = server.call("POST", PATH, &batch).await;
    assert_eq!(statuses(&answer), ["exists", "scheduled", "limit_messages", "limit_messages", "exists"]);

    let refused = server.call("POST", PATH, &later("4").to_string()).await;
    assert_eq!((refused.problem(429), &refused.headers["retry-after"]), ("limit-messages", &"1".parse().unwrap()));
    let refused = server.call("POST", PATH, &json!([later("4"), later("5")]).to_string()).await;
    assert_eq!(refused.problem(429), "limit-messages", "none of a batch was written");
    assert_eq!(server.call("POST", "/v1/routes/a/raw?id=4", "x").await.problem(429), "limit-messages");
    let mut connection = server.redis.connection().await;
    let error = produce(&mut connection, "4", "+1000", "").await.expect_err("full");
    assert!(error.to_string().contains("limit-messages"), "{error}");
    assert_eq!(server.ids_in("a", "pending").await, ["1", "2", "3"]);

    // Calls that add no message are accepted.
    let replace = json!({"id": "1", "payload": "other", "delay": "2h", "on_conflict": "replace"}).to_string();
    assert_eq!(server.call("POST", PATH, &replace).await.json["status"], "replaced");
    assert_eq!(produce(&mut connection, "2", "+0", r#"{"on_conflict":"replace"}"#).await.unwrap(), "replaced");
    // In flight it still counts, and dead it does not.
    let (lease, _) = server.claim("a").await.remove(0);
    assert_eq!(server.call("POST", PATH, &later("4").to_string()).await.problem(429), "limit-messages");
    let partition = Partition { route: "a".into(), index: 0, count: 1 };
    let buried = ClaimEnd::Bury { reason: punctual::message::DeadReason::Rejected, error: "HTTP 400".into() };
    server.store.settle(&partition, &all([lease], &buried)).await.unwrap();
    assert_eq!(produce(&mut connection, "4", "+3600000", "").await.unwrap(), "scheduled");
    let revive = json!({"id": "2", "payload": "x", "on_conflict": "replace"}).to_string();
    assert_eq!(server.call("POST", PATH, &revive).await.problem(429), "limit-messages");
    assert_eq!(server.call("DELETE", &format!("{PATH}/3"), "").await.status, 204);
    server.schedule("a", &later("6").to_string()).await;
    assert_eq!(server.call("GET", "/v1/routes/a", "").await.json["dead"], 1);
}

#[tokio::test]
async fn bytes_are_those_of_what_waits_and_what_shrinks_always_passes() {
    let server = limited(RouteLimits { bytes: Some(3000), ..RouteLimits::default() }).await;
    let message =
        |id: &str, size: usize| json!({"id": id, "payload_base64": BASE64_STANDARD.encode(noise(size)), "delay": "1h"});
    let bytes = async || server.call("GET", "/v1/routes/a", "").await.json["bytes"].as_u64().unwrap();
    server.schedule("a", &message("large", 2000).to_string()).await;
    let first = bytes().await;
    assert!((2000..2100).contains(&first), "{first}");
    let answer = server.call("POST", PATH, &json!([message("too", 1000), message("small", 500)]).to_string()).await;
    assert_eq!(statuses(&answer), ["limit_bytes", "scheduled"]);
    assert_eq!(server.call("POST", PATH, &message("too", 1000).to_string()).await.problem(429), "limit-bytes");
    let replaced = |size: usize| {
        let mut message = message("large", size);
        message["on_conflict"] = "replace".into();
        message.to_string()
    };
    assert_eq!(server.call("POST", PATH, &replaced(2500)).await.problem(429), "limit-bytes");
    assert_eq!(server.call("POST", PATH, &replaced(100)).await.json["status"], "replaced");
    server.schedule("a", &message("too", 1000).to_string()).await;
    for id in ["large", "small", "too"] {
        assert_eq!(server.call("DELETE", &format!("{PATH}/{id}"), "").await.status, 204);
    }
    assert_eq!(bytes().await, 0);
    let left: bool = redis::cmd("EXISTS")
        .arg("{punctual:a:0/1}:bytes")
        .query_async(&mut server.redis.connection().await)
        .await
        .unwrap();
    assert!(!left, "an empty partition has no counter");
}

#[tokio::test]
async fn a_longer_delay_is_refused_when_scheduled_and_when_moved() {
    let server = limited(RouteLimits { delay: Some(Duration::from_hours(1)), ..RouteLimits::default() }).await;
    server.schedule("a", r#"{"id":"1","payload":"x","delay":"1h"}"#).await;
    for late in
        [json!({"id":"2","payload":"x","delay":3_600_001}), json!({"payload":"x","deliver_at":"9999-12-31T23:59:59Z"})]
    {
        let refused = server.call("POST", PATH, &late.to_string()).await;
        assert_eq!(refused.problem(429), "limit-delay");
        assert!(!refused.headers.contains_key("retry-after"), "waiting does not help");
    }
    let moved = server.call("PATCH", &format!("{PATH}/1"), r#"{"delay":"61m"}"#).await;
    assert_eq!(moved.problem(429), "limit-delay");
    assert_eq!(server.call("PATCH", &format!("{PATH}/1"), r#"{"delay":"59m"}"#).await.status, 200);
    let mut connection = server.redis.connection().await;
    let error = produce(&mut connection, "2", "+3600001", "").await.expect_err("too long");
    assert!(error.to_string().contains("limit-delay"), "{error}");
    assert_eq!(server.ids_in("a", "pending").await, ["1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_producers_fill_a_route_exactly_to_its_limit() {
    const MOST: u64 = 1000;
    let server = std::sync::Arc::new(limited(messages(MOST)).await);
    for route in ["a", "b"] {
        let mut producers = JoinSet::new();
        for producer in 0..8 {
            let server = server.clone();
            producers.spawn(async move {
                let mut scheduled = 0;
                for batch in 0..10 {
                    let message = |n| json!({"id": format!("{producer}-{batch}-{n}"), "payload": "x", "delay": "1h"});
                    let body = Value::from((0..50).map(message).collect::<Vec<_>>()).to_string();
                    let answer = server.call("POST", &format!("/v1/routes/{route}/messages"), &body).await;
                    if answer.status == 200 {
                        scheduled += statuses(&answer).iter().filter(|status| **status == "scheduled").count() as u64;
                    } else {
                        assert_eq!(answer.problem(429), "limit-messages");
                    }
                }
                scheduled
            });
        }
        let scheduled: u64 = producers.join_all().await.into_iter().sum();
        assert_eq!(scheduled, held(&server, route).await, "{route}: each answer is true");
        // 4,000 ids fill both halves of the other.
        assert_eq!(scheduled, MOST, "{route}");
    }
}

#[tokio::test]
async fn the_rate_limit_of_a_token_holds_and_leaves_other_tokens_alone() {
    let token = |token: &str, messages_per_second| TokenConfig {
        name: token.to_owned(),
        digest: TokenDigest::of(token),
        rights: vec![Right::Schedule, Right::Read],
        routes: vec!["*".into()],
        messages_per_second,
    };
    let tokens = vec![token("slow", Some(5)), token("free", None)];
    let auth = Some(AuthConfig { tokens, open_metrics: false });
    let server = ApiServer::start_with(Setup { auth, ..Setup::default() }).await;
    server.store.register().await.expect("registered");
    let post = async |token: &str, path: &str, body: String| {
        crate::support::answer(server.request("POST", path).bearer_auth(token).body(body)).await
    };
    let batch = |count| Value::from(vec![json!({"payload": "x", "delay": "1h"}); count]).to_string();
    let one = || json!({"payload": "x", "delay": "1h"}).to_string();
    // A request that is refused for its content costs nothing.
    assert_eq!(post("slow", PATH, "[{}]".to_owned()).await.status, 422);
    assert_eq!(post("slow", PATH, batch(20)).await.status, 200, "larger than the bucket, which is full");
    for (path, body) in [(PATH, one()), (PATH, batch(2)), ("/v1/routes/a/raw", "x".to_owned())] {
        let refused = post("slow", path, body).await;
        assert_eq!(refused.problem(429), "limit-rate");
        let wait: u64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((3..=4).contains(&wait), "20 messages take 4 s: {wait}");
    }
    assert_eq!(post("free", PATH, batch(1000)).await.status, 200);
    assert_eq!(server.request("GET", "/v1/routes/a").bearer_auth("slow").send().await.unwrap().status(), 200);
    assert_eq!(server.ids_in("a", "pending").await.len(), 1020);
}
