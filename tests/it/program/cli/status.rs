//! `status`.

use std::time::Duration;

use super::Scene;
use crate::program::eventually;

#[tokio::test]
async fn status_shows_everything_and_fails_while_something_is_down_or_late() {
    let mut scene = Scene::start().await;
    let good = scene.done(&["status"]).await;
    for part in ["punctual ", "Redis: up", "ROUTE ", "web ", "SINK ", "hook "] {
        assert!(good.contains(part), "{part}: {good}");
    }
    scene.done(&["pause", "web", "--yes"]).await;
    scene.done(&["schedule", "web", "--payload", "x"]).await;
    scene.done(&["status"]).await;
    eventually("a message is late", Duration::from_secs(5), async || {
        let late = scene.run(&["status", "--overdue", "100ms"]).await;
        (late.code == Some(1)).then(|| assert!(late.error.contains("route `web`: a message is overdue by"), "{late:?}"))
    })
    .await;

    scene.receiver.refuse();
    scene.done(&["resume", "web"]).await;
    let down = eventually("the sink is down", Duration::from_secs(10), async || {
        let ended = scene.run(&["status"]).await;
        (ended.code == Some(1)).then_some(ended)
    })
    .await;
    assert!(down.out.contains("DOWN") && down.error.contains("sink `hook` is down: "), "{down:?}");
    scene.receiver.listen();
    eventually("the sink is up again", Duration::from_secs(10), async || {
        (scene.run(&["status"]).await.code == Some(0)).then_some(())
    })
    .await;

    scene.redis.kill();
    let down = eventually("Redis is down", Duration::from_secs(10), async || {
        let ended = scene.run(&["status"]).await;
        (ended.code == Some(1)).then_some(ended)
    })
    .await;
    assert!(down.out.contains("Redis: DOWN") && down.out.contains("SINK "), "the rest is shown: {down:?}");
    assert!(down.error.contains("Redis is down: "), "{down:?}");
    scene.punctual.kill().await;
    scene.refused(&["status"], 1, "no answer from http://127.0.0.1:").await;
}
