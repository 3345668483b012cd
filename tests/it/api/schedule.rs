//! Ways to schedule: one message, an array, a raw body.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::support::{ApiServer, MAX_PAYLOAD, answer};

const MESSAGES: &str = "/v1/routes/a/messages";
const IN_2100: &str = "2100-01-01T00:00:00.000Z";

#[tokio::test]
async fn a_new_message_is_created_a_known_one_kept_or_replaced() {
    let server = ApiServer::start().await;
    let body = r#"{"id":"x","payload":"one","deliver_at":"2100-01-01T01:00:00+01:00"}"#;
    let created = server.call("POST", MESSAGES, body).await;
    assert_eq!(created.status, 201);
    let expected = json!({"id": "x", "route": "a", "deliver_at": IN_2100, "status": "scheduled"});
    assert_eq!(created.json, expected);

    let kept = server.call("POST", MESSAGES, r#"{"id":"x","payload":"two","delay":5}"#).await;
    assert_eq!(kept.status, 200);
    let expected = json!({"id": "x", "route": "a", "deliver_at": IN_2100, "status": "exists", "state": "pending"});
    assert_eq!(kept.json, expected);
    let payload = async || server.call("GET", "/v1/routes/a/messages/x", "").await.json["payload"].clone();
    assert_eq!(payload().await, "one");

    let body = r#"{"id":"x","payload":"two","deliver_at":4102444800001,"on_conflict":"replace"}"#;
    let replaced = server.call("POST", MESSAGES, body).await;
    assert_eq!((replaced.status, &replaced.json["status"]), (200, &json!("replaced")));
    assert_eq!(replaced.json["deliver_at"], "2100-01-01T00:00:00.001Z");
    assert_eq!(payload().await, "two");
}

#[tokio::test]
async fn a_message_in_flight_is_kept_but_not_replaced() {
    let server = ApiServer::start().await;
    server.schedule("a", r#"{"id":"x","payload":"one"}"#).await;
    assert_eq!(server.claim("a").await.len(), 1);
    let kept = server.call("POST", MESSAGES, r#"{"id":"x","payload":"two"}"#).await;
    assert_eq!((kept.status, &kept.json["state"]), (200, &json!("unack")));
    let replace = r#"{"id":"x","payload":"two","on_conflict":"replace"}"#;
    assert_eq!(server.call("POST", MESSAGES, replace).await.problem(409), "in-flight");

    let array = server.call("POST", MESSAGES, &format!(r#"[{replace},{{"id":"y","payload":1}}]"#)).await;
    assert_eq!(array.status, 200);
    assert_eq!(array.json["results"][0]["status"], "in_flight");
    assert_eq!(array.json["results"][1]["status"], "scheduled");
}

#[tokio::test]
async fn a_dead_message_revives_when_replaced() {
    let server = ApiServer::start().await;
    server.bury("a", "x").await;
    let kept = server.call("POST", MESSAGES, r#"{"id":"x","payload":"two"}"#).await;
    assert_eq!((kept.status, &kept.json["state"]), (200, &json!("dead")));
    let replaced = server.call("POST", MESSAGES, r#"{"id":"x","payload":"two","on_conflict":"replace"}"#).await;
    assert_eq!((replaced.status, &replaced.json["status"]), (200, &json!("replaced")));
    let now = server.call("GET", "/v1/routes/a/messages/x", "").await.json;
    assert_eq!((&now["state"], &now["attempts"]), (&json!("pending"), &json!(0)));
}

#[tokio::test]
async fn without_an_id_the_idempotency_key_is_one_and_else_one_is_made() {
    let server = ApiServer::start().await;
    let keyed = || server.request("POST", MESSAGES).body(r#"{"payload":1,"delay":"1h"}"#);
    let first = answer(keyed().header("Idempotency-Key", "\"key-1\"")).await;
    assert_eq!((first.status, &first.json["id"]), (201, &json!("key-1")));
    let again = answer(keyed().header("Idempotency-Key", "key-1")).await;
    assert_eq!((again.status, &again.json["status"]), (200, &json!("exists")));
    answer(keyed().header("Idempotency-Key", "not an id")).await.problem(400);
    let array = server.request("POST", MESSAGES).header("Idempotency-Key", "k").body("[]");
    answer(array).await.problem(400);

    let made: HashSet<String> =
        [server.schedule("a", r#"{"payload":1}"#).await, server.schedule("a", r#"{"payload":1}"#).await]
            .iter()
            .map(|scheduled| scheduled["id"].as_str().unwrap().to_owned())
            .collect();
    assert_eq!(made.len(), 2);
    assert!(made.iter().all(|id| id.len() == 26), "{made:?}");
}

#[tokio::test]
async fn a_thousand_messages_come_back_in_their_order_over_all_partitions() {
    let server = ApiServer::start().await;
    let items: Vec<_> = (0..1000).map(|n| json!({"id": format!("m{n}"), "payload": n, "delay": "1h"})).collect();
    let answer = server.call("POST", "/v1/routes/b/messages", &json!(items).to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let results = answer.json["results"].as_array().unwrap();
    assert_eq!(results.len(), 1000);
    for (n, result) in results.iter().enumerate() {
        assert_eq!((&result["id"], &result["status"]), (&json!(format!("m{n}")), &json!("scheduled")));
    }
    let empty = server.call("POST", MESSAGES, "[]").await;
    assert_eq!((empty.status, empty.json), (200, json!({"results": []})));
}

#[tokio::test]
async fn one_invalid_item_refuses_the_whole_array_and_each_is_named() {
    let server = ApiServer::start().await;
    let body = r#"[{"id":"good","payload":1},{"payload":1,"delay":-1},{"id":"a b"}]"#;
    let refused = server.call("POST", MESSAGES, body).await;
    assert_eq!(refused.problem(422), "invalid");
    let pointers: Vec<_> = refused.json["errors"].as_array().unwrap().iter().map(|e| &e["pointer"]).collect();
    assert_eq!(pointers, ["/1/delay", "/2/id", "/2"]);
    assert!(server.ids_in("a", "pending").await.is_empty());

    let large = "x".repeat(MAX_PAYLOAD + 1);
    let refused = server.call("POST", MESSAGES, &json!([{"payload": 1}, {"payload": large}]).to_string()).await;
    assert_eq!(refused.problem(413), "too-large");
    assert_eq!(refused.json["errors"][0]["pointer"], "/1/payload");
    assert!(server.ids_in("a", "pending").await.is_empty());
}

#[tokio::test]
async fn all_mistakes_of_a_message_are_named_at_once() {
    let server = ApiServer::start().await;
    let named = async |body: &str| {
        let refused = server.call("POST", MESSAGES, body).await;
        assert_eq!(refused.problem(422), "invalid");
        let errors = refused.json["errors"].as_array().expect("errors").clone();
        let pointers = errors.iter().map(|one| one["pointer"].as_str().expect("a pointer").to_owned());
        (pointers.collect::<Vec<_>>(), refused.text)
    };
    let body = r#"{"payload":1,"dealy":1,"key":7,"max_attempts":0,"delay":"soon","deliver_at":"later","foo":2,
        "headers":[{"name":7,"value":"x","x":1},{"name":"b","type":"int","value":1},{"value":""}],
        "properties":{"priority":256,"type":1,"nope":1},"origin":{"timestamp":-1,"cluster_id":1}}"#;
    let (mut pointers, text) = named(body).await;
    pointers.sort();
    let expected = [
        "",
        "",
        "",
        "/delay",
        "/deliver_at",
        "/headers/0",
        "/headers/0/name",
        "/key",
        "/origin/cluster_id",
        "/origin/timestamp",
    ];
    assert_eq!(pointers, expected, "{text}");
    assert!(text.contains("16 mistakes, of which 10 are named"), "{text}");
    let body = r#"{"payload":1,"properties":{"priority":256,"type":1,"nope":1,"app_id":""},"max_attempts":0,
        "origin":{"timestamp":-1,"cluster_id":1},"headers":{"Host":"x","a":1}}"#;
    let (mut pointers, text) = named(body).await;
    pointers.sort();
    let expected = [
        "/headers",
        "/headers",
        "/max_attempts",
        "/origin/cluster_id",
        "/origin/timestamp",
        "/properties",
        "/properties/priority",
        "/properties/type",
    ];
    assert_eq!(pointers, expected, "{text}");
    // Mistakes of the message as a whole.
    let body = r#"{"payload":1,"key":"a\nb","flow":"a b","content_type":"a\nb","headers":{"Host":"x","b c":"y"},
        "properties":{"app_id":"a\nb","type":"a\nb"},"expires_at":"x"}"#;
    let (mut pointers, text) = named(body).await;
    pointers.sort();
    let expected =
        ["/content_type", "/expires_at", "/flow", "/headers", "/headers", "/key", "/properties", "/properties"];
    assert_eq!(pointers, expected, "{text}");

    let wrong = format!("{{\"payload\":1{}}}", ",\"x\":1".repeat(2000));
    let (pointers, text) = named(&format!("[{wrong},{{\"payload\":1,\"id\":\"a b\"}},{wrong}]")).await;
    let expected = [vec!["/0"; 10], vec!["/1/id"], vec!["/2"; 10]].concat();
    assert_eq!(pointers, expected, "each message has its ten: {text}");
}

#[tokio::test]
async fn an_empty_key_or_content_type_is_none() {
    let server = ApiServer::start().await;
    let shown = async |id: &str| {
        let message = server.call("GET", &format!("/v1/routes/a/messages/{id}"), "").await.json;
        (message["key"].clone(), message["content_type"].clone())
    };
    server.schedule("a", r#"{"id":"json","payload":{},"key":"","content_type":"","delay":"1h"}"#).await;
    assert_eq!(shown("json").await, (Value::Null, json!("application/json")));
    let raw = server.request("POST", "/v1/routes/a/raw?id=raw&key=&delay=1h").header("Content-Type", "").body("x");
    assert_eq!(answer(raw).await.status, 201);
    assert_eq!(shown("raw").await, (Value::Null, Value::Null));
    let text = std::fs::read_to_string("lua/produce.lua").expect("the script");
    let produced: Vec<redis::Value> = redis::Script::new(&text)
        .key("{punctual:a:0/1}:pending")
        .arg(&["1", "produced", "+3600000", "x", r#"{"key":"","content_type":""}"#])
        .invoke_async(&mut server.redis.connection().await)
        .await
        .expect("scheduled");
    assert_eq!(produced.len(), 3, "{produced:?}");
    assert_eq!(shown("produced").await, (Value::Null, Value::Null));
    server.schedule("a", r#"{"id":"explicit","payload":"x","key_base64":"","delay":"1h"}"#).await;
    assert_eq!(shown("explicit").await.0, "", "base64 can name the empty key");
    // An empty text of a field with a format is a mistake: without it, another message would be scheduled.
    for name in ["id", "delay", "deliver_at", "expires_at", "on_conflict", "max_attempts"] {
        let refused = server.call("POST", MESSAGES, &json!({"payload": 1, name: ""}).to_string()).await;
        assert_eq!(refused.problem(422), "invalid", "{name}");
        server.call("POST", &format!("/v1/routes/a/raw?{name}="), "x").await.problem(400);
    }
}

#[tokio::test]
async fn a_flow_is_a_field_of_a_message_of_each_item_of_an_array_and_of_a_raw_body() {
    let server = ApiServer::start().await;
    server.schedule("a", r#"{"id":"one","payload":1,"flow":"tenant:7","delay":"1h"}"#).await;
    let many =
        r#"[{"id":"two","payload":1,"flow":"~a.B-_9","delay":"1h"},{"id":"none","payload":1,"flow":"","delay":"1h"}]"#;
    assert_eq!(server.call("POST", MESSAGES, many).await.status, 200);
    for (id, flow, status) in [("raw", "tenant:7", 201), ("raw-none", "", 201), ("raw-wrong", "a%20b", 422)] {
        let path = format!("/v1/routes/a/raw?id={id}&flow={flow}&delay=1h");
        let reply = server.call("POST", &path, "x").await;
        assert_eq!(reply.status, status, "{}", reply.text);
        let text = "flow: a flow is 1 to 128 of A-Za-z0-9._:~-";
        assert!(status == 201 || reply.json["detail"] == text, "{}", reply.text);
    }
    let listed = server.call("GET", MESSAGES, "").await.json;
    for (id, flow) in
        [("one", json!("tenant:7")), ("two", json!("~a.B-_9")), ("none", Value::Null), ("raw", json!("tenant:7"))]
    {
        let shown = server.call("GET", &format!("{MESSAGES}/{id}"), "").await.json;
        let in_list = listed["messages"].as_array().unwrap().iter().find(|message| message["id"] == id);
        assert_eq!((&shown["flow"], &in_list.expect("listed")["flow"]), (&flow, &flow), "{id}");
        assert_eq!(shown.get("flow").is_none(), flow.is_null(), "{id}: absent, not null");
    }
    assert!(server.call("GET", &format!("{MESSAGES}/raw-none"), "").await.json.get("flow").is_none());
}

#[tokio::test]
async fn a_message_carries_everything_that_was_sent_with_it() {
    let server = ApiServer::start().await;
    let body = r#"{"id":"x","payload":{"b": 1,  "a":1.50},"headers":{"x-tenant":"00-1"},"key":"k",
                   "content_type":"application/cloudevents+json","max_attempts":3,"expires_at":4102444800000}"#;
    server.schedule("a", body).await;
    let claimed = server.claim("a").await.remove(0).1;
    let message = punctual::message::codec::decode(&claimed.body).unwrap();
    assert_eq!(message.payload, r#"{"b": 1,  "a":1.50}"#);
    let metadata = message.metadata;
    assert_eq!(&metadata.headers["x-tenant"], "00-1");
    assert_eq!(metadata.key.as_deref(), Some("k"));
    assert_eq!(metadata.content_type.as_deref(), Some("application/cloudevents+json"));
    assert_eq!((metadata.max_attempts, metadata.expires_at), (Some(3), Some(4_102_444_800_000)));
}

#[tokio::test]
async fn a_raw_body_is_the_payload_byte_for_byte() {
    let server = ApiServer::start().await;
    let bytes: Vec<u8> = (0..=255).collect();
    let raw = server
        .request("POST", "/v1/routes/a/raw?id=r&key=k&deliver_at=2100-01-01T01:00:00+01:00")
        .header("Content-Type", "image/png")
        .header("Punctual-Forward-X", "v")
        .header("X-Private", "stays")
        .body(bytes.clone());
    let created = answer(raw).await;
    assert_eq!(created.status, 201, "{}", created.text);
    assert_eq!(created.json, json!({"id": "r", "route": "a", "deliver_at": IN_2100, "status": "scheduled"}));
    let shown = server.call("GET", "/v1/routes/a/messages/r", "").await.json;
    assert_eq!((&shown["content_type"], &shown["key"]), (&json!("image/png"), &json!("k")));
    assert_eq!(shown["headers"], json!({"X": "v"}));
    let stored = server.call("PATCH", "/v1/routes/a/messages/r", r#"{"delay":0}"#).await;
    assert_eq!(stored.status, 200);
    let claimed = server.claim("a").await.remove(0).1;
    assert_eq!(punctual::message::codec::decode(&claimed.body).unwrap().payload, bytes);
}

#[tokio::test]
async fn a_raw_body_keeps_its_content_encoding() {
    let server = ApiServer::start().await;
    let post = |id: &str| server.request("POST", &format!("/v1/routes/a/raw?delay=1h&id={id}")).body("x");
    assert_eq!(answer(post("packed").header("Content-Encoding", "gzip")).await.status, 201);
    let shown = server.call("GET", "/v1/routes/a/messages/packed", "").await.json;
    assert_eq!(shown["headers"], json!({"Content-Encoding": "gzip"}));
    let twice = post("twice").header("Content-Encoding", "gzip").header("Punctual-Forward-Content-Encoding", "br");
    assert_eq!(answer(twice).await.problem(400), "bad-request");
    assert_eq!(server.call("GET", "/v1/routes/a/messages/twice", "").await.status, 404);
}

#[tokio::test]
async fn a_raw_body_takes_its_id_from_query_or_header_and_repeats_safely() {
    let server = ApiServer::start().await;
    let post = |query: &str| server.request("POST", &format!("/v1/routes/a/raw?delay=1h{query}")).body("x");
    let keyed = answer(post("").header("Idempotency-Key", "k1")).await;
    assert_eq!((keyed.status, &keyed.json["id"]), (201, &json!("k1")));
    let again = answer(post("&id=k1")).await;
    assert_eq!((again.status, &again.json["status"]), (200, &json!("exists")));
    let replaced = answer(post("&id=k1&on_conflict=replace")).await;
    assert_eq!((replaced.status, &replaced.json["status"]), (200, &json!("replaced")));
    let made = answer(server.request("POST", "/v1/routes/a/raw")).await;
    assert_eq!((made.status, made.json["id"].as_str().unwrap().len()), (201, 26));
}
