//! `flows`, and the flows in `status`.

use std::time::Duration;

use serde_json::{Value, json};

use super::Scene;
use crate::{
    program::{client::Client, eventually, refusals::content},
    support::receiver::Behaviour,
};

const MAX_WAIT: Duration = Duration::from_secs(10);

/// The route `slow` lets one message of a flow be in flight, and its receiver never replies.
async fn started() -> Scene {
    let flow = [("PUNCTUAL__ROUTES__SLOW__SINK", "hook"), ("PUNCTUAL__ROUTES__SLOW__FLOW__PARALLEL", "1")];
    let scene = Scene::with_environment("", &flow).await;
    scene.receiver.behave(Behaviour::Hang);
    scene
}

async fn schedule(scene: &Scene, flow: &str, ids: &[&str]) {
    let message = |id: &&str| json!({ "id": id, "flow": flow, "payload": id });
    let messages: Vec<Value> = ids.iter().map(message).collect();
    Client::of(&scene.punctual).schedule("slow", &json!(messages).to_string()).await;
}

/// The flow with this key, after `number` of its messages began to wait.
async fn waiting(scene: &Scene, key: &str, number: u64) -> Value {
    eventually("they wait", MAX_WAIT, async || {
        let flow = scene.json(&["flows", "slow", key]).await;
        (flow["waiting"] == number).then_some(flow)
    })
    .await
}

#[tokio::test]
async fn flows_are_listed_limited_paused_and_resumed() {
    let scene = started().await;
    assert_eq!(scene.done(&["flows", "slow", "--json"]).await, "");
    assert!(!scene.done(&["status"]).await.contains("flow"));
    let paused = scene.done(&["flows", "pause", "slow", "b", "--note", "the tenant asked for it"]).await;
    assert_eq!(paused, "paused flow b of slow\n");
    let limits = scene.done(&["flows", "set", "slow", "c", "--rate", "1/d", "--parallel", "9"]).await;
    assert_eq!(limits, "flow c of slow has rate 1/d, burst 1, parallel 9\n");
    schedule(&scene, "a", &["a1", "a2", "a3"]).await;
    schedule(&scene, "b", &["b1"]).await;
    schedule(&scene, "c", &["c1", "c2"]).await;
    schedule(&scene, "", &["e1", "e2"]).await;
    let mut flows = Vec::new();
    for (key, number) in [("@", 1), ("a", 2), ("b", 1), ("c", 1)] {
        flows.push(waiting(&scene, key, number).await);
    }
    let [_, a, b, c] = &flows[..] else { panic!("{flows:?}") };
    assert_eq!((&a["waits_for"], &a["held_by"], &a["parallel"]), (&json!("parallel"), &json!("a1"), &json!(1)));
    assert_eq!((&b["waits_for"], &b["note"]), (&json!("paused"), &json!("the tenant asked for it")));
    let overrides = json!({ "rate": "1/d", "parallel": 9 });
    assert_eq!((&c["waits_for"], &c["overrides"]), (&json!("rate"), &overrides));

    let status = scene.done(&["status"]).await;
    assert!(status.ends_with("\n\nslow: waiting for their flow: 5 messages of 4 flows\n"), "{status}");

    let table = scene.done(&["flows", "slow"]).await;
    let rows: Vec<Vec<&str>> =
        table.lines().map(|line| line.split("  ").filter(|cell| !cell.is_empty()).collect()).collect();
    let rows: Vec<Vec<&str>> = rows.iter().map(|row| row.iter().map(|cell| cell.trim()).collect()).collect();
    let header = ["KEY", "WAITING", "IN FLIGHT", "WAITS FOR", "NEXT SLOT", "HELD BY", "RATE", "PARALLEL"];
    assert_eq!(rows[0], header, "{table}");
    assert_eq!(rows[1], ["@", "1", "1", "parallel", "-", "e1", "-", "1"], "{table}");
    assert_eq!(rows[2], ["a", "2", "1", "parallel", "-", "a1", "-", "1"], "{table}");
    assert_eq!(rows[3], ["b", "1", "0", "paused", "-", "-", "-", "1"], "{table}");
    let slot = c["next_slot"].as_str().expect("a time");
    assert_eq!(rows[4], ["c", "1", "1", "rate", slot, "c1", "1/d", "9"], "{table}");
    assert_eq!(rows.len(), 5, "{table}");
    let one = scene.done(&["flows", "slow", "b"]).await;
    assert!(one.starts_with("key        b\nwaiting    1\n"), "{one}");
    assert!(one.contains("\nnote       the tenant asked for it"), "{one}");
    assert!(scene.done(&["flows", "slow", "@"]).await.starts_with("key        @\n"));

    // The other flows wait in any case: they are in flight.
    scene.done(&["flows", "resume", "slow", "b"]).await;
    let arrived = eventually("b arrives", MAX_WAIT, async || {
        let requests = scene.receiver.requests();
        requests.iter().any(|request| request.id() == "b1").then_some(requests.len())
    });
    assert_eq!(arrived.await, 4);
    let removed = scene.json(&["flows", "set", "slow", "c", "--rate", "none", "--parallel", "none"]).await;
    assert_eq!((&removed["rate"], &removed["overrides"]), (&Value::Null, &json!({})));
    scene.done(&["flows", "set", "slow", "a", "--parallel", "2"]).await;
    waiting(&scene, "a", 1).await;
}

#[tokio::test]
async fn a_listing_of_flows_follows_its_pages_up_to_its_limit() {
    let scene = started().await;
    let keys: Vec<String> = (0..105).map(|n| format!("f{n:03}")).collect();
    let messages: Vec<Value> = keys.iter().map(|key| json!({ "flow": key, "payload": 1 })).collect();
    Client::of(&scene.punctual).schedule("slow", &json!(messages).to_string()).await;
    let listed = async |limit: &str| {
        let ended = scene.run(&["flows", "slow", "--json", "--limit", limit]).await;
        let flow = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["key"].as_str().map(str::to_owned);
        let found: Vec<String> = ended.out.lines().map(|line| flow(line).expect("a key")).collect();
        (found, ended.error)
    };
    eventually("all are in flight", MAX_WAIT, async || {
        let (found, error) = listed("200").await;
        assert_eq!(error, "");
        (found == keys).then_some(())
    })
    .await;
    assert_eq!(listed("104").await, (keys[..104].to_vec(), "there are more: --limit\n".to_owned()));
    assert_eq!(scene.done(&["flows", "slow"]).await.lines().count(), 1 + 50);
}

#[tokio::test]
async fn messages_are_listed_and_dead_letters_selected_by_flow() {
    let scene = started().await;
    let client = Client::of(&scene.punctual);
    schedule(&scene, "a", &["a1", "a2", "a3"]).await;
    schedule(&scene, "b", &["b1", "b2"]).await;
    schedule(&scene, "", &["e1", "e2"]).await;
    for key in ["a", "b", "@"] {
        eventually("one is in flight", MAX_WAIT, async || {
            (scene.json(&["flows", "slow", key]).await["in_flight"] == 1).then_some(())
        })
        .await;
    }
    let listed = async |arguments: &[&str]| {
        let lines = scene.done(&[arguments, &["--json"]].concat()).await;
        let id = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["id"].as_str().map(str::to_owned);
        let ids: Vec<String> = lines.lines().map(|line| id(line).expect("an id")).collect();
        ids
    };
    assert_eq!(listed(&["list", "slow", "--flow", "a"]).await, ["a2", "a3"]);
    assert_eq!(listed(&["list", "slow", "--flow", "@"]).await, ["e2"]);
    assert_eq!(listed(&["list", "slow", "--flow", "a", "--state", "unack"]).await, ["a1"]);
    assert_eq!(listed(&["list", "slow", "--flow", "c"]).await, [""; 0]);
    let first = client.call("GET", "/v1/routes/slow/messages?flow=a&limit=1", "").await.json;
    assert_eq!((&first["messages"][0]["id"], first["messages"][1].is_null()), (&json!("a2"), true), "{first}");
    let path = format!("/v1/routes/slow/messages?flow=a&cursor={}", first["cursor"].as_str().expect("a cursor"));
    assert_eq!(client.call("GET", &path, "").await.json["messages"][0]["id"], "a3");

    // They die, and each selection takes those of one flow.
    scene.receiver.behave(Behaviour::Echo(422));
    eventually("all are dead", MAX_WAIT, async || (client.stats("slow").await["dead"] == 7).then_some(())).await;
    let summary = client.call("GET", "/v1/routes/slow/dead/summary?flow=b", "").await.json;
    assert_eq!(summary["total"], 2, "{summary}");
    let mut dead = listed(&["dead", "list", "slow", "--flow", "b"]).await;
    dead.sort();
    assert_eq!(dead, ["b1", "b2"]);
    scene.receiver.behave(Behaviour::Hang);
    scene.done(&["dead", "redrive", "slow", "--flow", "a", "--limit", "1", "--yes"]).await;
    scene.done(&["dead", "purge", "slow", "--flow", "@", "--yes"]).await;
    let audit = scene.punctual.log();
    assert!(audit.contains("flow=@"), "{audit}");
    assert_eq!(client.stats("slow").await["dead"], 4);
    assert_eq!(listed(&["dead", "list", "slow", "--flow", "@"]).await, [""; 0]);

    let before = content(&scene.redis).await;
    for (method, path, body, status) in [
        ("GET", "/v1/routes/slow/messages?flow=", "", 400),
        ("GET", "/v1/routes/slow/messages?flow=a%20b", "", 400),
        ("GET", "/v1/routes/web/messages?flow=a", "", 422),
        ("GET", "/v1/routes/none/messages?flow=a", "", 404),
        ("GET", "/v1/routes/web/dead/summary?flow=a", "", 422),
        ("POST", "/v1/routes/web/dead/purge", r#"{"flow":"a"}"#, 422),
        ("POST", "/v1/routes/web/dead/redrive", r#"{"flow":"@"}"#, 422),
    ] {
        let answer = client.call(method, path, body).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.text);
        let explained = status != 422 || answer.text.contains("route `web` has no flows");
        assert!(explained, "{path}: {}", answer.text);
    }
    scene.refused(&["list", "web", "--flow", "a"], 2, "route `web` has no flows").await;
    scene.refused(&["dead", "list", "web", "--flow", "a"], 2, "route `web` has no flows").await;
    assert_eq!(content(&scene.redis).await, before, "nothing was written");
}

#[tokio::test]
async fn mistakes_with_flows_change_nothing() {
    let scene = started().await;
    let before = content(&scene.redis).await;
    for (arguments, code, text) in [
        (&["flows"][..], 2, "<ROUTE>"),
        (&["flows", "none"], 3, "there is no route `none`"),
        (&["flows", "web"], 3, "route `web` has no flows"),
        (&["flows", "slow", "a b"], 2, "a flow is 1 to 128"),
        (&["flows", "slow", ".."], 2, "cannot be a part of a URL"),
        (&["flows", "slow", "--limit", "0"], 2, "--limit"),
        (&["flows", "slow", "pause", "slow", "a"], 2, "follows `--`"),
        (&["flows", "set", "slow", "a"], 2, "--rate"),
        (&["flows", "set", "slow", "a", "--rate", "fast"], 2, "rate: "),
        (&["flows", "set", "slow", "a", "--burst", "many"], 2, "is a number or `none`"),
        (&["flows", "set", "slow", "a", "--parallel", "0"], 2, "parallel: is at least 1"),
        (&["flows", "set", "web", "a", "--rate", "5/s"], 3, "route `web` has no flows"),
        (&["flows", "pause", "slow"], 2, "<KEY>"),
        (&["flows", "pause", "web", "a"], 3, "route `web` has no flows"),
        (&["flows", "resume", "none", "a"], 3, "there is no route `none`"),
    ] {
        scene.refused(arguments, code, text).await;
    }
    assert_eq!(content(&scene.redis).await, before, "nothing was written");
    // Names of commands.
    let key = scene.punctual.command_with_input(&["flows", "-c", "punctual.yaml", "slow", "--", "set"], b"").await;
    assert!(key.out.starts_with("key        set\n"), "{key:?}");
    let route = scene.punctual.command_with_input(&["flows", "-c", "punctual.yaml", "--", "set"], b"").await;
    assert!(route.code == Some(3) && route.error.contains("there is no route `set`"), "{route:?}");
}
