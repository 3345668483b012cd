//! `cancel` of many messages.

use super::{Scene, lines};
use crate::program::client::Client;

#[tokio::test]
async fn many_are_cancelled_after_their_number_was_confirmed() {
    let scene = Scene::start().await;
    let input = lines(0..1200, |n| format!("{{\"id\":\"m{n}\",\"delay\":\"1h\",\"payload\":{n}}}\n"));
    assert_eq!(scene.run_with_input(&["import", "web"], input.as_bytes()).await.out, "1200 scheduled\n");
    let pending = async || scene.json(&["status"]).await["routes"][0]["pending"].clone();

    scene.refused(&["cancel", "web", "--all"], 2, "this would cancel 1200 pending messages of web").await;
    scene.refused(&["cancel", "web", "m0", "m1"], 2, "--yes").await;
    assert_eq!(
        scene.done(&["cancel", "web", "--all", "--dry-run"]).await,
        "would cancel 1200 pending messages of web\n"
    );
    let limited = scene.json(&["cancel", "web", "--all", "--dry-run", "--limit", "7"]).await;
    assert_eq!(limited, serde_json::json!({ "count": 7, "more": true, "dry_run": true }));
    assert_eq!(pending().await, 1200, "nothing was changed");

    assert_eq!(
        scene.done(&["cancel", "web", "--all", "--limit", "100", "--yes"]).await,
        "cancelled 100 pending messages of web; more remain\n"
    );
    // More ids than a call takes, of which those that were due first are gone.
    let ids = lines(0..1200, |n| format!("m{n}\n"));
    let some = scene.run_with_input(&["cancel", "web", "-", "--yes"], ids.as_bytes()).await;
    assert_eq!((some.code, &*some.out), (Some(3), "cancelled 1100 pending messages of web\n"), "{some:?}");
    assert!(some.error.contains("100 of 1200 are not pending"), "{some:?}");
    assert_eq!(pending().await, 0);
    let counted = Client::of(&scene.punctual).metrics().await.sum("punctual_messages_cancelled_total", &[]);
    assert_eq!(counted, 1200, "each once, and none that would have been");
    assert_eq!(
        scene.done(&["cancel", "web", "--all"]).await,
        "cancelled 0 pending messages of web\n",
        "nothing to ask"
    );
}
