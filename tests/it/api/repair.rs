//! Dead letters that are edited, and redriven into another route.

use base64::{Engine, prelude::BASE64_STANDARD};
use punctual::{
    config::{AuthConfig, Right, TokenConfig, TokenDigest},
    message::{Limit, RouteLimits},
};
use serde_json::{Value, json};

use crate::support::{ApiServer, MAX_PAYLOAD, Setup, answer};

const LETTER: &str = "/v1/routes/a/messages/d";

async fn letter() -> ApiServer {
    let server = ApiServer::start().await;
    let message = r#"{"id":"d","payload":{"a":1},"headers":{"X":"1"},"key":"k","group":"g","max_attempts":3}"#;
    buried(&server, message, "d").await;
    server
}

/// Schedules a message on the route `a` and makes it dead.
async fn buried(server: &ApiServer, message: &str, id: &str) {
    server.schedule("a", message).await;
    server.bury_all("a", 1, punctual::message::DeadReason::Rejected, "HTTP 400").await;
    assert_eq!(server.call("GET", &format!("/v1/routes/a/messages/{id}"), "").await.json["state"], "dead");
}

async fn shown(server: &ApiServer) -> Value {
    server.call("GET", LETTER, "").await.json
}

#[tokio::test]
async fn the_given_parts_of_a_dead_letter_change_and_the_others_stay() {
    let server = letter().await;
    let before = shown(&server).await;
    let revision = before["revision"].as_str().expect("a revision");
    let body = json!({ "payload": {"a": 2}, "key": null, "revision": revision }).to_string();
    let edited = server.call("PATCH", LETTER, &body).await;
    assert_eq!((edited.status, &edited.json["status"]), (200, &json!("edited")), "{}", edited.text);
    let after = shown(&server).await;
    assert_eq!(edited.json["revision"], after["revision"]);
    assert_ne!(before["revision"], after["revision"]);
    let mut expected = before.clone();
    for (name, value) in
        [("payload", json!("{\"a\":2}")), ("key", Value::Null), ("revision", after["revision"].clone())]
    {
        expected[name] = value;
    }
    assert_eq!(after, expected, "state, times, error, group, headers and content type stay");
    // A repeated call with the former revision finds its own change; another one does not.
    assert_eq!(server.call("PATCH", LETTER, &body).await.status, 200);
    let other = json!({ "payload": 3, "revision": revision }).to_string();
    assert_eq!(server.call("PATCH", LETTER, &other).await.problem(409), "changed");
    assert_eq!(shown(&server).await, after);

    let binary = BASE64_STANDARD.encode([0, 255, 10]);
    let body = json!({
        "payload_base64": binary, "content_type": null, "headers": [{"name": "n", "type": "int32", "value": 5}],
        "key_base64": "/wA=", "max_attempts": 9, "expires_at": "2100-01-01T00:00:00Z",
    });
    assert_eq!(server.call("PATCH", LETTER, &body.to_string()).await.status, 200);
    let after = shown(&server).await;
    assert_eq!((&after["payload_base64"], &after["content_type"]), (&json!(binary), &Value::Null));
    assert_eq!((&after["key"], &after["key_base64"]), (&Value::Null, &json!("/wA=")));
    assert_eq!((&after["headers"][0]["value"], &after["max_attempts"]), (&json!(5), &json!(9)));
    assert_eq!(after["expires_at"], 4_102_444_800_000_u64);
    let redriven = server.call("POST", "/v1/routes/a/dead/redrive", r#"{"ids":["d"],"expiry":"keep"}"#).await;
    assert_eq!(redriven.json["count"], 1);
    assert_eq!(shown(&server).await["expires_at"], 4_102_444_800_000_u64);
    let stats = server.call("GET", "/v1/routes/a", "").await.json;
    let bytes: u64 = redis::cmd("HSTRLEN")
        .arg(&["{punctual:a:0/1}:messages", "d"])
        .query_async(&mut server.redis.connection().await)
        .await
        .expect("an answer");
    assert_eq!(stats["bytes"], bytes, "the body that waits now is counted");
}

#[tokio::test]
async fn an_edit_is_refused_unless_the_message_is_dead_and_would_be_valid() {
    let server = letter().await;
    let before = shown(&server).await;
    let patch = async |body: &str| server.call("PATCH", LETTER, body).await;
    assert_eq!(patch(r#"{"delay":"1h"}"#).await.problem(409), "dead");
    for invalid in [
        r#"{"delay":"1h","payload":1}"#,
        r#"{"headers":{"Punctual-Id":"x"}}"#,
        r#"{"headers":{"X":"a","x":"b"}}"#,
        r#"{"key":"a\nb"}"#,
        r#"{"expires_at":"2001-01-01T00:00:00Z"}"#,
        r#"{"flow":"f","payload":1}"#,
        r#"{"revision":"x"}"#,
        "{}",
    ] {
        assert_eq!(patch(invalid).await.problem(422), "invalid", "{invalid}");
    }
    let large = json!({ "payload": "x".repeat(MAX_PAYLOAD + 1) }).to_string();
    assert_eq!(patch(&large).await.problem(413), "too-large");
    let largest = json!({ "payload": "x".repeat(MAX_PAYLOAD) }).to_string();
    assert_eq!(shown(&server).await, before);
    assert_eq!(patch(&largest).await.status, 200);
    assert_eq!(patch(r#"{"payload":1,"revision":"0"}"#).await.problem(409), "changed");

    let other = async |id: &str| server.call("PATCH", &format!("/v1/routes/a/messages/{id}"), r#"{"payload":1}"#).await;
    assert_eq!(other("none").await.problem(404), "unknown-message");
    server.schedule("a", r#"{"id":"p","payload":1,"delay":"1h"}"#).await;
    assert_eq!(other("p").await.problem(409), "not-dead");
    server.schedule("a", r#"{"id":"f","payload":1}"#).await;
    server.claim("a").await;
    assert_eq!(other("f").await.problem(409), "in-flight");
    assert_eq!(other("tick@").await.problem(400), "bad-request");
    for body in [&b"\0"[..], b"\x02damaged", b"\x09of another release"] {
        let mut connection = server.redis.connection().await;
        let mut write = redis::cmd("HSET");
        write.arg("{punctual:a:0/1}:messages").arg("d").arg(body);
        write.exec_async(&mut connection).await.expect("written");
        assert_eq!(patch(r#"{"payload":1}"#).await.problem(409), "unreadable");
    }
}

#[tokio::test]
async fn an_edit_needs_two_rights() {
    let token = |token: &str, rights: &[Right], routes: &[&str]| TokenConfig {
        name: token.to_owned(),
        digest: TokenDigest::of(token),
        rights: rights.to_vec(),
        routes: routes.iter().map(ToString::to_string).collect(),
        messages_per_second: None,
    };
    let tokens = vec![
        token("t-both", &[Right::Schedule, Right::Admin], &["*"]),
        token("t-schedule", &[Right::Schedule], &["*"]),
        token("t-admin", &[Right::Admin], &["*"]),
        token("t-only-a", &[Right::Schedule, Right::Admin], &["a"]),
    ];
    let auth = Some(AuthConfig { tokens, open_metrics: false });
    let server = ApiServer::start_with(Setup { auth, ..Setup::default() }).await;
    let call = async |token: &str, method: &str, path: &str, body: &'static str| {
        answer(server.request(method, path).bearer_auth(token).body(body)).await
    };
    call("t-both", "POST", "/v1/routes/a/messages", r#"{"id":"d","payload":1}"#).await;
    server.bury_all("a", 1, punctual::message::DeadReason::Rejected, "HTTP 400").await;
    for token in ["t-schedule", "t-admin"] {
        assert_eq!(call(token, "PATCH", LETTER, r#"{"payload":2}"#).await.problem(403), "forbidden", "{token}");
    }
    assert_eq!(call("t-both", "PATCH", LETTER, r#"{"payload":2}"#).await.status, 200);
    // Into a route that the token is not for, whether there is one or not.
    for to in [r#"{"all":true,"to":"b"}"#, r#"{"all":true,"to":"none"}"#] {
        assert_eq!(call("t-only-a", "POST", "/v1/routes/a/dead/redrive", to).await.problem(403), "forbidden");
    }
    let unknown = call("t-both", "POST", "/v1/routes/a/dead/redrive", r#"{"all":true,"to":"none"}"#).await;
    assert_eq!(unknown.problem(422), "invalid");
    let moved = call("t-admin", "POST", "/v1/routes/a/dead/redrive", r#"{"all":true,"to":"b"}"#).await;
    assert_eq!(moved.json["count"], 1, "{}", moved.text);
}

async fn redrive(server: &ApiServer, body: &Value) -> Value {
    let answer = server.call("POST", "/v1/routes/a/dead/redrive", &body.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json
}

#[tokio::test]
async fn dead_letters_are_redriven_into_another_route() {
    let server = letter().await;
    for n in 0..250 {
        server.schedule("a", &json!({ "id": format!("m{n}"), "payload": n, "key": "k" }).to_string()).await;
    }
    server.bury_all("a", 1, punctual::message::DeadReason::Expired, "too late").await;
    let dry = redrive(&server, &json!({ "all": true, "to": "b", "dry_run": true })).await;
    assert_eq!((&dry["count"], &dry["refused"]), (&json!(251), &json!([])));
    let one = redrive(&server, &json!({ "ids": ["d", "none"], "to": "b", "expiry": "5m" })).await;
    assert_eq!((&one["count"], &one["more"]), (&json!(1), &json!(false)));
    let there = server.call("GET", "/v1/routes/b/messages/d", "").await.json;
    assert_eq!(
        (&there["state"], &there["payload"], &there["attempts"]),
        (&json!("pending"), &json!("{\"a\":1}"), &json!(0))
    );
    assert_eq!(
        (&there["group"], &there["max_attempts"], &there["headers"]),
        (&json!("g"), &json!(3), &json!({"X": "1"}))
    );
    assert!(there["expires_at"].is_u64() && there["last_error"].is_null(), "{there}");
    assert_eq!(server.call("GET", LETTER, "").await.status, 404);

    let some = redrive(&server, &json!({ "reason": "expired", "to": "b", "limit": 120, "rate": "1/m" })).await;
    assert_eq!((&some["count"], &some["more"]), (&json!(120), &json!(true)), "{some}");
    assert!(some["next"].is_string(), "{some}");
    let rest =
        json!({ "reason": "expired", "to": "b", "cursor": some["cursor"], "start": some["next"], "rate": "1/m" });
    let rest = redrive(&server, &rest).await;
    assert_eq!((&rest["count"], &rest["more"]), (&json!(130), &json!(false)), "{rest}");
    let stats = async |route: &str| server.call("GET", &format!("/v1/routes/{route}"), "").await.json;
    assert_eq!((&stats("a").await["dead"], &stats("b").await["pending"]), (&json!(0), &json!(251)));
    assert_eq!(stats("b").await["due"], 2, "the others follow one a minute");
    let own = server.call("POST", "/v1/routes/a/dead/redrive", r#"{"all":true,"to":"a"}"#).await;
    assert_eq!(own.problem(422), "invalid");
    server.call("POST", "/v1/routes/a/dead/purge", r#"{"all":true,"to":"b"}"#).await.problem(400);
}

#[tokio::test]
async fn named_dead_letters_are_redriven_into_another_route_up_to_a_limit_and_as_they_were_counted() {
    use punctual::message::DeadReason;
    let server = ApiServer::start().await;
    // In two partitions.
    let ids: Vec<String> = (0..40).map(|n| format!("m{n}")).collect();
    let messages: Vec<Value> = ids.iter().map(|id| json!({ "id": id, "payload": 1 })).collect();
    let scheduled = server.call("POST", "/v1/routes/b/messages", &json!(messages).to_string()).await;
    assert_eq!(scheduled.status, 200, "{}", scheduled.text);
    server.bury_all("b", 2, DeadReason::Rejected, "HTTP 400").await;
    let call = async |body: Value| {
        let answer = server.call("POST", "/v1/routes/b/dead/redrive", &body.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json
    };
    let dead = async || server.call("GET", "/v1/routes/b", "").await.json["dead"].clone();
    let counted = call(json!({ "ids": ids, "to": "a", "dry_run": true })).await;
    assert_eq!((&counted["count"], &counted["more"]), (&json!(40), &json!(false)), "{counted}");
    let limited = call(json!({ "ids": ids, "to": "a", "limit": 30 })).await;
    assert_eq!((&limited["count"], &limited["more"]), (&json!(30), &json!(true)), "{limited}");
    assert_eq!((dead().await, server.ids_in("a", "pending").await.len()), (json!(10), 30));

    // The others die again, later than they were counted.
    server.pass_millisecond().await;
    assert_eq!(call(json!({ "ids": ids })).await["count"], 10);
    server.bury_all("b", 2, DeadReason::Rejected, "HTTP 409").await;
    let none = call(json!({ "ids": ids, "to": "a", "until": counted["until"] })).await;
    assert_eq!((&none["count"], &none["more"], dead().await), (&json!(0), &json!(false), json!(10)), "{none}");
    assert_eq!(server.ids_in("a", "pending").await.len(), 30, "none is on both routes");
    assert_eq!(call(json!({ "ids": ids, "to": "a" })).await["count"], 10);
}

#[tokio::test]
async fn a_dead_letter_that_the_other_route_does_not_take_stays() {
    let server = letter().await;
    // As after a process that ended between the two steps.
    server
        .schedule("b", r#"{"id":"d","payload":{"a":1},"headers":{"X":"1"},"key":"k","group":"g","delay":"1h"}"#)
        .await;
    buried(&server, r#"{"id":"other","payload":1}"#, "other").await;
    server.schedule("b", r#"{"id":"other","payload":2,"delay":"1h"}"#).await;
    buried(&server, r#"{"id":"lost","payload":1}"#, "lost").await;
    let mut connection = server.redis.connection().await;
    let mut write = redis::cmd("HSET");
    write.arg(&["{punctual:a:0/1}:messages", "lost", "\0"]);
    write.exec_async(&mut connection).await.expect("written");
    let redriven = redrive(&server, &json!({ "all": true, "to": "b" })).await;
    assert_eq!(redriven["count"], 1, "{redriven}");
    let refused = redriven["refused"].as_array().expect("a list");
    let mut refused: Vec<_> = refused.iter().map(|one| (one["id"].as_str(), one["reason"].as_str())).collect();
    refused.sort_unstable();
    assert_eq!(refused, [(Some("lost"), Some("unreadable")), (Some("other"), Some("exists"))]);
    assert_eq!(server.ids_in("a", "dead").await, ["other", "lost"]);
    assert_eq!(server.call("GET", LETTER, "").await.status, 404, "it is there");
}

#[tokio::test]
async fn a_redrive_ends_at_a_limit_of_the_other_route() {
    let limits = RouteLimits { messages: Some(3), ..RouteLimits::default() };
    let server = ApiServer::start_with(Setup { limits, routes: vec![("a", 1), ("b", 1)], ..Setup::default() }).await;
    for n in 0..3 {
        server.bury("a", &format!("m{n}")).await;
    }
    server.schedule("b", r#"{"payload":1,"delay":"1h"}"#).await;
    let full = server.call("POST", "/v1/routes/a/dead/redrive", r#"{"all":true,"to":"b"}"#).await;
    assert_eq!(full.problem(429), Limit::Messages.problem(), "{}", full.text);
    assert!(full.text.contains("2 or more messages were changed"), "{}", full.text);
    assert_eq!(server.ids_in("a", "dead").await, ["m2"]);
    assert_eq!(server.ids_in("b", "pending").await.len(), 3);
}
