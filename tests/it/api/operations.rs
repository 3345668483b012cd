//! Calls of operators and probes.

use serde_json::{Value, json};

use crate::support::{ApiServer, Setup};

#[tokio::test]
async fn a_route_reports_its_numbers() {
    let server = ApiServer::start().await;
    let empty = json!({
        "route": "a", "sink": "out", "paused": false, "pending": 0, "due": 0, "unack": 0, "dead": 0,
        "retrying": 0, "bytes": 0, "next_due": null, "oldest_overdue_seconds": 0.0, "partitions": 1,
    });
    assert_eq!(server.call("GET", "/v1/routes/a", "").await.json, empty);

    server.bury("a", "dead").await;
    server.schedule("a", r#"{"id":"busy","payload":1}"#).await;
    server.claim("a").await;
    server.schedule("a", r#"{"payload":1,"delay":"1h"}"#).await;
    server.schedule("a", r#"{"payload":1,"deliver_at":"1970-01-01T00:00:01Z"}"#).await;
    let stats = server.call("GET", "/v1/routes/a", "").await.json;
    let number = |name: &str| stats[name].as_u64().unwrap();
    assert_eq!((number("pending"), number("due"), number("unack"), number("dead")), (2, 1, 1, 1));
    assert_eq!(stats["next_due"], "1970-01-01T00:00:01.000Z");
    assert!(stats["oldest_overdue_seconds"].as_f64().unwrap() > 1e9);

    let all = server.call("GET", "/v1/routes", "").await.json;
    assert_eq!(all["routes"].as_array().unwrap().len(), 2);
    assert_eq!((&all["routes"][0]["dead"], &all["routes"][1]["route"]), (&json!(1), &json!("b")));
}

#[tokio::test]
async fn pausing_stops_claims_until_resumed() {
    let server = ApiServer::start().await;
    server.schedule("a", r#"{"payload":1}"#).await;
    assert_eq!(server.call("POST", "/v1/routes/a/pause", r#"{"reason":"typo"}"#).await.problem(400), "bad-request");
    assert_eq!(server.call("POST", "/v1/routes/a/pause", r#"{"note":"two\nlines"}"#).await.status, 204);
    let paused = server.call("GET", "/v1/routes/a", "").await.json;
    assert_eq!((&paused["paused"], &paused["note"]), (&json!(true), &json!("two\nlines")));
    assert_eq!(paused["paused_by"], Value::Null, "there are no tokens");
    assert!(paused["paused_at"].as_str().is_some_and(|at| at.starts_with("20")), "{paused}");
    assert!(server.claim("a").await.is_empty());
    // Every character as two escapes.
    let longest = format!(r#"{{ "note" : "{}" }}"#, r"\ud83d\ude00".repeat(500));
    assert_eq!(server.call("POST", "/v1/routes/a/pause", &longest).await.status, 204);
    let note = server.call("GET", "/v1/routes/a", "").await.json["note"].clone();
    assert_eq!(note, "\u{1f600}".repeat(500));
    let longer = longest.replace(" }", "x }").replace("\"x }", "x\" }");
    assert_eq!(server.call("POST", "/v1/routes/a/pause", &longer).await.problem(422), "invalid");
    assert_eq!(server.call("POST", "/v1/routes/a/resume", "").await.status, 204);
    assert_eq!(server.call("GET", "/v1/routes/a", "").await.json["paused"], false);
    assert_eq!(server.claim("a").await.len(), 1);
}

#[tokio::test]
async fn sinks_health_and_the_description_are_served() {
    let server = ApiServer::start().await;
    let expected = json!({"sinks": [
        {"name": "out", "type": "http", "check": "answered 500 for acme", "breaker": "half_open",
         "since": "2023-11-14T22:13:20.000Z", "last_error": "HTTP 500", "last_error_at": "2023-11-14T22:13:21.500Z",
         "last_success_at": null, "in_flight": 3, "down_domains": [{"name": "orders/3", "error": "HTTP 500 for acme", "since": null}]},
    ]});
    assert_eq!(server.call("GET", "/v1/sinks", "").await.json, expected);
    for probe in ["/livez", "/readyz"] {
        let health = server.call("GET", probe, "").await;
        assert_eq!((health.status, health.json), (200, json!({"status": "ok"})), "{probe}");
    }
    let description = server.call("GET", "/openapi.json", "").await;
    assert_eq!(description.headers["content-type"], "application/json");
    assert_eq!(description.json["openapi"], "3.1.0");
}

#[tokio::test]
async fn paths_and_methods_that_do_not_exist_are_problems_too() {
    let server = ApiServer::start().await;
    for path in ["/", "/v1", "/v1/routes/", "/v1/routes/a/dead/redrive/x", "/v2/routes", "/v1/routes//messages"] {
        server.call("GET", path, "").await.problem(404);
    }
    for (method, path, allowed) in [
        ("PUT", "/v1/routes/a/messages", "POST,GET,HEAD"),
        ("POST", "/v1/routes/a", "GET,HEAD"),
        ("DELETE", "/v1/routes/a/dead/purge", "POST"),
        ("GET", "/v1/routes/a/raw", "POST"),
    ] {
        let refused = server.call(method, path, "").await;
        assert_eq!(refused.problem(405), "method-not-allowed");
        assert_eq!(refused.headers["allow"], allowed);
    }
    for (method, path) in [
        ("GET", "/v1/routes/none"),
        ("POST", "/v1/routes/none/messages"),
        ("POST", "/v1/routes/none/raw"),
        ("POST", "/v1/routes/none/dead/purge"),
        ("POST", "/v1/routes/none/dead/forward"),
        ("POST", "/v1/routes/none/pause"),
    ] {
        assert_eq!(server.call(method, path, "").await.problem(404), "unknown-route", "{path}");
    }
}

#[tokio::test]
async fn metrics_show_each_queue_with_its_last_values_if_it_cannot_be_read() {
    let routes = vec![("metrics-good", 1), ("metrics-broken", 1)];
    let server = ApiServer::start_with(Setup { routes, ..Setup::default() }).await;
    server.schedule("metrics-good", r#"{"payload":1,"deliver_at":4102444800000}"#).await;
    let page = server.call("GET", "/metrics", "").await;
    assert_eq!(page.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let has = |page: &str, line: &str| page.lines().any(|found| found == line);
    assert!(has(&page.text, r#"punctual_pending_messages{route="metrics-good"} 1"#), "{}", page.text);
    assert!(has(&page.text, r#"punctual_next_due_timestamp_seconds{route="metrics-good"} 4102444800"#));
    assert!(has(&page.text, r#"punctual_messages_scheduled_total{route="metrics-good",via="api"} 1"#));
    assert!(has(&page.text, r#"punctual_pending_messages{route="metrics-broken"} 0"#));
    assert!(!page.text.contains(r#"punctual_next_due_timestamp_seconds{route="metrics-broken"}"#));

    let mut connection = server.redis.connection().await;
    let key = "{punctual:metrics-broken:0/1}:pending";
    let _: () = redis::cmd("SET").arg(key).arg("foreign").query_async(&mut connection).await.unwrap();
    let page = server.call("GET", "/metrics", "").await.text;
    assert!(has(&page, r#"punctual_pending_messages{route="metrics-good"} 1"#));
    assert!(has(&page, r#"punctual_pending_messages{route="metrics-broken"} 0"#), "the last value stays: {page}");
    assert!(has(&page, "punctual_redis_up 1"));

    let listed = server.call("GET", "/v1/routes", "").await;
    assert_eq!(listed.status, 200);
    assert!(listed.json["routes"][0]["error"].is_string(), "{}", listed.text);
    assert_eq!(listed.json["routes"][1]["pending"], 1);
    let broken = server.call("GET", "/v1/routes/metrics-broken", "").await;
    assert_eq!(broken.problem(500), "wrong-type");
    assert!(broken.text.contains("{punctual:metrics-broken:0/1}"), "it names the partition: {}", broken.text);
    let foreign: Value = redis::cmd("GET").arg(key).query_async::<String>(&mut connection).await.unwrap().into();
    assert_eq!(foreign, "foreign");
}

#[tokio::test]
async fn unconfigured_routes_are_listed_if_they_hold_messages_or_are_unreadable() {
    let server = ApiServer::start().await;
    let mut connection = server.redis.connection().await;
    let mut pipe = redis::pipe();
    for (route, partitions) in [("full", 2), ("empty", 256), ("spoilt", 2), ("endless", 257), ("none", 0)] {
        let settings = format!(r#"{{"version":1,"partitions":{partitions},"max_payload":1}}"#);
        pipe.hset("punctual:routes", route, settings);
    }
    pipe.hset("punctual:routes", "another's", "not JSON");
    pipe.zadd("{punctual:full:1/2}:dead", "x", 1).zadd("{punctual:endless:0/1}:dead", "x", 1);
    pipe.set("{punctual:spoilt:1/2}:unack", "foreign");
    pipe.exec_async(&mut connection).await.unwrap();
    let list = server.call("GET", "/v1/routes", "").await;
    assert_eq!(list.status, 200, "{}", list.text);
    let routes = list.json["routes"].as_array().unwrap();
    let found = |name: &str| routes.iter().find(|route| route["route"] == name);
    assert_eq!(found("full").unwrap()["dead"], 1);
    let error = found("spoilt").unwrap()["error"].as_str().unwrap();
    assert!(error.contains("{punctual:spoilt:1/2}"), "{error}");
    for name in ["empty", "endless", "none", "another's"] {
        assert_eq!(found(name), None);
    }
}
