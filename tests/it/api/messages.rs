//! Looking at messages, moving and cancelling them.

use serde_json::{Value, json};

use crate::support::ApiServer;

const X: &str = "/v1/routes/a/messages/x";

#[tokio::test]
async fn a_message_is_seen_in_each_of_its_states_and_no_longer() {
    let server = ApiServer::start().await;
    assert_eq!(server.call("GET", X, "").await.problem(404), "unknown-message");

    server.schedule("a", r#"{"id":"x","payload":"hello","deliver_at":4102444800000,"headers":{"H":"1"}}"#).await;
    let expected = json!({
        "id": "x", "route": "a", "state": "pending", "deliver_at": "2100-01-01T00:00:00.000Z", "attempts": 0,
        "last_error": null, "content_type": "text/plain; charset=utf-8", "headers": {"H": "1"}, "key": null,
        "payload": "hello", "due": "2100-01-01T00:00:00.000Z", "next_attempt_at": "2100-01-01T00:00:00.000Z",
        "waits_for": "due",
    });
    let mut shown = server.call("GET", X, "").await.json;
    let accepted = shown.as_object_mut().expect("an object").remove("accepted_at");
    assert!(accepted.is_some_and(|at| at.as_str().is_some_and(|at| at.starts_with("20"))));
    assert_eq!(shown, expected);

    server.call("PATCH", X, r#"{"delay":0}"#).await;
    server.claim("a").await;
    assert_eq!(server.call("GET", X, "").await.json["state"], "unack");

    server.bury("a", "dead").await;
    let dead = server.call("GET", "/v1/routes/a/messages/dead", "").await.json;
    assert_eq!(dead["state"], "dead");
    assert_eq!(dead["last_error"], "rejected: HTTP 400");
}

#[tokio::test]
async fn a_pending_message_moves_and_others_stay() {
    let server = ApiServer::start().await;
    server.schedule("a", r#"{"id":"x","payload":1,"delay":"1h"}"#).await;
    let moved = server.call("PATCH", X, r#"{"deliver_at":"2100-01-01T00:00:00Z"}"#).await;
    assert_eq!(moved.status, 200);
    let expected = json!({"id": "x", "route": "a", "deliver_at": "2100-01-01T00:00:00.000Z", "status": "rescheduled"});
    assert_eq!(moved.json, expected);
    assert_eq!(server.call("GET", X, "").await.json["deliver_at"], "2100-01-01T00:00:00.000Z");

    for body in ["{}", r#"{"delay":1,"deliver_at":1}"#, r#"{"delay":-1}"#, r#"{"payload":1,"delay":1}"#, "[]"] {
        assert_eq!(server.call("PATCH", X, body).await.problem(422), "invalid", "{body}");
    }
    assert_eq!(server.call("PATCH", X, "{").await.problem(400), "bad-request");
    server.call("PATCH", "/v1/routes/a/messages/none", r#"{"delay":1}"#).await.problem(404);

    server.call("PATCH", X, r#"{"delay":0}"#).await;
    server.claim("a").await;
    assert_eq!(server.call("PATCH", X, r#"{"delay":1}"#).await.problem(409), "in-flight");
    server.bury("a", "dead").await;
    let dead = server.call("PATCH", "/v1/routes/a/messages/dead", r#"{"delay":1}"#).await;
    assert_eq!(dead.problem(409), "dead");
}

#[tokio::test]
async fn cancelling_takes_the_pending_and_the_dead_but_not_what_is_in_flight() {
    let server = ApiServer::start().await;
    server.schedule("a", r#"{"id":"x","payload":1}"#).await;
    let cancelled = server.call("DELETE", X, "").await;
    assert_eq!((cancelled.status, cancelled.text.as_str()), (204, ""));
    server.call("DELETE", X, "").await.problem(404);

    server.bury("a", "x").await;
    let purged = server.call("DELETE", X, "").await;
    assert_eq!((purged.status, &purged.json["status"]), (200, &"purged".into()));
    server.call("GET", X, "").await.problem(404);

    server.schedule("a", r#"{"id":"x","payload":1}"#).await;
    server.claim("a").await;
    assert_eq!(server.call("DELETE", X, "").await.problem(409), "in-flight");
}

#[tokio::test]
async fn a_listing_goes_on_page_by_page_in_due_order() {
    let server = ApiServer::start().await;
    let items: Vec<_> = (0..25)
        .map(|n| json!({"id": format!("m{n}"), "payload": n, "deliver_at": 4_102_444_800_000_u64 - n}))
        .collect();
    assert_eq!(server.call("POST", "/v1/routes/b/messages", &json!(items).to_string()).await.status, 200);

    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = server.call("GET", &format!("/v1/routes/b/messages?limit=10{cursor}"), "").await;
        assert_eq!(page.status, 200, "{}", page.text);
        let messages = page.json["messages"].as_array().unwrap();
        assert!(messages.len() <= 10);
        seen.extend(messages.iter().map(|message| message["id"].as_str().unwrap().to_owned()));
        match &page.json["cursor"] {
            Value::String(next) => cursor = format!("&cursor={next}"),
            end => break assert_eq!(end, &Value::Null),
        }
    }
    let expected: Vec<String> = (0..25).rev().map(|n| format!("m{n}")).collect();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_listing_shows_one_state_and_refuses_what_it_does_not_know() {
    let server = ApiServer::start().await;
    server.bury("a", "dead").await;
    server.schedule("a", r#"{"id":"busy","payload":1}"#).await;
    server.claim("a").await;
    server.schedule("a", r#"{"id":"waiting","payload":1,"delay":"1h"}"#).await;
    for (query, id) in
        [("", "waiting"), ("?state=pending", "waiting"), ("?state=unack", "busy"), ("?state=dead", "dead")]
    {
        let listed = server.call("GET", &format!("/v1/routes/a/messages{query}"), "").await.json;
        assert_eq!(listed["messages"].as_array().unwrap().len(), 1, "{query}");
        assert_eq!(listed["messages"][0]["id"], id, "{query}");
        assert_eq!(listed["cursor"], Value::Null);
    }
    for query in
        ["state=gone", "limit=0", "limit=1001", "limit=-1", "limit=x", "cursor=x", "order=up", "limit=1&limit=2"]
    {
        server.call("GET", &format!("/v1/routes/a/messages?{query}"), "").await.problem(400);
    }
}
