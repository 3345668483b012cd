//! `schedule`, `get`, `list`, `move`, `deliver` and `cancel`.

use std::time::Duration;

use serde_json::{Value, json};

use super::Scene;
use crate::{program::refusals::content, support::receiver::Behaviour};

#[tokio::test]
async fn a_message_is_scheduled_shown_moved_delivered_and_cancelled() {
    let scene = Scene::start().await;
    let input =
        scene.run_with_input(&["schedule", "web", "--id", "piped", "--header", "X-A: b"], b"from \xff stdin").await;
    assert!(input.code == Some(0) && input.out.starts_with("scheduled piped for 20"), "{input:?}");
    let request = scene.receiver.wait_for(1, Duration::from_secs(5)).await.remove(0);
    assert_eq!((request.id(), request.header("x-a"), &request.body[..]), ("piped", "b", &b"from \xff stdin"[..]));

    let later = scene.json(&["schedule", "web", "--id", "later", "--delay", "1h", "--payload", "x\u{1b}[2J"]).await;
    assert_eq!((&later["id"], &later["status"]), (&"later".into(), &"scheduled".into()));
    let again = scene.done(&["schedule", "web", "--id", "later", "--delay", "2h", "--payload", "y"]).await;
    assert!(again.starts_with("exists later for"), "{again:?}");
    let shown = scene.done(&["get", "web", "later"]).await;
    assert!(shown.starts_with("id ") && shown.contains("x\u{fffd}[2J"), "no control characters: {shown}");
    assert_eq!(scene.json(&["get", "web", "later"]).await["payload"], "x\u{1b}[2J");

    let table = scene.done(&["list", "web"]).await;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("ID ") && lines[1].starts_with("later "), "{table}");
    assert_eq!(scene.json(&["list", "web", "--since", "0s", "--limit", "1"]).await["id"], "later");
    assert_eq!(scene.done(&["list", "web", "--state", "dead", "--json"]).await, "");

    let moved = scene.json(&["move", "web", "later", "--delay", "3h"]).await;
    assert_eq!(moved["status"], "rescheduled");
    assert_eq!(scene.json(&["get", "web", "later"]).await["deliver_at"], moved["deliver_at"]);
    scene.done(&["deliver", "web", "later"]).await;
    assert_eq!(scene.receiver.wait_for(2, Duration::from_secs(5)).await[1].id(), "later");

    scene.done(&["schedule", "web", "--id", "gone", "--delay", "1h", "--payload", "x"]).await;
    assert_eq!(scene.done(&["cancel", "web", "gone"]).await, "cancelled gone\n", "one needs no question");
    scene.refused(&["get", "web", "gone"], 3, "`gone` is delivered, cancelled or unknown").await;
}

#[tokio::test]
async fn mistakes_are_one_message_and_change_nothing() {
    let scene = Scene::start().await;
    let before = content(&scene.redis).await;
    for (arguments, code, text) in [
        (&["schedule", "none", "--payload", "x"][..], 3, "there is no route `none`"),
        (&["schedule", "web", "--payload", "x", "--delay", "later"], 2, "delay: `later`"),
        (&["schedule", "web", "--payload", "x", "--delay=-1s"], 2, "delay: "),
        (&["schedule", "web", "--payload", "x", "--deliver-at", "today"], 2, "deliver_at: "),
        (&["schedule", "web", "--payload", "x", "--deliver-at", "1700000000"], 2, "seconds"),
        (&["schedule", "web", "--payload", "x", "--id", "a b", "--expires-at", "x"], 2, "\n  expires_at: "),
        (&["schedule", "web", "--payload", "x", "--header", "Host: a"], 2, "headers: "),
        (&["schedule", "web", "--payload", "x", "--flow", "a b"], 2, "flow: a flow is 1 to 128"),
        (&["schedule", "web", "--payload", "x", "--header", "none"], 2, "--header"),
        (&["schedule", "web", "--payload", "x", "--delay", "1s", "--deliver-at", "1"], 2, "cannot be used with"),
        (&["schedule", "web", "--payload-file", "missing"], 2, "missing"),
        (&["schedule", "web"], 2, "standard input has no payload: for an empty one use --payload ''"),
        (&["get", "web", "none"], 3, "`none` is delivered, cancelled or unknown"),
        (&["get", "web", ".."], 2, "cannot be a part of a URL"),
        (&["list", "none"], 3, "there is no route `none`"),
        (&["list", "web", "--reason", "expired"], 2, "`reason` is for dead messages"),
        (&["list", "web", "--state", "dead", "--reason", "tired"], 2, "`tired` is no reason"),
        (&["list", "web", "--since", "yesterday"], 2, "`since`: "),
        (&["move", "web", "none", "--delay", "1s"], 3, "`none`"),
        (&["move", "web", "none"], 2, "--delay"),
        (&["deliver", "web", "none"], 3, "`none` is delivered"),
        (&["cancel", "web", "none"], 3, "`none`"),
        (&["cancel", "web"], 2, "--all"),
        (&["resume", "none"], 3, "there is no route `none`"),
        (&["stats"], 2, "unrecognized subcommand"),
    ] {
        scene.refused(arguments, code, text).await;
    }
    assert_eq!(content(&scene.redis).await, before, "nothing was written");
}

#[tokio::test]
async fn what_is_in_flight_is_listed_and_not_cancelled() {
    let scene = Scene::start().await;
    scene.receiver.behave(Behaviour::Hang);
    scene.done(&["schedule", "web", "--id", "busy", "--payload", "x"]).await;
    scene.receiver.wait_for(1, Duration::from_secs(5)).await;
    assert_eq!(scene.json(&["list", "web", "--state", "unack"]).await["id"], "busy");
    scene.refused(&["cancel", "web", "busy"], 1, "`busy` is being delivered at this moment").await;
    scene.refused(&["schedule", "web", "--id", "busy", "--payload", "y", "--replace"], 1, "being delivered").await;
    scene.receiver.behave(Behaviour::Status(200));
}

#[tokio::test]
async fn the_content_type_is_that_of_the_payload() {
    let scene = Scene::start().await;
    let schedule = ["schedule", "web", "--delay", "1h", "--id"];
    for (id, payload, more, expected) in [
        ("json", r#"{"a":1}"#, &[][..], json!("application/json")),
        ("number", "7", &[], json!("application/json")),
        ("text", "{a}", &[], json!("text/plain; charset=utf-8")),
        ("empty", "", &[], json!("text/plain; charset=utf-8")),
        ("own", "{}", &["--content-type", "text/csv", "--flow", "tenant:7"], json!("text/csv")),
    ] {
        scene.done(&[&schedule[..], &[id, "--payload", payload], more].concat()).await;
        assert_eq!(scene.json(&["get", "web", id]).await["content_type"], expected, "{id}");
    }
    assert_eq!(scene.json(&["get", "web", "own"]).await["flow"], "tenant:7");
    for (id, input, expected) in [("piped", &b"[1]"[..], json!("application/json")), ("bytes", b"\xff\0", Value::Null)]
    {
        let ended = scene.run_with_input(&[&schedule[..], &[id]].concat(), input).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_eq!(scene.json(&["get", "web", id]).await["content_type"], expected, "{id}");
    }
}
