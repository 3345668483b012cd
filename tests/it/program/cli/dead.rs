//! `dead`: 2,000 dead letters, handled by five commands.

use std::time::Duration;

use super::{Scene, lines};
use crate::{program::eventually, support::receiver::Behaviour};

/// Dead letters of an endpoint that refuses everything: 1,500 rejected and 500 expired ones.
async fn night() -> Scene {
    let scene = Scene::start().await;
    scene.receiver.behave(Behaviour::Echo(422));
    let input = lines(0..1500, |n| format!("{{\"id\":\"m{n}\",\"payload\":\"m{n}\"}}\n"));
    assert_eq!(scene.run_with_input(&["import", "web"], input.as_bytes()).await.out, "1500 scheduled\n");
    let expired: Vec<String> = (1500..2000).map(|n| format!("m{n}")).collect();
    scene.expired("web", &expired).await;
    eventually("all are dead", Duration::from_mins(1), async || (dead(&scene).await == 2000).then_some(())).await;
    scene
}

async fn dead(scene: &Scene) -> u64 {
    let status = scene.run(&["status", "--json"]).await;
    let status: serde_json::Value = serde_json::from_str(&status.out).expect("JSON");
    status["routes"][0]["dead"].as_u64().expect("a number")
}

#[tokio::test]
async fn two_thousand_dead_letters_are_handled_by_five_commands() {
    let scene = night().await;
    scene.receiver.behave(Behaviour::Status(200));
    let before = scene.receiver.count();

    let summary = scene.done(&["dead", "summary", "web"]).await;
    let lines: Vec<&str> = summary.lines().collect();
    assert!(lines[1].starts_with("rejected  1500 ") && lines[1].contains("HTTP 422"), "{summary}");
    assert!(lines[2].starts_with("expired   500 ") && lines[3] == "total 2000", "{summary}");
    let list = scene.run(&["dead", "list", "web", "--reason", "expired", "--limit", "20"]).await;
    assert!(list.code == Some(0) && list.out.lines().count() == 21 && list.error.contains("more"), "{list:?}");
    let by = ["dead", "redrive", "web", "--reason", "rejected"];
    assert_eq!(scene.done(&[&by[..], &["--dry-run"]].concat()).await, "would redrive 1500 dead letters of web\n");
    assert_eq!(dead(&scene).await, 2000);
    let one = scene.done(&[&by[..], &["--limit", "1", "--yes"]].concat()).await;
    assert_eq!(one, "redrove 1 dead letter of web; more remain\n");
    scene.receiver.wait_for(before + 1, Duration::from_secs(10)).await;
    assert_eq!(scene.done(&[&by[..], &["--yes"]].concat()).await, "redrove 1499 dead letters of web\n");

    scene.receiver.wait_for(before + 1500, Duration::from_mins(1)).await;
    assert_eq!(dead(&scene).await, 500, "the others stay");
}

#[tokio::test]
async fn dead_letters_are_selected_and_confirmed_before_they_change() {
    let scene = night().await;
    for arguments in [
        &["dead", "redrive", "web"][..],
        &["dead", "purge", "web", "--yes"],
        &["dead", "purge", "web", "--all", "--reason", "rejected", "--yes"],
        &["dead", "purge", "web", "m1", "--all", "--yes"],
    ] {
        scene.refused(arguments, 2, "one of these").await;
    }
    scene.refused(&["dead", "purge", "web", "--all"], 2, "this would purge 2000 dead letters of web").await;
    scene.refused(&["dead", "redrive", "web", "--all"], 2, "without a terminal it needs --yes").await;
    scene.refused(&["dead", "purge", "web", "--reason", "tired", "--yes"], 2, "`tired` is no reason").await;
    scene.refused(&["dead", "purge", "web", "--resaon", "rejected"], 2, "--reason").await;
    scene.refused(&["dead", "summary", "none"], 3, "there is no route `none`").await;
    scene.refused(&["dead", "purge", "none", "--all", "--yes"], 3, "there is no route `none`").await;
    assert_eq!(dead(&scene).await, 2000);

    let counted = async |arguments: &[&str]| {
        let purge = [&["dead", "purge", "web", "--dry-run"], arguments].concat();
        scene.json(&purge).await["count"].as_u64().unwrap()
    };
    assert_eq!(counted(&["--contains", "422"]).await, 1500);
    assert_eq!(counted(&["--since", "1h"]).await, 2000);
    assert_eq!(counted(&["--until", "1h"]).await, 0);
    assert_eq!(counted(&["m1", "m1999"]).await, 2);
    let ids = lines(0..1100, |n| format!("m{n}\n"));
    let purged = scene.run_with_input(&["dead", "purge", "web", "-", "--yes"], ids.as_bytes()).await;
    assert_eq!((purged.code, &*purged.out), (Some(0), "purged 1100 dead letters of web\n"), "{purged:?}");
    assert_eq!(dead(&scene).await, 900);
}

#[tokio::test]
async fn an_export_is_imported_once_however_often() {
    let scene = night().await;
    let path = scene.punctual.path("dead.ndjson");
    let exported = scene.run(&["dead", "export", "web", "-o", path.to_str().unwrap()]).await;
    assert!(exported.code == Some(0) && exported.error == "exported 2000 dead letters of web\n", "{exported:?}");
    scene.refused(&["dead", "export", "web", "-o", path.to_str().unwrap()], 1, "dead.ndjson").await;
    let piped = scene.done(&["dead", "export", "web", "--reason", "expired"]).await;
    assert_eq!(piped.lines().count(), 500);

    scene.done(&["dead", "purge", "web", "--all", "--yes"]).await;
    scene.done(&["pause", "web", "--yes"]).await;
    let import = ["import", "web", path.to_str().unwrap()];
    assert_eq!(scene.done(&import).await, "2000 scheduled\n");
    assert_eq!(scene.done(&import).await, "2000 exists\n");
    scene.receiver.behave(Behaviour::Status(200));
    let before = scene.receiver.count();
    scene.done(&["resume", "web"]).await;
    // Messages that had expired no longer have a time of expiry.
    let requests = scene.receiver.wait_for(before + 2000, Duration::from_mins(1)).await;
    for request in &requests[before..] {
        assert_eq!(String::from_utf8_lossy(&request.body), request.id(), "the payload is its own");
    }
}
