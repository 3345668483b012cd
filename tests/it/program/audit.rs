//! Log lines about clients of the API.

use std::time::Duration;

use super::eventually;
use crate::support::{RedisServer, http, punctual::Punctual};

fn configuration(redis: &RedisServer) -> String {
    format!(
        "redis: {{ url: '{}' }}
server:
  auth:
    tokens:
      - {{ token: night-shift-secret, name: night-shift, rights: [schedule, read, admin] }}
      - {{ token: unnamed-secret-token, rights: [admin] }}
sinks: {{ jobs: {{ type: redis_list, key: jobs }} }}
routes: {{ later: {{ sink: jobs }} }}
",
        redis.url()
    )
}

#[tokio::test]
async fn each_change_of_an_operator_is_one_line_with_the_name_of_the_token() {
    let redis = RedisServer::start().await;
    let punctual = Punctual::start_with(&configuration(&redis), &[]).await;
    let call = async |token: &str, method: &str, path: &str, body: &'static str| {
        let method = reqwest::Method::from_bytes(method.as_bytes()).expect("a method");
        let request = http::client().request(method, punctual.url(&format!("/v1/routes/later/{path}")));
        request.bearer_auth(token).body(body).send().await.expect("an answer").status().as_u16()
    };
    let named = "night-shift-secret";
    for id in ["a", "b", "c"] {
        let body = format!(r#"{{"id":"{id}","payload":1,"delay":"1h"}}"#).leak();
        assert_eq!(call(named, "POST", "messages", body).await, 201);
    }
    assert_eq!(call(named, "POST", "resume", "").await, 204, "it was not paused");
    for _ in 0..2 {
        assert_eq!(call(named, "POST", "pause", r#"{"note":"the receiver is being moved"}"#).await, 204);
    }
    assert_eq!(call(named, "POST", "messages/a/deliver", "").await, 200);
    assert_eq!(call(named, "DELETE", "messages/none", "").await, 404);
    assert_eq!(call(named, "POST", "repartition", r#"{"partitions":1}"#).await, 204, "it is the newest number");
    assert_eq!(call(named, "PATCH", "messages/b", r#"{"delay":"2h"}"#).await, 200);
    assert_eq!(call(named, "DELETE", "messages/c", "").await, 204);
    let replaced = r#"{"id":"a","payload":2,"delay":"1h","on_conflict":"replace"}"#;
    assert_eq!(call(named, "POST", "messages", replaced).await, 200);
    let new = r#"{"id":"d","payload":2,"delay":"1h","on_conflict":"replace"}"#;
    assert_eq!(call(named, "POST", "messages", new).await, 201, "a new message is no change of another");
    assert_eq!(call("unnamed-secret-token", "POST", "purge", r#"{"ids":["b","none"]}"#).await, 200);
    assert_eq!(call("unnamed-secret-token", "POST", "purge", r#"{"all":true,"dry_run":true}"#).await, 200);
    assert_eq!(call("unnamed-secret-token", "POST", "purge", r#"{"all":true}"#).await, 200);
    assert_eq!(call("unnamed-secret-token", "POST", "dead/purge", r#"{"all":true}"#).await, 200);
    for _ in 0..2 {
        assert_eq!(call(named, "POST", "resume", "").await, 204);
    }
    assert_eq!(call(named, "POST", "pause", "").await, 204);
    assert_eq!(call(named, "POST", "pause", r#"{"note":"again"}"#).await, 204, "another note is a change");
    for _ in 0..2 {
        assert_eq!(call(named, "POST", "repartition", r#"{"partitions":2}"#).await, 204);
    }
    assert_eq!(call(named, "POST", "resume", "").await, 204);
    let audited = || {
        let log = punctual.log();
        log.lines().filter(|line| line.contains("audit")).map(str::to_owned).collect::<Vec<_>>()
    };
    eventually("all are logged", Duration::from_secs(5), async || (audited().len() >= 12).then_some(())).await;
    let lines = audited();
    let expected = [
        ("night-shift", "pause", r#"note="the receiver is being moved" count=1"#),
        ("night-shift", "deliver", r#"id="a" count=1"#),
        ("night-shift", "move", r#"id="b" count=1"#),
        ("night-shift", "cancel", r#"id="c" count=1"#),
        ("night-shift", "replace", r#"id="a" count=1"#),
        ("tokens.1", "purge_pending", r#"selection="b, none" count=1"#),
        ("tokens.1", "purge_pending", r#"selection="all" count=2"#),
        ("night-shift", "resume", "count=1"),
        ("night-shift", "pause", "count=1"),
        ("night-shift", "pause", r#"note="again" count=1"#),
        ("night-shift", "repartition", r#"note="partitions: 2" count=1"#),
        ("night-shift", "resume", "count=1"),
    ];
    assert_eq!(lines.len(), expected.len(), "neither dry runs nor what changed nothing: {lines:#?}");
    for (line, (token, call, of)) in lines.iter().zip(expected) {
        let fields = format!(r#"INFO audit token="{token}" peer="127.0.0.1" call="{call}" route="later" {of}"#);
        assert!(line.ends_with(&fields), "{fields}: {line}");
    }
    assert!(!punctual.log().contains("secret"), "no token is logged");
    let shown =
        http::client().get(punctual.url("/v1/routes/later")).bearer_auth(named).send().await.expect("an answer");
    assert!(shown.text().await.expect("a body").contains("\"paused\":false"));
}

#[tokio::test]
async fn a_producer_that_always_replaces_has_a_line_at_once_and_then_a_number() {
    let redis = RedisServer::start().await;
    let mut punctual = Punctual::start_with(&configuration(&redis), &[]).await;
    for n in 0..30 {
        let body = format!(r#"[{{"id":"a","payload":{n},"delay":"1h","on_conflict":"replace"}}]"#);
        let request = http::client().post(punctual.url("/v1/routes/later/messages")).bearer_auth("night-shift-secret");
        assert!(request.body(body).send().await.expect("an answer").status().is_success());
    }
    assert_eq!(punctual.terminate().await.code, Some(0));
    let log = punctual.log();
    let fields: Vec<_> = log.lines().filter_map(|line| line.split_once(" audit ")).map(|(_, fields)| fields).collect();
    let line = r#"token="night-shift" peer="127.0.0.1" call="replace" route="later" id="a" count="#;
    assert_eq!(fields, [format!("{line}1"), format!("{line}28")], "the first message was new");
}

#[tokio::test]
async fn calls_without_a_known_token_are_counted_and_logged_once_a_second() {
    let redis = RedisServer::start().await;
    let punctual = Punctual::start_with(&configuration(&redis), &[]).await;
    let client = http::client();
    for _ in 0..20 {
        let refused = client.get(punctual.url("/v1/routes")).bearer_auth("guessed").send().await;
        assert_eq!(refused.expect("an answer").status().as_u16(), 401);
    }
    let refused = || {
        let log = punctual.log();
        log.lines().filter(|line| line.contains("without a known token")).map(str::to_owned).collect::<Vec<_>>()
    };
    eventually("it is logged", Duration::from_secs(5), async || (!refused().is_empty()).then_some(())).await;
    let lines = refused();
    assert!((1..=3).contains(&lines.len()), "{lines:#?}");
    assert!(lines[0].contains("peer=\"127.0.0.1\" method=\"GET\" path=\"/v1/routes\""), "{}", lines[0]);
    assert!(!punctual.log().contains("guessed"));
    let page = http::client().get(punctual.url("/metrics")).bearer_auth("night-shift-secret").send().await;
    let page = page.expect("an answer").text().await.expect("a page");
    for line in [
        "punctual_auth_failures_total 20",
        r#"punctual_api_requests_total{call="GET /v1/routes",status="401"} 20"#,
        "punctual_ready 1",
        "punctual_redis_up 1",
        r#"punctual_route_paused{route="later"} 0"#,
        r#"punctual_due_within_messages{route="later",horizon="1h"} 0"#,
    ] {
        assert!(page.lines().any(|found| found == line), "{line}: {page}");
    }
    assert!(page.contains("process_resident_memory_bytes "), "{page}");
}

#[tokio::test]
async fn a_change_that_no_replica_confirmed_is_a_line_with_an_unknown_outcome() {
    let redis = RedisServer::start().await;
    let configuration = configuration(&redis)
        .replace("redis: { url", "redis: { durability: { replicas: 1, timeout: 100ms }, url")
        .replace("{ sink: jobs }", "{ sink: jobs, flow: { parallel: 5 } }");
    let punctual = Punctual::start_with(&configuration, &[]).await;
    let call = async |method: &str, path: &str, body: &'static str| {
        let method = reqwest::Method::from_bytes(method.as_bytes()).expect("a method");
        let request = http::client().request(method, punctual.url(&format!("/v1/{path}"))).body(body);
        request.bearer_auth("night-shift-secret").send().await.expect("an answer").status().as_u16()
    };
    let caller = r#"token="night-shift" peer="127.0.0.1""#;
    let messages =
        r#"[{"id":"a","payload":1,"delay":"1h","group":"g"},{"id":"b","payload":1,"delay":"1h","group":"g"}]"#;
    assert_eq!(call("POST", "routes/later/messages", messages).await, 503);
    let mut expected = Vec::new();
    for (method, path, body, name, of) in [
        ("POST", "routes/later/pause", r#"{"note":"moved"}"#, "pause", r#" note="moved""#),
        ("PATCH", "routes/later/messages/a", r#"{"delay":"2h"}"#, "move", r#" id="a""#),
        ("POST", "routes/later/messages/a/deliver", "", "deliver", r#" id="a""#),
        ("POST", "routes/later/move", r#"{"ids":["a"],"delay":"3h"}"#, "move_pending", r#" selection="a""#),
        ("DELETE", "routes/later/messages/a", "", "cancel", r#" id="a""#),
        ("PATCH", "routes/later/groups/g", r#"{"delay":"3h"}"#, "move_group", r#" selection="group=g""#),
        ("DELETE", "routes/later/groups/g", "", "cancel_group", r#" selection="group=g""#),
        ("POST", "routes/later/purge", r#"{"ids":["b"]}"#, "purge_pending", r#" selection="b""#),
        ("PATCH", "routes/later/flows/t", r#"{"rate":null}"#, "change_flow", r#" flow="t" note="{\"rate\":null}""#),
        ("POST", "routes/later/flows/t/pause", "", "pause_flow", r#" flow="t""#),
        ("POST", "routes/later/flows/t/resume", "", "resume_flow", r#" flow="t""#),
        ("POST", "routes/later/resume", "", "resume", ""),
        ("PUT", "schedules/s", r#"{"route":"later","every":"1h","payload":1}"#, "set_schedule", r#" schedule="s""#),
        ("POST", "schedules/s/pause", "", "pause_schedule", r#" schedule="s""#),
        ("POST", "schedules/s/resume", "", "resume_schedule", r#" schedule="s""#),
        ("POST", "schedules/s/run", "", "run_schedule", r#" schedule="s""#),
        ("DELETE", "schedules/s", "", "delete_schedule", r#" schedule="s""#),
    ] {
        assert_eq!(call(method, path, body).await, 503, "{method} {path}");
        expected.push(format!(r#"{caller} call="{name}" route="later"{of} count=0 outcome="unknown""#));
    }
    let replacing = r#"{"id":"c","payload":2,"delay":"1h","on_conflict":"replace"}"#;
    assert_eq!(call("POST", "routes/later/messages", replacing).await, 503);
    expected.push(format!(r#"{caller} call="replace" route="later" id="c" count=1 outcome="unknown""#));
    // Definite refusals, and calls that change nothing.
    for (method, path, body, status) in [
        ("POST", "routes/none/pause", "", 404),
        ("PATCH", "routes/later/messages/c", r#"{"delay":"soon"}"#, 422),
        ("DELETE", "routes/later/messages/%20", "", 400),
        ("DELETE", "schedules/none", "", 404),
        ("POST", "routes/later/dead/redrive", r#"{"all":true}"#, 200),
        ("POST", "routes/later/purge", r#"{"all":true,"dry_run":true}"#, 200),
    ] {
        assert_eq!(call(method, path, body).await, status, "{method} {path}");
    }
    // The log is in order: the line of this call is the last one.
    assert_eq!(call("POST", "routes/later/pause", r#"{"note":"last"}"#).await, 503);
    expected.push(expected[0].replace("moved", "last"));
    let audited = || {
        let log = punctual.log();
        let lines = log.lines().filter_map(|line| line.split_once(" audit ")).map(|(_, fields)| fields.to_owned());
        lines.collect::<Vec<_>>()
    };
    eventually("the last is logged", Duration::from_secs(5), async || {
        audited().last().is_some_and(|line| line.contains("last")).then_some(())
    })
    .await;
    assert_eq!(audited(), expected);
}
