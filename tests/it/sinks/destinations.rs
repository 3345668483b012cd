//! Destinations that messages name, through the whole program: each message where it belongs, and what is not
//! allowed dead, with the reason.

use std::time::Duration;

use redis::AsyncCommands;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::support::{RedisServer, http, punctual::Punctual, receiver::Receiver};

/// Far beyond the time of any step: only a test that fails waits for all of it.
const MAX_WAIT: Duration = Duration::from_secs(20);

/// Schedules messages, `(id, key)`, which are due at once.
async fn schedule(punctual: &Punctual, route: &str, messages: &[(&str, &str)]) {
    let message = |(id, key): &(&str, &str)| json!({ "id": id, "key": key, "payload": id });
    let body: Vec<Value> = messages.iter().map(message).collect();
    let url = punctual.url(&format!("/v1/routes/{route}/messages"));
    let request = http::client().post(url).header("Content-Type", "application/json");
    let answer = request.body(serde_json::to_string(&body).unwrap()).send().await.unwrap();
    let status = answer.status();
    assert_eq!(status, 200, "{}", answer.text().await.unwrap());
}

async fn get(punctual: &Punctual, path: &str) -> Value {
    let answer = http::client().get(punctual.url(path)).send().await.unwrap();
    serde_json::from_str(&answer.text().await.unwrap()).unwrap()
}

/// Waits until nothing is in flight. Returns the dead by id, with their last error.
async fn dead(punctual: &Punctual, route: &str) -> Vec<(String, String)> {
    let deadline = Instant::now() + MAX_WAIT;
    loop {
        let counts = get(punctual, &format!("/v1/routes/{route}")).await;
        if counts["pending"] == 0 && counts["unack"] == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "{counts}");
        sleep(Duration::from_millis(20)).await;
    }
    let page = get(punctual, &format!("/v1/routes/{route}/messages?state=dead")).await;
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let mut dead: Vec<_> = page["messages"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|message| (text(&message["id"]), text(&message["last_error"])))
        .collect();
    dead.sort();
    dead
}

#[tokio::test]
async fn a_key_names_the_path_of_the_request_within_what_is_allowed() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let configuration = format!(
        "redis: {{ url: '{}' }}
sinks:
  hook:
    type: http
    url: '{}/{{key}}?from={{route}}'
    allow: ['/due/a*?from=hooks', '/due/b%2Fc?from=*']
  paths:
    type: http
    url: '{}/{{key}}'
    allow: ['/due/**']
    allow_slashes: true
routes: {{ hooks: {{ sink: hook }}, paths: {{ sink: paths }} }}",
        redis.url(),
        receiver.url(),
        receiver.url()
    );
    let punctual = Punctual::start(&configuration).await;
    let messages = [("a1", "a?x#y"), ("a2", "a/../b"), ("b1", "b/c"), ("b2", "b"), ("c1", ".."), ("c2", "a b")];
    schedule(&punctual, "hooks", &messages).await;
    assert_eq!(
        dead(&punctual, "hooks").await,
        [
            ("a2", "rejected: its `key` has a segment `.` or `..`, and stands in a path"),
            (
                "b1",
                "rejected: its `key` has a `/` or `\\`, and stands in a path: the sink does not say `allow_slashes: true`",
            ),
            ("b2", "rejected: the path `/due/b` with its query is not allowed: no pattern of `allow` matches"),
            ("c1", "rejected: its `key` has a segment `.` or `..`, and stands in a path"),
        ]
        .map(|(id, error)| (id.to_owned(), error.to_owned()))
    );
    schedule(&punctual, "paths", &[("d1", "x/admin"), ("d2", "x/../admin")]).await;
    assert_eq!(dead(&punctual, "paths").await.len(), 1);
    let mut paths: Vec<_> = receiver.requests().iter().map(|request| request.path.clone()).collect();
    paths.sort();
    assert_eq!(paths, ["/due/a%20b?from=hooks", "/due/a%3Fx%23y?from=hooks", "/due/x%2Fadmin"]);
}

#[tokio::test]
async fn a_key_names_the_list_on_the_same_redis_and_on_another() {
    let (redis, other) = (RedisServer::start().await, RedisServer::start().await);
    let configuration = format!(
        "redis: {{ url: '{}' }}
sinks:
  same: {{ type: redis_list, key: '{{{{jobs}}}}:{{key}}', allow: ['{{jobs}}:a*', '{{jobs}}:wrong'] }}
  another: {{ type: redis_list, url: '{}', key: '{{{{jobs}}}}:{{key}}', allow: ['{{jobs}}:a*', '{{jobs}}:wrong'] }}
route_defaults: {{ retry: {{ max_attempts: 1 }} }}
routes: {{ same: {{ sink: same }}, another: {{ sink: another }} }}",
        redis.url(),
        other.url()
    );
    let punctual = Punctual::start(&configuration).await;
    for (route, server) in [("same", &redis), ("another", &other)] {
        let mut connection = server.connection().await;
        let () = connection.set("{jobs}:wrong", "foreign").await.unwrap();
        let messages = [("1", "a"), ("2", "wrong"), ("3", "a2"), ("4", "a"), ("5", "b"), ("6", "a/b"), ("7", "a2")];
        schedule(&punctual, route, &messages).await;
        let dead = dead(&punctual, route).await;
        let ids: Vec<_> = dead.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(ids, ["2", "5", "6"], "{route}: {dead:?}");
        assert!(dead[0].1.contains("`{jobs}:wrong`"), "{route}: {dead:?}");
        assert_eq!(dead[1].1, "rejected: the key `{jobs}:b` is not allowed: no pattern of `allow` matches");
        for (list, expected) in [("{jobs}:a", ["1", "4"]), ("{jobs}:a2", ["3", "7"])] {
            let mut elements: Vec<String> = connection.lrange(list, 0, -1).await.unwrap();
            elements.sort();
            assert_eq!(elements, expected, "{route}: {list}");
        }
        for sink in get(&punctual, "/v1/sinks").await["sinks"].as_array().expect("a list") {
            assert_eq!(sink["breaker"], "closed", "{sink}");
        }
    }
}
