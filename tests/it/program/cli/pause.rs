//! `pause` and `resume`.

use std::time::Duration;

use super::Scene;

#[tokio::test]
async fn a_pause_shows_what_waits_and_keeps_its_note() {
    let scene = Scene::start().await;
    scene.done(&["schedule", "web", "--payload", "x", "--delay", "1h"]).await;
    let text = "pause web, where 1 message is pending, 0 of them due";
    scene.refused(&["pause", "web"], 2, &format!("this would {text}")).await;
    assert_eq!(scene.done(&["pause", "web", "--dry-run"]).await, format!("would {text}\n"));
    assert_eq!(scene.json(&["status"]).await["routes"][0]["paused"], false);
    assert_eq!(scene.done(&["pause", "web", "--note", "endpoint moves", "--yes"]).await, "paused web\n");
    assert!(scene.done(&["status"]).await.contains(": endpoint moves"));

    scene.done(&["schedule", "web", "--id", "waits", "--payload", "x"]).await;
    assert_eq!(scene.json(&["get", "web", "waits"]).await["waits_for"], "paused");
    assert_eq!(scene.receiver.count(), 0);
    assert_eq!(scene.json(&["resume", "web"]).await["status"], "resumed");
    assert_eq!(scene.receiver.wait_for(1, Duration::from_secs(5)).await[0].id(), "waits");
    scene.refused(&["pause", "none", "--yes"], 3, "there is no route `none`").await;
}
