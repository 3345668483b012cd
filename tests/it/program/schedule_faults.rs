//! Recurring schedules, after keys in Redis were deleted or hold values of another type.

use std::{collections::BTreeSet, time::Duration};

use serde_json::json;

use super::{
    client::Client,
    eventually,
    schedules::{MAX_WAIT, configuration, times},
};
use crate::support::{
    RedisServer,
    punctual::Punctual,
    receiver::{Behaviour, Receiver},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_route_with_keys_of_another_type_stops_no_schedule_of_others() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let mut connection = redis.connection().await;
    let key = "{punctual:listed:0/1}:schedules";
    let () = redis::cmd("SET").arg(key).arg("foreign").query_async(&mut connection).await.expect("set");
    let schedules = json!({ "ours": { "route": "hooks", "every": "1s", "payload": "x" } });
    let punctual = Punctual::start(&configuration(&redis, &receiver, &schedules).to_string()).await;
    let client = Client::of(&punctual);
    receiver.wait_for(1, MAX_WAIT).await;
    let body = |every: &str| json!({ "route": "hooks", "every": every, "payload": "x" }).to_string();
    let path = "/v1/schedules/theirs";
    for (method, path, body, status) in [
        ("PUT", path, body("1h"), 201),
        ("PUT", path, body("2h"), 200),
        ("GET", path, String::new(), 200),
        ("POST", "/v1/schedules/theirs/pause", String::new(), 204),
        ("DELETE", path, String::new(), 204),
        // It could be on the other route.
        ("GET", path, String::new(), 500),
        ("PUT", path, json!({ "route": "listed", "every": "1h", "payload": "x" }).to_string(), 500),
        ("PUT", path, body("1h"), 201),
    ] {
        let answer = client.call(method, path, &body).await;
        assert_eq!(answer.status, status, "{method} {path} {body}: {}", answer.json);
    }
    let value: String = redis::cmd("GET").arg(key).query_async(&mut connection).await.expect("a string");
    assert_eq!(value, "foreign");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_deleted_in_flight_repeats_no_occurrence() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    receiver.behave(Behaviour::Delay(Duration::from_millis(500)));
    let schedules = json!({ "bare": { "route": "hooks", "every": "1s", "payload": "x", "missed": { "all": 1000 } } });
    let mut text = configuration(&redis, &receiver, &schedules);
    text["routes"]["hooks"]["partitions"] = 1.into();
    let _punctual = Punctual::start(&text.to_string()).await;
    receiver.wait_for(2, MAX_WAIT).await;
    let messages = "{punctual:hooks:0/1}:messages";
    let deleted: u64 = redis::cmd("HDEL")
        .arg(messages)
        .arg("bare@")
        .query_async(&mut redis.connection().await)
        .await
        .expect("deleted");
    assert_eq!(deleted, 1);
    let found = times(&receiver.wait_for(6, MAX_WAIT).await);
    let distinct: BTreeSet<_> = found["bare"].iter().collect();
    assert!(found["bare"].is_sorted() && distinct.len() == found["bare"].len(), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_that_lost_its_message_is_set_again_at_the_next_start() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let mut punctual = Punctual::start(&configuration(&redis, &receiver, &json!({})).to_string()).await;
    let client = Client::of(&punctual);
    let body = r#"{"route":"listed","every":"1s","payload":"x"}"#;
    assert_eq!(client.call("PUT", "/v1/schedules/lost", body).await.status, 201);
    punctual.terminate().await;
    let mut connection = redis.connection().await;
    let tag = "{punctual:listed:0/1}";
    let () = redis::cmd("DEL").arg(format!("{tag}:pending")).query_async(&mut connection).await.expect("deleted");
    let () = redis::cmd("DEL").arg(format!("{tag}:messages")).query_async(&mut connection).await.expect("deleted");
    punctual.restart().await;
    eventually("an occurrence", MAX_WAIT, async || {
        let length: u64 = redis::cmd("LLEN").arg("done").query_async(&mut connection.clone()).await.expect("a list");
        (length >= 2).then_some(())
    })
    .await;
}
