//! Groups: listed, cancelled, moved and delivered together.

use serde_json::{Value, json};

use crate::support::ApiServer;

const ORDER: &str = "/v1/routes/a/groups/order:7";

async fn order(server: &ApiServer) {
    let message = |id: &str, group: Option<&str>| json!({"id": id, "payload": id, "deliver_at": 4_102_444_800_000_u64, "group": group});
    let batch = [
        message("remind", Some("order:7")),
        message("cancel", Some("order:7")),
        message("survey", Some("order:7")),
        message("other", Some("order:71")),
        message("single", None),
    ];
    let posted = server.call("POST", "/v1/routes/a/messages", &json!(batch).to_string()).await;
    assert_eq!(posted.status, 200, "{}", posted.text);
}

fn ids(listed: &Value) -> Vec<&str> {
    listed["messages"].as_array().expect("messages").iter().map(|one| one["id"].as_str().expect("an id")).collect()
}

#[tokio::test]
async fn the_messages_of_an_order_are_cancelled_by_one_call() {
    let server = ApiServer::start().await;
    order(&server).await;
    let listed = server.call("GET", ORDER, "").await.json;
    assert_eq!((ids(&listed), &listed["cursor"]), (vec!["cancel", "remind", "survey"], &Value::Null));
    assert_eq!(listed["messages"][0]["group"], "order:7");
    let filtered = server.call("GET", "/v1/routes/a/messages?group=order:71", "").await.json;
    assert_eq!(ids(&filtered), ["other"]);
    let page = server.call("GET", &format!("{ORDER}?limit=2&payload=false"), "").await.json;
    assert_eq!((ids(&page), &page["messages"][0]["payload"]), (vec!["cancel", "remind"], &Value::Null));
    let rest = format!("{ORDER}?cursor={}", page["cursor"].as_str().expect("a cursor"));
    assert_eq!(ids(&server.call("GET", &rest, "").await.json), ["survey"]);

    let cancelled = server.call("DELETE", ORDER, "").await;
    assert_eq!((cancelled.status, cancelled.json), (200, json!({"cancelled": 3, "in_flight": [], "more": false})));
    let again = server.call("DELETE", ORDER, "").await;
    assert_eq!((again.status, again.json), (200, json!({"cancelled": 0, "in_flight": [], "more": false})));
    assert_eq!(ids(&server.call("GET", ORDER, "").await.json), Vec::<&str>::new());
    let left = server.call("GET", "/v1/routes/a/messages", "").await.json;
    assert_eq!(ids(&left).len(), 2, "{left}");
}

#[tokio::test]
async fn what_is_in_flight_is_named_and_stays() {
    let server = ApiServer::start().await;
    order(&server).await;
    server.call("PATCH", "/v1/routes/a/messages/remind", r#"{"delay":0}"#).await;
    server.claim("a").await;
    let moved = server.call("PATCH", ORDER, r#"{"shift":"-1h"}"#).await;
    assert_eq!(moved.status, 200, "{}", moved.text);
    assert_eq!((&moved.json["moved"], &moved.json["in_flight"]), (&json!(2), &json!(["remind"])));
    let cancelled = server.call("DELETE", ORDER, "").await.json;
    assert_eq!(cancelled, json!({"cancelled": 2, "in_flight": ["remind"], "more": false}));
    assert_eq!(server.call("GET", "/v1/routes/a/messages/remind", "").await.json["state"], "unack");
}

#[tokio::test]
async fn a_group_moves_and_is_delivered() {
    let server = ApiServer::start().await;
    order(&server).await;
    let at = async |id: &str| {
        let message = server.call("GET", &format!("/v1/routes/a/messages/{id}"), "").await.json;
        message["deliver_at"].as_str().expect("a time").to_owned()
    };
    let moved = server.call("PATCH", ORDER, r#"{"shift":"+2h"}"#).await.json;
    assert_eq!((&moved["moved"], &moved["more"], &moved["refused"]), (&json!(3), &json!(false), &json!([])));
    assert_eq!(at("remind").await, "2100-01-01T02:00:00.000Z");
    assert_eq!(at("other").await, "2100-01-01T00:00:00.000Z");
    server.call("PATCH", ORDER, r#"{"shift":-3600000}"#).await;
    assert_eq!(at("survey").await, "2100-01-01T01:00:00.000Z");
    server.call("PATCH", ORDER, r#"{"deliver_at":"2101-01-01T00:00:00Z"}"#).await;
    assert_eq!(at("cancel").await, "2101-01-01T00:00:00.000Z");

    server
        .call(
            "POST",
            "/v1/routes/a/messages",
            r#"{"id":"e","payload":1,"delay":"1m","expires_at":"2099-01-01T00:00:00Z","group":"order:7"}"#,
        )
        .await;
    let refused = server.call("PATCH", ORDER, r#"{"deliver_at":"2100-01-01T00:00:00Z"}"#).await.json;
    assert_eq!((&refused["moved"], &refused["refused"][0]["id"]), (&json!(3), &json!("e")));
    assert_eq!(refused["refused"][0]["reason"], "expires");

    let delivered = server.call("POST", &format!("{ORDER}/deliver"), "").await.json;
    assert_eq!(delivered["moved"], 4);
    assert!(at("remind").await.as_str() < "2100");
    let ahead = server.call("PATCH", ORDER, r#"{"shift":"+2h","before":"2100-01-01T00:00:00Z"}"#).await;
    assert_eq!(ahead.problem(422), "refused", "a repeated call would shift each message again");
    let none = server.call("POST", "/v1/routes/a/groups/none/deliver", "").await;
    assert_eq!((none.status, &none.json["moved"]), (200, &json!(0)));
}

#[tokio::test]
async fn bad_names_and_bodies_of_groups_are_refused() {
    let server = ApiServer::start().await;
    for group in [r#""a b""#, r#""..""#, &format!(r#""{}""#, "x".repeat(129))] {
        let body = format!(r#"{{"id":"x","payload":1,"group":{group}}}"#);
        let refused = server.call("POST", "/v1/routes/a/messages", &body).await;
        assert_eq!((refused.status, &refused.json["errors"][0]["pointer"]), (422, &json!("/group")), "{group}");
    }
    for path in ["/v1/routes/a/groups/a%20b", "/v1/routes/a/messages?group=a%20b"] {
        assert_eq!(server.call("GET", path, "").await.problem(400), "bad-request");
    }
    server.call("DELETE", &format!("{ORDER}?cursor=x"), "").await.problem(400);
    for (body, pointer) in [
        ("{}", ""),
        (r#"{"shift":"1h","delay":"1h"}"#, ""),
        (r#"{"shift":"soon"}"#, "/shift"),
        (r#"{"shift":"+-1h"}"#, "/shift"),
        (r#"{"delay":"1h","before":"now"}"#, "/before"),
    ] {
        let refused = server.call("PATCH", ORDER, body).await;
        let found = &refused.json["errors"][0]["pointer"];
        assert_eq!((refused.status, found), (422, &json!(pointer)), "{body}: {}", refused.text);
    }
    for (body, pointer) in [
        (r#"{"payload":1,"delay":"5s","debounce":{"max":"10m"}}"#, "/debounce"),
        (r#"{"payload":1,"on_conflict":"replace","debounce":{"max":0}}"#, "/debounce/max"),
        (r#"{"payload":1,"on_conflict":"replace","debounce":{}}"#, "/debounce"),
        (r#"{"payload":1,"on_conflict":"replace","debounce":"10m"}"#, "/debounce"),
    ] {
        let refused = server.call("POST", "/v1/routes/a/messages", body).await;
        let found = &refused.json["errors"][0]["pointer"];
        assert_eq!((refused.status, found), (422, &json!(pointer)), "{body}: {}", refused.text);
    }
    let text = server.call("POST", "/v1/routes/a/messages", r#"{"payload":1,"debounce":"10m"}"#).await.text;
    assert!(text.contains(r#"must be an object such as `{\"max\": \"10m\"}`"#), "{text}");
    let raw = "/v1/routes/a/raw?delay=5s&debounce=10m";
    assert_eq!(server.call("POST", raw, "x").await.json["errors"][0]["pointer"], "debounce");
}

#[tokio::test]
async fn a_debounced_message_is_due_at_the_latest_at_its_maximum() {
    let server = ApiServer::start().await;
    let post = async |delay: &str| {
        let body =
            json!({"id": "x", "payload": delay, "delay": delay, "on_conflict": "replace", "debounce": {"max": "1h"}});
        server.call("POST", "/v1/routes/a/messages", &body.to_string()).await.json["deliver_at"].clone()
    };
    let first = post("1m").await;
    let last = post("2h").await;
    assert!(first.as_str() < last.as_str(), "{first} {last}");
    assert_eq!(post("3h").await, last, "an hour after the first one");
    let raw = "/v1/routes/a/raw?id=x&delay=2h&on_conflict=replace&debounce=1h";
    assert_eq!(server.call("POST", raw, "x").await.json["deliver_at"], last);
    server.call("DELETE", "/v1/routes/a/messages/x", "").await;
    assert!(post("2h").await.as_str() > last.as_str(), "a new message");
}
