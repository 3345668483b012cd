//! Messages that ended and attempts that failed, from outside: API, command line, and the end of the setting.

use std::time::Duration;

use serde_json::{Value, json};

use super::eventually;
use crate::support::{
    RedisServer, http,
    punctual::Punctual,
    receiver::{Behaviour, Receiver},
};

const MAX_WAIT: Duration = Duration::from_secs(20);

fn configuration(redis: &RedisServer, receiver: &Receiver, history: &str) -> String {
    format!(
        "redis: {{ url: '{}' }}
server:
  auth:
    tokens:
      - {{ token: shop-secret-token, name: shop, rights: [schedule, read] }}
      - {{ token: ops-secret-token, name: ops, rights: [schedule, read, admin] }}
sinks: {{ hook: {{ type: http, url: '{}' }} }}
routes:
  web:
    sink: hook
    partitions: 2
    retry: {{ max_attempts: 12, initial: 10ms, factor: 1, jitter: 0 }}
    {history}
",
        redis.url(),
        receiver.url()
    )
}

struct Caller<'a>(&'a Punctual, &'static str);

impl Caller<'_> {
    async fn call(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let method = reqwest::Method::from_bytes(method.as_bytes()).expect("a method");
        let request = http::client().request(method, self.0.url(&format!("/v1/routes/web/{path}")));
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = request.bearer_auth(self.1).body(body).send().await.expect("an answer");
        let (status, text) = (answer.status().as_u16(), answer.text().await.expect("a body"));
        (status, serde_json::from_str(&text).unwrap_or_default())
    }

    async fn get(&self, id: &str) -> Value {
        self.call("GET", &format!("messages/{id}"), Value::Null).await.1
    }

    /// Waits until `id` is in this state.
    async fn until(&self, id: &str, state: &str) -> Value {
        eventually(state, MAX_WAIT, async || {
            let message = self.get(id).await;
            (message["state"] == state).then_some(message)
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_became_of_each_message_is_seen_with_its_attempts_and_who() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let kept = configuration(&redis, &receiver, "history: { for: 7d, max: 1000 }");
    let punctual = Punctual::start_with(&kept, &[("PUNCTUAL_TOKEN", "shop-secret-token")]).await;
    let (shop, ops) = (Caller(&punctual, "shop-secret-token"), Caller(&punctual, "ops-secret-token"));

    receiver.behave(Behaviour::Status(500));
    let order = json!({"id": "order-42", "payload": "x", "key": "k", "group": "g", "delay": 0});
    assert_eq!(shop.call("POST", "messages", order).await.0, 201);
    let dead = shop.until("order-42", "dead").await;
    assert_eq!((&dead["attempts"], &dead["scheduled_by"]), (&json!(12), &json!("shop")));
    let log = dead["attempt_log"].as_array().expect("a list").clone();
    assert_eq!(log.len(), 10, "the last ten");
    for attempt in &log {
        assert_eq!((&attempt["outcome"], &attempt["status"]), (&json!("failed"), &json!(500)), "{attempt}");
        assert!(attempt["instance"].as_str().is_some_and(|name| name.contains(':')), "{attempt}");
        assert!(attempt["error"].as_str().is_some_and(|error| error.starts_with("HTTP 500")), "{attempt}");
    }
    assert_eq!(dead["history"][0]["outcome"], "dead");

    receiver.behave(Behaviour::Status(204));
    assert_eq!(ops.call("POST", "dead/redrive", json!({"ids": ["order-42"]})).await.0, 200);
    let delivered = shop.until("order-42", "delivered").await;
    let ends = delivered["history"].as_array().expect("a list");
    let outcomes: Vec<_> = ends.iter().map(|end| (&end["outcome"], &end["attempts"], &end["status"])).collect();
    assert_eq!(outcomes, [(&json!("delivered"), &json!(1), &json!(204)), (&json!("dead"), &json!(12), &json!(500))]);
    for (name, value) in [("key", "k"), ("group", "g"), ("scheduled_by", "shop")] {
        assert!(ends.iter().all(|end| end[name] == value), "{name}: {ends:?}");
    }
    assert!(ends[0]["late_ms"].as_u64().is_some_and(|late| late < 20_000), "{}", ends[0]);

    for id in ["later", "again"] {
        assert_eq!(shop.call("POST", "messages", json!({"id": id, "payload": 1, "delay": "1h"})).await.0, 201);
    }
    assert_eq!(ops.call("DELETE", "messages/later", Value::Null).await.0, 204);
    let replacing = json!({"id": "again", "payload": 2, "delay": "2h", "on_conflict": "replace"});
    assert_eq!(ops.call("POST", "messages", replacing).await.0, 200);
    let cancelled = &shop.get("later").await;
    assert_eq!((&cancelled["state"], &cancelled["history"][0]["cancelled_by"]), (&json!("cancelled"), &json!("ops")));
    let again = shop.get("again").await;
    assert_eq!((&again["scheduled_by"], &again["history"][0]["scheduled_by"]), (&json!("ops"), &json!("shop")));
    assert_eq!(shop.call("GET", "messages/none", Value::Null).await.0, 404);

    let (_, first) = shop.call("GET", "messages?state=ended&limit=3", Value::Null).await;
    let path = format!("messages?state=ended&limit=3&cursor={}", first["cursor"].as_str().expect("more follow"));
    let (_, second) = shop.call("GET", &path, Value::Null).await;
    let pages = [&first, &second].map(|page| page["messages"].as_array().expect("a page").clone()).concat();
    let listed: Vec<_> = pages.iter().map(|one| format!("{} {}", one["id"], one["outcome"]).replace('"', "")).collect();
    assert_eq!(listed, ["again replaced", "later cancelled", "order-42 delivered", "order-42 dead"]);
    assert_eq!(second["cursor"], Value::Null);
    for (filter, expected) in [
        ("outcome=dead", &["order-42"][..]),
        ("contains=HTTP", &["order-42"]),
        ("contains=none", &[]),
        ("since=2100-01-01T00:00:00Z", &[]),
        ("until=2100-01-01T00:00:00Z&order=asc", &["order-42", "order-42", "later", "again"]),
    ] {
        let (_, page) = shop.call("GET", &format!("messages?state=ended&{filter}"), Value::Null).await;
        assert_eq!((ids_of(&page), &page["cursor"]), (json!(expected), &Value::Null), "{filter}: {page}");
        assert!(page["scanned"].is_u64());
    }
    for wrong in ["outcome=lost", "payload_contains=x", "header.a=x", "reason=rejected", "order=up"] {
        assert_eq!(shop.call("GET", &format!("messages?state=ended&{wrong}"), Value::Null).await.0, 400, "{wrong}");
    }
    assert_eq!(shop.call("GET", "messages?outcome=dead", Value::Null).await.0, 400);
    assert_eq!(http_routes(&punctual).await["history"], true);

    commands(&punctual).await;
    ends_with_the_setting(punctual, &redis, &receiver).await;
}

async fn http_routes(punctual: &Punctual) -> Value {
    let request = http::client().get(punctual.url("/v1/routes/web")).bearer_auth("shop-secret-token");
    let text = request.send().await.expect("an answer").text().await.expect("a body");
    serde_json::from_str(&text).expect("JSON")
}

async fn commands(punctual: &Punctual) {
    let run = async |arguments: &[&str]| {
        let ended = punctual.command(arguments).await;
        assert_eq!(ended.code, Some(0), "{}", ended.error);
        ended.out
    };
    let list = run(&["list", "web", "--state", "ended"]).await;
    let lines: Vec<&str> = list.lines().collect();
    assert!(lines[0].starts_with("ID") && lines[0].contains("OUTCOME"), "{list}");
    assert!(lines[3].contains("order-42") && lines[3].contains("delivered") && lines[3].ends_with("204"), "{list}");
    assert!(lines[4].contains("attempts: HTTP 500"), "{list}");
    let shown = run(&["get", "web", "order-42"]).await;
    assert!(shown.contains("ends, the latest first") && shown.contains("delivered"), "{shown}");
    let json = run(&["get", "web", "order-42", "--json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&json).expect("JSON")["state"], "delivered");
}

/// A route that loses the setting loses its history soon after the start.
async fn ends_with_the_setting(mut punctual: Punctual, redis: &RedisServer, receiver: &Receiver) {
    punctual.terminate().await;
    drop(punctual);
    let punctual = Punctual::start_with(&configuration(redis, receiver, ""), &[]).await;
    let shop = Caller(&punctual, "shop-secret-token");
    assert_eq!(shop.call("GET", "messages?state=ended", Value::Null).await.0, 404);
    assert_eq!(shop.call("GET", "messages/order-42", Value::Null).await.0, 404);
    let mut connection = redis.connection().await;
    eventually("the keys are deleted", MAX_WAIT, async || {
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.expect("an answer");
        keys.iter().all(|key| !key.ends_with(":history") && !key.ends_with(":ended")).then_some(())
    })
    .await;
}

fn ids_of(page: &Value) -> Value {
    page["messages"].as_array().expect("a page").iter().map(|one| one["id"].clone()).collect()
}
