//! `health`.

use super::Scene;
use crate::program::client::Client;

#[tokio::test]
async fn health_is_that_of_the_probes() {
    let mut scene = Scene::start().await;
    let url = scene.punctual.url("");
    for arguments in
        [&["health"][..], &["health", "--live"], &["health", "--url", &url], &["health", "--url", &format!("{url}/")]]
    {
        assert_eq!(scene.done(arguments).await, "ok\n");
    }
    scene.redis.kill();
    assert_eq!(Client::of(&scene.punctual).readiness().await.status, 503);
    scene.refused(&["health"], 1, "").await;
    scene.done(&["health", "--live"]).await;
    scene.punctual.kill().await;
    scene.refused(&["health", "--live"], 1, "no answer from").await;
    scene.refused(&["health", "--url", "ftp://x"], 2, "begins with http://").await;
}
