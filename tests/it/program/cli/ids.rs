//! Messages that are named by their ids.

use std::time::Duration;

use super::{Scene, lines};
use crate::{
    program::eventually,
    support::{command::Ended, receiver::Behaviour},
};

/// With the dead letters `d0` to `d2`, and the pending messages `p0` to `p1199`.
async fn scene() -> Scene {
    let scene = Scene::start().await;
    scene.receiver.behave(Behaviour::Echo(422));
    let dead = lines(0..3, |n| format!("{{\"id\":\"d{n}\",\"payload\":{n}}}\n"));
    let pending = lines(0..1200, |n| format!("{{\"id\":\"p{n}\",\"payload\":{n},\"delay\":\"1h\"}}\n"));
    assert_eq!(scene.run_with_input(&["import", "web"], (dead + &pending).as_bytes()).await.code, Some(0));
    eventually("all are dead", Duration::from_secs(20), async || (count(&scene, "dead").await == 3).then_some(()))
        .await;
    scene
}

async fn count(scene: &Scene, state: &str) -> u64 {
    scene.json(&["status"]).await["routes"][0][state].as_u64().expect("a number")
}

fn assert_ended(ended: &Ended, code: i32, out: &str, error: &str) {
    assert_eq!((ended.code, &*ended.out), (Some(code), out), "{ended:?}");
    assert!(ended.error.contains(error), "{ended:?}");
}

#[tokio::test]
async fn unknown_ids_are_named_and_the_others_are_handled() {
    let scene = scene().await;
    for arguments in [
        &["dead", "redrive", "web", "none", "--yes"][..],
        &["dead", "purge", "web", "none", "--yes"],
        &["dead", "purge", "web", "none", "--dry-run"],
    ] {
        scene.refused(arguments, 3, "1 of 1 are not dead: none").await;
    }
    let purged = scene.run(&["dead", "purge", "web", "none", "d0", "p0", "--yes"]).await;
    assert_ended(&purged, 3, "purged 1 dead letter of web\n", "2 of 3 are not dead: none, p0");
    let some = lines(0..1100, |n| format!("{}{n}\n", if n < 20 { "x" } else { "p" }));
    let cancelled = scene.run_with_input(&["cancel", "web", "-", "--yes"], some.as_bytes()).await;
    let named = "20 of 1100 are not pending: x0, x1, x2, x3, x4, x5, x6, x7, x8, x9 and 10 more";
    assert_ended(&cancelled, 3, "cancelled 1080 pending messages of web\n", named);
}

#[tokio::test]
async fn an_expiry_without_a_unit_is_refused_with_a_hint() {
    let scene = scene().await;
    for more in ["--yes", "--dry-run"] {
        let redrive = ["dead", "redrive", "web", "d0", "--expiry", "5", more];
        scene.refused(&redrive, 2, "`5` has no unit: write a duration such as `5s` or `5m`").await;
    }
    assert_eq!(count(&scene, "dead").await, 3);
}

#[tokio::test]
async fn an_id_that_is_given_twice_counts_once() {
    let scene = scene().await;
    for arguments in [["cancel", "web", "p1", "p1", "p2"], ["cancel", "web", "p2", "p1", "p2"]] {
        let dry = scene.done(&[&arguments[..], &["--dry-run"]].concat()).await;
        assert_eq!(dry, "would cancel 2 pending messages of web\n");
    }
    let dry = scene.json(&["dead", "purge", "web", "d0", "d0", "d1", "--dry-run"]).await;
    assert_eq!(dry["count"], 2, "{dry}");
    // Twice in two calls of the API.
    let twice = lines(0..1100, |n| format!("p{}\n", n % 1050));
    let cancelled = scene.run_with_input(&["cancel", "web", "-", "--yes"], twice.as_bytes()).await;
    assert_ended(&cancelled, 0, "cancelled 1050 pending messages of web\n", "");
    scene.receiver.behave(Behaviour::Status(200));
    assert_eq!(scene.done(&["deliver", "web", "p1100", "p1100"]).await.lines().count(), 1);
}

#[tokio::test]
async fn a_limit_says_whether_ids_beyond_a_call_remain() {
    let scene = scene().await;
    let ids = lines(0..1200, |n| format!("p{n}\n"));
    let run = async |limit: &str, more: &[&str]| {
        let arguments = [&["cancel", "web", "-", "--json", "--limit", limit], more].concat();
        let ended = scene.run_with_input(&arguments, ids.as_bytes()).await;
        serde_json::from_str::<serde_json::Value>(&ended.out).unwrap_or_else(|_| panic!("{ended:?}"))
    };
    let answer =
        |count: u64, more: bool, dry_run: bool| serde_json::json!({ "count": count, "more": more, "dry_run": dry_run });
    assert_eq!(run("1000", &["--dry-run"]).await, answer(1000, true, true));
    assert_eq!(run("1200", &["--dry-run"]).await, answer(1200, false, true));
    assert_eq!(run("1000", &["--yes"]).await, answer(1000, true, false));
    assert_eq!(run("200", &["--yes"]).await, answer(200, false, false));
    assert_eq!(count(&scene, "pending").await, 0);
}

#[tokio::test]
async fn a_dry_run_of_one_id_says_what_would_be_done() {
    let scene = scene().await;
    assert_eq!(scene.done(&["cancel", "web", "p1", "--dry-run"]).await, "would cancel p1\n");
    assert_eq!(scene.done(&["cancel", "web", "d1", "--dry-run"]).await, "would purge d1, which is dead\n");
    scene.refused(&["cancel", "web", "none", "--dry-run"], 3, "`none` is delivered, cancelled or unknown").await;
    assert_eq!((count(&scene, "pending").await, count(&scene, "dead").await), (1200, 3));
    scene.receiver.behave(Behaviour::Hang);
    scene.done(&["deliver", "web", "p5"]).await;
    scene.receiver.wait_for(1, Duration::from_secs(5)).await;
    scene.refused(&["cancel", "web", "p5", "--dry-run"], 1, "`p5` is being delivered at this moment").await;
    scene.receiver.behave(Behaviour::Status(200));
}

#[tokio::test]
async fn ids_of_standard_input_join_those_of_the_command_line() {
    let scene = scene().await;
    for arguments in [["d0", "-"], ["-", "d0"]] {
        let arguments = [&["dead", "purge", "web", "--dry-run"], &arguments[..]].concat();
        let dry = scene.run_with_input(&arguments, b"d1\n\nd2\n").await;
        assert_ended(&dry, 0, "would purge 3 dead letters of web\n", "");
    }
    let none = scene.run_with_input(&["dead", "purge", "web", "d0", "-", "--dry-run"], b"").await;
    assert_ended(&none, 2, "", "standard input has no ids");
}
