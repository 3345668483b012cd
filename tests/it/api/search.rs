//! Messages that are found by what is in them, and changed in bulk by it.

use punctual::{message::DeadReason, time::parse_instant};
use serde_json::{Value, json};

use crate::support::{ApiServer, Setup};

const LIST: &str = "/v1/routes/b/messages";

/// `m0` to `m9`, an hour apart, of two tenants.
async fn filled() -> ApiServer {
    let server = ApiServer::start_with(Setup::default()).await;
    let message = |n: u32| {
        let (hours, tenant) = (n + 1, n % 2);
        json!({
            "id": format!("m{n}"), "delay": format!("{hours}h"), "key": format!("k{tenant}"),
            "headers": {"X-Tenant": format!("t{tenant}"), "X-All": "yes"},
            "payload": format!("order {n} {}", "of a long text that is stored compressed ".repeat(20)),
        })
    };
    let all = Value::from((0..10).map(message).collect::<Vec<_>>()).to_string();
    assert_eq!(server.call("POST", LIST, &all).await.status, 200);
    server
}

async fn ids(server: &ApiServer, query: &str) -> Vec<String> {
    let page = server.call("GET", &format!("{LIST}?{query}"), "").await;
    assert_eq!(page.status, 200, "{}", page.text);
    let id = |message: &Value| message["id"].as_str().expect("an id").to_owned();
    page.json["messages"].as_array().expect("a list").iter().map(id).collect()
}

#[tokio::test]
async fn a_list_is_filtered_by_key_headers_and_payload_in_both_orders() {
    let server = filled().await;
    assert_eq!(ids(&server, "key=k1").await, ["m1", "m3", "m5", "m7", "m9"]);
    assert_eq!(ids(&server, "key=k1&order=desc").await, ["m9", "m7", "m5", "m3", "m1"]);
    assert_eq!(ids(&server, "header.x-tenant=t0&header.X-All=yes&limit=2").await, ["m0", "m2"]);
    assert_eq!(ids(&server, "header.X-Tenant=t0&header.X-All=no").await, Vec::<String>::new());
    assert_eq!(ids(&server, "payload_contains=order%207").await, ["m7"]);
    assert_eq!(ids(&server, "payload_contains=Order%207").await, Vec::<String>::new());
    assert_eq!(ids(&server, "payload_contains=compressed&key=k0&order=desc&limit=2").await, ["m8", "m6"]);
    assert_eq!(ids(&server, "order=desc&limit=3").await, ["m9", "m8", "m7"]);
    let page = server.call("GET", &format!("{LIST}?payload_contains=nothing"), "").await.json;
    assert_eq!((&page["scanned"], &page["cursor"]), (&json!(10), &json!(null)));
    assert!(server.call("GET", LIST, "").await.json.get("scanned").is_none());
    for wrong in [
        "key=",
        "header.=x",
        "header.a=1&header.a=2",
        "payload_contains=",
        "order=up",
        "limit=x",
        "payload=1",
        "state=done",
        "key=a&key=b",
        "Header.X-Tenant=t0",
    ] {
        assert_eq!(server.call("GET", &format!("{LIST}?{wrong}"), "").await.problem(400), "bad-request", "{wrong}");
    }
    let summary = server.call("GET", "/v1/routes/b/dead/summary?key=k1", "").await;
    assert_eq!(summary.problem(400), "bad-request");
}

#[tokio::test]
async fn pages_in_descending_order_have_each_message_once() {
    let server = filled().await;
    for query in ["order=desc&limit=3", "order=desc&limit=2&header.X-All=yes"] {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = server.call("GET", &format!("{LIST}?{query}{cursor}"), "").await.json;
            let messages = page["messages"].as_array().expect("a list");
            seen.extend(messages.iter().map(|one| one["id"].as_str().expect("an id").to_owned()));
            let Some(next) = page["cursor"].as_str() else { break };
            let other = server.call("GET", &format!("{LIST}?order=asc&cursor={next}"), "").await;
            assert_eq!(other.problem(400), "bad-request", "a cursor of the other order");
            cursor = format!("&cursor={next}");
        }
        let expected: Vec<_> = (0..10).rev().map(|n| format!("m{n}")).collect();
        assert_eq!(seen, expected, "{query}");
    }
}

#[tokio::test]
async fn dead_letters_are_listed_newest_first_and_changed_by_what_is_in_them() {
    let server = ApiServer::start().await;
    for id in ["d1", "d2", "d3"] {
        server.bury_as("a", id, DeadReason::Expired, "late").await;
    }
    let list = async |query: &str| {
        let page = server.call("GET", &format!("/v1/routes/a/messages?state=dead{query}"), "").await.json;
        let id = |message: &Value| message["id"].as_str().expect("an id").to_owned();
        page["messages"].as_array().expect("a list").iter().map(id).collect::<Vec<_>>()
    };
    assert_eq!(list("").await, ["d3", "d2", "d1"]);
    assert_eq!(list("&order=asc").await, ["d1", "d2", "d3"]);
    let payload = server.call("GET", "/v1/routes/a/messages/d1", "").await.json["payload"].clone();
    let contains = json!({"payload_contains": payload, "dry_run": true}).to_string();
    let counted = server.call("POST", "/v1/routes/a/dead/purge", &contains).await.json;
    assert_eq!((&counted["count"], &counted["scanned"]), (&json!(3), &json!(3)));
    let none = r#"{"payload_contains":"nothing like it"}"#;
    assert_eq!(server.call("POST", "/v1/routes/a/dead/purge", none).await.json["count"], 0);
    let some = json!({"payload_contains": payload, "limit": 2}).to_string();
    let purged = server.call("POST", "/v1/routes/a/dead/purge", &some).await.json;
    assert_eq!((&purged["count"], &purged["more"]), (&json!(2), &json!(true)));
    let rest = json!({"payload_contains": payload, "cursor": purged["cursor"]}).to_string();
    assert_eq!(server.call("POST", "/v1/routes/a/dead/redrive", &rest).await.json["count"], 1);
    assert_eq!(server.ids_in("a", "dead").await, Vec::<String>::new());
    assert_eq!(server.call("GET", "/v1/routes/a/messages/d3", "").await.json["state"], "pending");
}

#[tokio::test]
async fn redriven_messages_are_due_one_after_another() {
    let server = ApiServer::start().await;
    for id in ["d1", "d2", "d3", "d4"] {
        server.bury("a", id).await;
    }
    let redrive = async |body: Value| server.call("POST", "/v1/routes/a/dead/redrive", &body.to_string()).await.json;
    let start = 4_000_000_000_000_u64;
    let first = redrive(json!({"all": true, "rate": "2/s", "start": start, "limit": 3})).await;
    assert_eq!((&first["count"], &first["next"]), (&json!(3), &json!("2096-10-02T07:06:41.500Z")));
    let body = json!({"all": true, "rate": "2/s", "start": first["next"]});
    assert_eq!(redrive(body).await["next"], "2096-10-02T07:06:42.000Z");
    let page = server.call("GET", "/v1/routes/a/messages", "").await.json;
    let due = |message: &Value| (message["id"].clone(), message["deliver_at"].clone());
    let dues: Vec<_> = page["messages"].as_array().expect("a list").iter().map(due).collect();
    let at = |id: &str, text: &str| (json!(id), json!(text));
    assert_eq!(
        dues,
        [
            at("d1", "2096-10-02T07:06:40.000Z"),
            at("d2", "2096-10-02T07:06:40.500Z"),
            at("d3", "2096-10-02T07:06:41.000Z"),
            at("d4", "2096-10-02T07:06:41.500Z"),
        ]
    );
    assert!(redrive(json!({"all": true})).await.get("next").is_none());
}

#[tokio::test]
async fn pending_messages_are_moved_once_and_cancelled_by_a_filter() {
    let server = filled().await;
    let due = async |id: &str| {
        let text = server.call("GET", &format!("{LIST}/{id}"), "").await.json["deliver_at"].clone();
        parse_instant(text.as_str().expect("a time")).expect("a time").get()
    };
    let call = async |name: &str, body: Value| {
        server.call("POST", &format!("/v1/routes/b/{name}"), &body.to_string()).await.json
    };
    let before = [due("m0").await, due("m1").await];
    let counted = call("move", json!({"key": "k0", "shift": "+3h", "dry_run": true})).await;
    assert_eq!((&counted["count"], &counted["more"]), (&json!(5), &json!(false)));
    assert_eq!(due("m0").await, before[0]);
    // Message by message, each at a later time than those that follow.
    let (mut body, mut moved) = (json!({"key": "k0", "shift": "+3h", "limit": 1}), 0);
    loop {
        let answer = call("move", body.clone()).await;
        moved += answer["count"].as_u64().expect("a number");
        if answer["more"] == false {
            break;
        }
        body["cursor"] = answer["cursor"].clone();
    }
    assert_eq!(moved, 5);
    assert_eq!([due("m0").await, due("m1").await], [before[0] + 3 * 3_600_000, before[1]]);
    assert_eq!(call("move", json!({"ids": ["m1", "unknown"], "shift": "-30m"})).await["count"], 1);
    assert_eq!(due("m1").await, before[1] - 30 * 60_000);
    // A call is repeated because its answer was lost: nothing is shifted twice.
    let mut named = json!({"ids": ["m1", "m3"], "shift": "+1h", "dry_run": true});
    let bound = call("move", named.clone()).await["before"].clone();
    (named["dry_run"], named["before"]) = (false.into(), bound);
    for count in [2, 0] {
        let moved = call("move", named.clone()).await;
        assert_eq!((&moved["count"], &moved["refused"]), (&json!(count), &json!([])));
    }
    let at = json!({"all": true, "deliver_at": 4_000_000_000_000_u64});
    assert_eq!(call("move", at).await["count"], 10);
    assert_eq!(due("m5").await, 4_000_000_000_000);

    let purged = call("purge", json!({"header": {"X-Tenant": "t1"}, "limit": 2})).await;
    assert_eq!((&purged["count"], &purged["more"]), (&json!(2), &json!(true)));
    let rest = json!({"header": {"X-Tenant": "t1"}, "cursor": purged["cursor"], "before": purged["before"]});
    assert_eq!(call("purge", rest).await["count"], 3);
    assert_eq!(ids(&server, "limit=20").await, ["m0", "m2", "m4", "m6", "m8"]);
    // Messages that were accepted after the given time stay.
    let answer = call("purge", json!({"all": true, "before": 1_700_000_000_000_u64})).await;
    assert_eq!(answer["count"], 0);
    assert_eq!(call("purge", json!({"all": true})).await["count"], 5);
}

#[tokio::test]
async fn a_message_is_found_by_its_id_on_the_routes_of_the_token() {
    let server = ApiServer::start().await;
    for route in ["a", "b"] {
        server.schedule(route, r#"{"id":"x","payload":"secret","delay":"1h"}"#).await;
    }
    server.bury("a", "d").await;
    let find = async |id: &str| server.call("GET", &format!("/v1/messages/{id}"), "").await.json;
    let found = find("x").await;
    let routes: Vec<_> = found["messages"].as_array().expect("a list").iter().map(|one| one["route"].clone()).collect();
    assert_eq!(routes, ["a", "b"]);
    assert!(!found.to_string().contains("secret"));
    assert_eq!(find("d").await["messages"][0]["state"], "dead");
    assert_eq!(find("unknown").await, json!({"messages": [], "failed": []}));
    // A route with a key of another type does not hide the others; if all routes have one, the call fails.
    let mut redis = server.redis.connection().await;
    let mut spoil = async |partition: &str| {
        let key = format!("{{punctual:{partition}}}:pending");
        let () = redis::pipe().del(&key).set(&key, "x").query_async(&mut redis).await.expect("written");
    };
    spoil("a:0/1").await;
    let some = find("x").await;
    assert_eq!((&some["messages"][0]["route"], &some["failed"][0]["route"]), (&json!("b"), &json!("a")));
    spoil("b:0/2").await;
    spoil("b:1/2").await;
    server.call("GET", "/v1/messages/x", "").await.problem(500);
}
