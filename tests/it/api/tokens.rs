//! Who may call what.

use std::sync::Arc;

use punctual::{
    config::{AuthConfig, Right, TokenConfig, TokenDigest},
    message::{MessageId, Metadata, NewMessage, OnConflict, RouteLimits},
    store::{
        Partition,
        redis::{RedisStore, RouteSettings, connection::Connection},
    },
    time::Due,
};
use serde_json::json;

use crate::support::{ApiServer, REQUEST_TIMEOUT, Setup, answer};

/// Every call of the API: method, path, the right that it needs.
const CALLS: [(&str, &str, Option<Right>); 16] = [
    ("POST", "/v1/routes/a/messages", Some(Right::Schedule)),
    ("POST", "/v1/routes/a/raw", Some(Right::Schedule)),
    ("PATCH", "/v1/routes/a/messages/x", Some(Right::Schedule)),
    ("DELETE", "/v1/routes/a/messages/x", Some(Right::Schedule)),
    ("GET", "/v1/routes/a/messages", Some(Right::Read)),
    ("GET", "/v1/routes/a/messages/x", Some(Right::Read)),
    ("GET", "/v1/routes", Some(Right::Read)),
    ("GET", "/v1/routes/a", Some(Right::Read)),
    ("GET", "/v1/sinks", Some(Right::Read)),
    ("GET", "/v1/sources", Some(Right::Read)),
    ("GET", "/metrics", Some(Right::Read)),
    ("POST", "/v1/routes/a/dead/redrive", Some(Right::Admin)),
    ("DELETE", "/v1/routes/a/dead", Some(Right::Admin)),
    ("POST", "/v1/routes/a/pause", Some(Right::Admin)),
    ("POST", "/v1/routes/a/resume", Some(Right::Admin)),
    ("GET", "/openapi.json", None),
];

async fn guarded(open_metrics: bool) -> ApiServer {
    let token = |token: &str, rights: &[Right], routes: &[&str]| TokenConfig {
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
    assert_eq!(server.call("GET", "/livez", "").await.status, 200);
    assert_eq!(server.call("GET", "/readyz", "").await.status, 200);
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
async fn a_route_that_is_not_configured_is_listed_for_a_token_of_all_routes_only() {
    let server = guarded(false).await;
    let connection = Connection::new(redis::Client::open(server.redis.url()).unwrap(), REQUEST_TIMEOUT);
    let settings = RouteSettings {
        name: "old".into(),
        partitions: 1,
        max_payload: 100,
        remember: None,
        limits: RouteLimits::default(),
    };
    let store = RedisStore::new(Arc::new(connection), "punctual", [settings]);
    store.register(false).await.expect("registered");
    store.schedule(&partition("old"), &[message()]).await.expect("scheduled");
    for (token, routes) in [("t-read", &["a", "b", "old"][..]), ("t-only-b", &["b"])] {
        let listed = answer(server.request("GET", "/v1/routes").bearer_auth(token)).await.json;
        let names = listed["routes"].as_array().unwrap().iter().map(|route| route["route"].as_str().unwrap());
        assert_eq!(names.collect::<Vec<_>>(), routes, "{token}");
    }
}

fn partition(route: &str) -> Partition {
    Partition { route: route.into(), number: 0 }
}

fn message() -> NewMessage {
    NewMessage {
        id: MessageId::parse("x").unwrap(),
        due: Due::After(3_600_000),
        payload: "payload".into(),
        metadata: Metadata::default(),
        on_conflict: OnConflict::Keep,
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
            called.json[list][0]["last_error"].clone()
        };
        assert_eq!(shown("t-read").await, error, "{path}");
        assert_eq!(shown("t-only-b").await, serde_json::Value::Null, "{path}");
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
    assert_eq!(answer(with_token).await.status, 200, "whoever has the token is no web page");
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
    assert_eq!(answer(named).await.status, 200, "whoever has the token is no web page");
}
