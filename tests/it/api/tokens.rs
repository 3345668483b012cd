//! Who may call what.

use std::{collections::BTreeSet, sync::Arc};

use punctual::{
    config::{AuthConfig, Right, TokenConfig, TokenDigest},
    message::{DeadReason, MessageId, Metadata, NewMessage, OnConflict},
    store::{
        Partition,
        redis::{RedisStore, RouteSettings, connection::Connection},
    },
    time::Due,
};
use serde_json::{Value, json};

use crate::{
    program::refusals::content,
    support::{ApiServer, REQUEST_TIMEOUT, Setup, answer, scale::full},
};

/// Every call of the API but the probes, with route `a` and message `x` for `{route}` and `{id}`: method, path, the right
/// that it needs.
const CALLS: [(&str, &str, Option<Right>); 47] = [
    ("GET", "/v1/routes/a/groups/g", Some(Right::Read)),
    ("DELETE", "/v1/routes/a/groups/g", Some(Right::Schedule)),
    ("PATCH", "/v1/routes/a/groups/g", Some(Right::Schedule)),
    ("POST", "/v1/routes/a/groups/g/deliver", Some(Right::Schedule)),
    ("GET", "/v1/routes/a/flows", Some(Right::Read)),
    ("GET", "/v1/routes/a/flows/f", Some(Right::Read)),
    ("PATCH", "/v1/routes/a/flows/f", Some(Right::Admin)),
    ("POST", "/v1/routes/a/flows/f/pause", Some(Right::Admin)),
    ("POST", "/v1/routes/a/flows/f/resume", Some(Right::Admin)),
    ("POST", "/v1/routes/a/messages", Some(Right::Schedule)),
    ("POST", "/v1/routes/a/raw", Some(Right::Schedule)),
    ("PATCH", "/v1/routes/a/messages/x", Some(Right::Schedule)),
    ("DELETE", "/v1/routes/a/messages/x", Some(Right::Schedule)),
    ("GET", "/v1/routes/a/messages", Some(Right::Read)),
    ("GET", "/v1/routes/a/messages/x", Some(Right::Read)),
    ("GET", "/v1/routes", Some(Right::Read)),
    ("GET", "/v1/routes/a", Some(Right::Read)),
    ("POST", "/v1/routes/a/messages/x/deliver", Some(Right::Schedule)),
    ("GET", "/v1/routes/a/dead/summary", Some(Right::Read)),
    ("GET", "/v1/routes/a/forecast", Some(Right::Read)),
    ("GET", "/v1/forecast", Some(Right::Read)),
    ("GET", "/v1/routes/a/chart", Some(Right::Read)),
    ("GET", "/v1/charts", Some(Right::Read)),
    ("POST", "/v1/reload", Some(Right::Admin)),
    ("GET", "/v1/overview", Some(Right::Read)),
    ("GET", "/v1/sinks", Some(Right::Read)),
    ("GET", "/v1/sources", Some(Right::Read)),
    ("GET", "/metrics", Some(Right::Read)),
    ("POST", "/v1/routes/a/dead/redrive", Some(Right::Admin)),
    ("POST", "/v1/routes/a/dead/purge", Some(Right::Admin)),
    ("POST", "/v1/routes/a/dead/forward", Some(Right::Admin)),
    ("POST", "/v1/routes/a/purge", Some(Right::Admin)),
    ("POST", "/v1/routes/a/move", Some(Right::Admin)),
    ("GET", "/v1/messages/x", Some(Right::Read)),
    ("POST", "/v1/routes/a/pause", Some(Right::Admin)),
    ("POST", "/v1/routes/a/resume", Some(Right::Admin)),
    ("POST", "/v1/routes/a/repartition", Some(Right::Admin)),
    ("GET", "/v1/schedules", Some(Right::Read)),
    ("POST", "/v1/schedules/preview", Some(Right::Read)),
    ("GET", "/v1/schedules/s", Some(Right::Read)),
    ("PUT", "/v1/schedules/s", Some(Right::Admin)),
    ("DELETE", "/v1/schedules/s", Some(Right::Admin)),
    ("GET", "/v1/schedules/s/next", Some(Right::Read)),
    ("POST", "/v1/schedules/s/run", Some(Right::Admin)),
    ("POST", "/v1/schedules/s/pause", Some(Right::Admin)),
    ("POST", "/v1/schedules/s/resume", Some(Right::Admin)),
    ("GET", "/openapi.json", None),
];

/// Calls that ask for no token.
const PROBES: [(&str, &str); 2] = [("GET", "/livez"), ("GET", "/readyz")];

/// The schedule `s` of the route `a`.
const SCHEDULE: &str = r#"{"route":"a","every":"1h","payload":1}"#;

/// A body that each call takes which has one.
fn body(method: &str, path: &str) -> &'static str {
    match (method, path.rsplit('/').next()) {
        ("PATCH", _) => r#"{"delay":"2h"}"#,
        ("PUT", _) => SCHEDULE,
        ("POST", Some("preview")) => r#"{"every":"1h"}"#,
        ("POST", Some("messages")) => r#"{"id":"new","delay":"1h","payload":1,"on_conflict":"replace"}"#,
        ("POST", Some("raw")) => "payload",
        ("POST", Some("repartition")) => r#"{"partitions":2}"#,
        ("POST", Some("purge" | "redrive" | "forward")) => r#"{"all":true}"#,
        ("POST", Some("move")) => r#"{"all":true,"shift":"1h"}"#,
        _ => "",
    }
}

async fn guarded(open_metrics: bool) -> ApiServer {
    let token = |token: &str, rights: &[Right], routes: &[&str]| TokenConfig {
        name: token.to_owned(),
        digest: TokenDigest::of(token),
        rights: rights.to_vec(),
        routes: routes.iter().map(ToString::to_string).collect(),
        messages_per_second: None,
    };
    let tokens = vec![
        token("t-schedule", &[Right::Schedule], &["*"]),
        token("t-read", &[Right::Read], &["*"]),
        token("t-admin", &[Right::Admin], &["*"]),
        token("t-only-b", &[Right::Schedule, Right::Read, Right::Admin], &["b"]),
    ];
    ApiServer::start_with(Setup { auth: Some(AuthConfig { tokens, open_metrics }), ..Setup::default() }).await
}

#[test]
fn the_table_has_every_call_of_the_description() {
    let document: Value = serde_json::from_str(include_str!("../../../src/api/openapi.json")).expect("JSON");
    let mut described = BTreeSet::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        let path = path.replace("{route}", "a").replace("{id}", "x").replace("{flow}", "f").replace("{name}", "s");
        let path = path.replace("{group}", "g");
        assert!(!path.contains('{'), "the table knows no such parameter: {path}");
        let methods = item.as_object().expect("an item").keys().filter(|key| *key != "parameters");
        described.extend(methods.map(|method| (method.to_uppercase(), path.clone())));
    }
    let calls = CALLS.into_iter().map(|(method, path, _)| (method, path)).chain(PROBES);
    let listed: BTreeSet<_> = calls.map(|(method, path)| (method.to_owned(), path.to_owned())).collect();
    assert_eq!(listed, described, "a call of the API needs a line in the table that says which right it asks for");
}

/// Every set of rights, with every kind of limit.
fn every_token() -> Vec<(String, Vec<Right>, Vec<&'static str>)> {
    let mut tokens = Vec::new();
    for set in 1..8 {
        let all = [Right::Schedule, Right::Read, Right::Admin].into_iter().enumerate();
        let rights: Vec<_> = all.filter(|(place, _)| set & (1 << place) != 0).map(|(_, right)| right).collect();
        let lists: &[&[_]] = if set == 7 || full() {
            &[&["*"], &["a"], &["b"], &["a", "b"], &["b", "*"]]
        } else {
            &[&["*"], &["a"], &["b"]]
        };
        for routes in lists {
            tokens.push((format!("token-{set}-{}", routes.join("+")), rights.clone(), routes.to_vec()));
        }
    }
    tokens
}

#[tokio::test]
async fn every_call_is_answered_for_the_rights_and_routes_of_the_token_and_changes_nothing_for_others() {
    let tokens = every_token();
    let token = |(token, rights, routes): &(String, Vec<Right>, Vec<&str>)| TokenConfig {
        messages_per_second: None,
        name: token.to_owned(),
        digest: TokenDigest::of(token),
        rights: rights.clone(),
        routes: routes.iter().map(ToString::to_string).collect(),
    };
    let auth = AuthConfig { tokens: tokens.iter().map(token).collect(), open_metrics: false };
    let server = ApiServer::start_with(Setup { auth: Some(auth), ..Setup::default() }).await;
    let call = async |token: &str, method: &str, path: &str| {
        answer(server.request(method, path).bearer_auth(token).body(body(method, path))).await
    };
    let prepare = async || {
        let message = r#"{"id":"x","delay":"1h","payload":1,"on_conflict":"replace"}"#;
        let scheduled = server.request("POST", "/v1/routes/a/messages").bearer_auth("token-7-*").body(message);
        assert!(answer(scheduled).await.status < 300);
        let set = server.request("PUT", "/v1/schedules/s").bearer_auth("token-7-*").body(SCHEDULE);
        assert!(answer(set).await.status < 300);
    };
    prepare().await;
    let mut before = content(&server.redis).await;
    for (token, rights, routes) in &tokens {
        let everywhere = routes.contains(&"*");
        for (method, path, needed) in CALLS {
            let has_right = needed.is_none_or(|needed| rights.contains(&needed));
            let of_route = path.starts_with("/v1/routes/");
            let called = call(token, method, path).await;
            let of_schedule = path.starts_with("/v1/schedules/s");
            // The whole instance, which this server cannot read again.
            let of_instance = path == "/v1/reload";
            if has_right
                && (!(of_route || of_schedule || of_instance) || everywhere || !of_instance && routes.contains(&"a"))
            {
                // The route has no flows, and forwards nothing.
                let is_done = (200..300).contains(&called.status)
                    || (path.ends_with("/dead/forward") && called.problem(409) == "no-forwarding")
                    || (of_instance && called.problem(503) == "unavailable")
                    || (path.contains("/flows") && called.problem(404) == "no-flows");
                assert!(is_done, "{token} {method} {path}: {}", called.text);
                prepare().await;
                before = content(&server.redis).await;
            } else {
                assert_eq!(called.problem(403), "forbidden", "{token} {method} {path}");
                assert_eq!(content(&server.redis).await, before, "{token} {method} {path}");
            }
            // Only a token for all routes learns which ones there are.
            if of_route {
                let unknown = call(token, method, &path.replace("/a", "/none")).await;
                let expected = if has_right && everywhere { 404 } else { 403 };
                assert_eq!(unknown.status, expected, "{token} {method} {path}: {}", unknown.text);
            }
        }
    }
}

#[tokio::test]
async fn no_call_but_the_probes_answers_without_a_whole_token() {
    let server = guarded(false).await;
    let unknown = [("GET", "/", None), ("GET", "/v1/routes/none", None), ("PUT", "/v1/routes", None)];
    for (method, path, _) in CALLS.into_iter().chain(unknown) {
        let bare = answer(server.request(method, path)).await;
        assert_eq!(bare.problem(401), "unauthorized", "{method} {path}");
        assert_eq!(bare.headers["www-authenticate"], "Bearer");
        for wrong in
            ["Bearer wrong", "Bearer t-rea", "Bearer t-read1", "Bearer", "Basic dC1yZWFk", "t-read", "Bearer é"]
        {
            let request = server.request(method, path).header("Authorization", wrong);
            assert_eq!(answer(request).await.problem(401), "unauthorized", "{method} {path} {wrong}");
        }
    }
    for (method, path) in PROBES {
        assert_eq!(server.call(method, path, "").await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn each_call_asks_for_its_right_and_no_right_includes_another() {
    let server = guarded(false).await;
    let tokens = [("t-schedule", Right::Schedule), ("t-read", Right::Read), ("t-admin", Right::Admin)];
    for (method, path, needed) in CALLS {
        for (token, right) in tokens {
            let called = answer(server.request(method, path).bearer_auth(token)).await;
            if needed.is_none_or(|needed| needed == right) {
                assert!(![401, 403].contains(&called.status), "{method} {path} {token}: {}", called.text);
            } else {
                assert_eq!(called.problem(403), "forbidden", "{method} {path} {token}");
            }
        }
    }
}

#[tokio::test]
async fn a_token_sees_and_reaches_its_own_routes_only() {
    let server = guarded(false).await;
    let call = async |path: &str| answer(server.request("GET", path).bearer_auth("t-only-b")).await;
    assert_eq!(call("/v1/routes/b").await.status, 200);
    assert_eq!(call("/v1/routes/a").await.problem(403), "forbidden");
    assert_eq!(call("/v1/routes/none").await.problem(403), "forbidden");
    let listed = call("/v1/routes").await.json;
    assert_eq!(listed["routes"].as_array().unwrap().len(), 1);
    assert_eq!(listed["routes"][0]["route"], "b");
    let elsewhere = server.request("POST", "/v1/routes/a/messages").bearer_auth("t-only-b").body(r#"{"payload":1}"#);
    assert_eq!(answer(elsewhere).await.problem(403), "forbidden");
    assert!(server.ids_in("a", "pending").await.is_empty());
}

#[tokio::test]
async fn a_token_for_other_routes_is_refused_by_every_call_of_a_route() {
    let server = guarded(false).await;
    let scheduled = server.request("POST", "/v1/routes/a/messages").bearer_auth("t-schedule");
    assert_eq!(answer(scheduled.body(r#"{"id":"x","delay":"1h","payload":1}"#)).await.status, 201);
    for (method, path, _) in CALLS.into_iter().filter(|(_, path, _)| path.starts_with("/v1/routes/a")) {
        let called = answer(server.request(method, path).bearer_auth("t-only-b").body(r#"{"delay":0}"#)).await;
        assert_eq!(called.problem(403), "forbidden", "{method} {path}");
    }
    assert_eq!(server.ids_in("a", "pending").await, ["x"]);
}

#[tokio::test]
async fn an_unconfigured_route_is_listed_for_a_token_of_all_routes_only() {
    let server = guarded(false).await;
    let connection = Connection::new(redis::Client::open(server.redis.url()).unwrap(), REQUEST_TIMEOUT);
    let store = RedisStore::new(Arc::new(connection), "punctual", [RouteSettings::plain("old", 100)]);
    store.register().await.expect("registered");
    store.schedule(&partition("old"), &[message()]).await.expect("scheduled");
    for (token, routes) in [("t-read", &["a", "b", "old"][..]), ("t-only-b", &["b"])] {
        let listed = answer(server.request("GET", "/v1/routes").bearer_auth(token)).await.json;
        let names = listed["routes"].as_array().unwrap().iter().map(|route| route["route"].as_str().unwrap());
        assert_eq!(names.collect::<Vec<_>>(), routes, "{token}");
    }
}

fn partition(route: &str) -> Partition {
    Partition { route: route.into(), index: 0, count: 1 }
}

fn message() -> NewMessage {
    NewMessage {
        id: MessageId::parse("x").unwrap(),
        due: Due::After(3_600_000),
        payload: "payload".into(),
        metadata: Metadata::default(),
        on_conflict: OnConflict::Keep,
        debounce: None,
        record: None,
    }
}

#[tokio::test]
async fn errors_of_sinks_and_sources_are_shown_to_tokens_for_all_routes_only() {
    let server = guarded(false).await;
    for (path, list, error) in
        [("/v1/sinks", "sinks", "HTTP 500"), ("/v1/sources", "sources", "header `X-Tenant: other`")]
    {
        let shown = async |token: &str| {
            let called = answer(server.request("GET", path).bearer_auth(token)).await;
            assert_eq!(called.status, 200, "{}", called.text);
            called.json[list][0].clone()
        };
        assert_eq!(shown("t-read").await["last_error"], error, "{path}");
        let hidden = shown("t-only-b").await;
        assert_eq!(hidden["last_error"], Value::Null, "{path}");
        // The failure of a check is not secret; its text can contain values of messages.
        assert!(!hidden.to_string().contains("acme"), "{hidden}");
        assert_eq!(
            hidden["check"] == "fails: the error is shown to tokens for all routes",
            list == "sinks",
            "{hidden}"
        );
    }
}

#[tokio::test]
async fn metrics_can_be_opened_and_never_show_a_token() {
    let server = guarded(true).await;
    let with_token = server.request("POST", "/v1/routes/a/messages").bearer_auth("t-schedule").body(r#"{"payload":1}"#);
    assert_eq!(answer(with_token).await.status, 201);
    let page = server.call("GET", "/metrics", "").await;
    assert_eq!(page.status, 200);
    assert!(page.text.contains("punctual_messages_scheduled_total") && !page.text.contains("t-schedule"));
    server.call("GET", "/v1/sinks", "").await.problem(401);
}

#[tokio::test]
async fn without_tokens_a_page_of_another_origin_changes_nothing() {
    let server = ApiServer::start().await;
    let post = |origin: String| {
        server.request("POST", "/v1/routes/a/messages").header("Origin", origin).body(r#"{"payload":1}"#)
    };
    assert_eq!(answer(post("https://evil.example".into())).await.problem(403), "cross-origin");
    assert!(server.ids_in("a", "pending").await.is_empty());
    let own = answer(post(format!("http://{}", server.address))).await;
    assert_eq!((own.status, &own.json["status"]), (201, &json!("scheduled")));
}

#[tokio::test]
async fn without_tokens_what_a_browser_calls_cross_site_is_refused() {
    let server = ApiServer::start().await;
    let get =
        async |site: &'static str, path: &str| answer(server.request("GET", path).header("Sec-Fetch-Site", site)).await;
    for path in ["/v1/routes", "/metrics", "/v1/routes/a/messages"] {
        assert_eq!(get("cross-site", path).await.problem(403), "cross-origin", "{path}");
        for own in ["none", "same-origin", "same-site"] {
            assert_eq!(get(own, path).await.status, 200, "{path} {own}");
        }
    }
    assert_eq!(get("cross-site", "/livez").await.status, 200);
    let guarded = guarded(false).await;
    let with_token = guarded.request("GET", "/v1/routes").header("Sec-Fetch-Site", "cross-site").bearer_auth("t-read");
    assert_eq!(answer(with_token).await.status, 200, "a caller with the token is no web page");
}

#[tokio::test]
async fn without_tokens_only_names_of_this_machine_are_answered() {
    let server = ApiServer::start().await;
    let call = async |method: &str, path: &str, host: &str| {
        answer(server.request(method, path).header("Host", host).body(r#"{"payload":1}"#)).await
    };
    for (method, path) in [("GET", "/v1/routes"), ("GET", "/metrics"), ("POST", "/v1/routes/a/messages"), ("GET", "/")]
    {
        let refused = call(method, path, &format!("rebound.example:{}", server.address.port())).await;
        assert_eq!(refused.problem(421), "unknown-host", "{method} {path}");
    }
    assert!(server.ids_in("a", "pending").await.is_empty());
    assert_eq!(call("POST", "/v1/routes/a/messages", "localhost:1").await.status, 201, "a forwarded port is another");
    for probe in ["/livez", "/readyz"] {
        assert_eq!(call("GET", probe, "punctual.internal").await.status, 200, "{probe}");
    }
    let guarded = guarded(false).await;
    let named = guarded.request("GET", "/v1/routes").header("Host", "punctual.internal").bearer_auth("t-read");
    assert_eq!(answer(named).await.status, 200, "a caller with the token is no web page");
}

#[tokio::test]
async fn a_dead_letter_is_purged_with_the_right_admin_alone() {
    let server = guarded(false).await;
    let schedule = async |token: &str, route: &str, body: &str| {
        let path = format!("/v1/routes/{route}/messages");
        let answered = answer(server.request("POST", &path).bearer_auth(token).body(body.to_owned())).await;
        assert_eq!(answered.status, 201, "{}", answered.text);
    };
    let delete = async |token: &str, route: &str, id: &str| {
        answer(server.request("DELETE", &format!("/v1/routes/{route}/messages/{id}")).bearer_auth(token)).await
    };
    for (token, route) in [("t-schedule", "a"), ("t-only-b", "b")] {
        schedule(token, route, r#"{"id":"dead","payload":1}"#).await;
    }
    server.bury_all("a", 1, DeadReason::Rejected, "HTTP 400").await;
    server.bury_all("b", 2, DeadReason::Rejected, "HTTP 400").await;
    let refused = delete("t-schedule", "a", "dead").await;
    assert_eq!(refused.problem(403), "forbidden");
    assert!(refused.text.contains("`admin`"), "{}", refused.text);
    assert_eq!(server.ids_in("a", "dead").await, ["dead"]);
    let purged = delete("t-only-b", "b", "dead").await;
    assert_eq!((purged.status, &purged.json["status"]), (200, &json!("purged")), "{}", purged.text);

    // The others are as before.
    for (token, route) in [("t-schedule", "a"), ("t-only-b", "b")] {
        schedule(token, route, r#"{"id":"waits","payload":1,"delay":"1h"}"#).await;
        assert_eq!(delete(token, route, "waits").await.status, 204);
        assert_eq!(delete(token, route, "waits").await.problem(404), "unknown-message");
    }
    schedule("t-schedule", "a", r#"{"id":"flies","payload":1}"#).await;
    assert_eq!(server.claim("a").await.len(), 1);
    assert_eq!(delete("t-schedule", "a", "flies").await.problem(409), "in-flight");
}
