//! Pending messages, purged in bulk.

use serde_json::{Value, json};

use crate::support::{ApiServer, Setup};

const PURGE: &str = "/v1/routes/b/purge";

async fn filled(count: usize) -> ApiServer {
    let server = ApiServer::start_with(Setup::default()).await;
    let batch = |first: usize| {
        let message = |n| json!({"id": format!("m{n}"), "payload": "x", "delay": "1h"});
        Value::from((first..count.min(first + 1000)).map(message).collect::<Vec<_>>()).to_string()
    };
    for first in (0..count).step_by(1000) {
        assert_eq!(server.call("POST", "/v1/routes/b/messages", &batch(first)).await.status, 200);
    }
    server
}

async fn stats(server: &ApiServer) -> Value {
    server.call("GET", "/v1/routes/b", "").await.json
}

#[tokio::test]
async fn all_or_some_pending_messages_are_purged_and_what_is_in_flight_stays() {
    let server = filled(2500).await;
    server.schedule("a", r#"{"id":"of-another-route","payload":"x","delay":"1h"}"#).await;
    let purge = async |body: Value| server.call("POST", PURGE, &body.to_string()).await.json;
    assert_eq!(purge(json!({"all": true, "dry_run": true})).await, json!({"count": 2500, "more": false}));
    assert_eq!(purge(json!({"all": true, "dry_run": true, "limit": 7})).await, json!({"count": 7, "more": true}));
    assert_eq!(stats(&server).await["pending"], 2500);
    let named = json!(["m1", "m2", "m2", "unknown", "m3"]);
    assert_eq!(purge(json!({"ids": named, "limit": 2})).await, json!({"count": 2, "more": true}));
    assert_eq!(purge(json!({"ids": named, "dry_run": true})).await, json!({"count": 1, "more": false}));
    assert_eq!(purge(json!({"ids": named})).await, json!({"count": 1, "more": false}));
    assert_eq!(purge(json!({"ids": named})).await, json!({"count": 0, "more": false}));
    assert_eq!(purge(json!({"all": true, "limit": 2000})).await, json!({"count": 2000, "more": true}));
    assert_eq!(purge(json!({"all": true})).await, json!({"count": 497, "more": false}));
    let after = stats(&server).await;
    assert_eq!((&after["pending"], &after["bytes"]), (&json!(0), &json!(0)));

    server.bury("a", "dead").await;
    server.schedule("a", r#"{"id":"held","payload":"x"}"#).await;
    assert_eq!(server.claim("a").await.len(), 1);
    let answer = server.call("POST", "/v1/routes/a/purge", r#"{"all":true}"#).await;
    assert_eq!(answer.json, json!({"count": 1, "more": false}));
    let after = server.call("GET", "/v1/routes/a", "").await.json;
    assert_eq!((&after["pending"], &after["unack"], &after["dead"]), (&json!(0), &json!(1), &json!(1)));
}

#[tokio::test]
async fn a_request_that_selects_nothing_or_has_unknown_fields_changes_nothing() {
    let server = filled(3).await;
    for nothing in ["{}", r#"{"all":false}"#, r#"{"ids":[]}"#, r#"{"limit":5,"dry_run":false}"#] {
        assert_eq!(server.call("POST", PURGE, nothing).await.problem(422), "invalid", "{nothing}");
    }
    for invalid in [
        r#"{"all":null}"#,
        r#"{"ids":null}"#,
        r#"{"all":1}"#,
        r#"{"all":true,"ids":["m1"]}"#,
        r#"{"all":true,"limit":0}"#,
        r#"{"all":true,"limit":100001}"#,
        r#"{"ids":["m1","m 2"]}"#,
        r#"{"all":true,"dry_run":"no"}"#,
    ] {
        assert_eq!(server.call("POST", PURGE, invalid).await.problem(422), "invalid", "{invalid}");
    }
    for odd in [
        "",
        "[]",
        r#"{"all":true,"reason":"x"}"#,
        r#"{"all":true,"dryrun":true}"#,
        r#"{"all":true"#,
        r#"{"all":true,"cursor":"AAAA"}"#,
    ] {
        assert_eq!(server.call("POST", PURGE, odd).await.problem(400), "bad-request", "{odd}");
    }
    let query = server.call("POST", &format!("{PURGE}?dry_run=true"), r#"{"all":true}"#).await;
    assert_eq!(query.problem(400), "bad-request");
    assert_eq!(stats(&server).await["pending"], 3);
}
