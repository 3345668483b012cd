//! `import`.

use super::{Scene, lines};
use crate::program::refusals::content;

#[tokio::test]
async fn a_wrong_line_is_named_and_its_batch_is_not_scheduled() {
    let scene = Scene::start().await;
    let before = content(&scene.redis).await;
    for (input, text) in [
        ("{\"id\":\"a\",\"payload\":1}\n\n{\"payload\":2}\n", "line 3: has no `id`"),
        ("{\"id\":\"a\",\"payload\":1}\nx\n", "line 2: not a JSON object"),
        ("\n{\"id\":\"a\",\"payload\":1}\n{\"id\":\"b c\",\"payload\":1,\"delay\":true}\n", "line 3: delay: "),
        ("{\"id\":\"a\",\"payload\":1,\"dely\":1}\n", "line 1: unknown field `dely`"),
        ("{\"id\":\"a\"}\n", "line 1: exactly one of `payload`"),
    ] {
        let ended = scene.run_with_input(&["import", "web", "-"], input.as_bytes()).await;
        assert_eq!(ended.code, Some(2), "{input}: {ended:?}");
        assert!(ended.error.contains(text) && ended.error.contains("before that: nothing"), "{input}: {ended:?}");
    }
    assert_eq!(content(&scene.redis).await, before, "nothing was written");
    scene.refused(&["import", "web", "missing.ndjson"], 2, "missing.ndjson").await;
    let unknown = scene.run_with_input(&["import", "none"], b"{\"id\":\"a\",\"payload\":1}\n").await;
    assert_eq!(unknown.code, Some(3), "{unknown:?}");
    let none = scene.run_with_input(&["import", "web"], b"").await;
    assert_eq!((none.code, &*none.out), (Some(0), "no messages\n"));
}

#[tokio::test]
async fn an_import_keeps_to_the_rate_of_its_token() {
    let scene = Scene::with(
        "server: { auth: { tokens: [{ token: 0123456789abcdef, rights: [schedule], limits: { messages_per_second: 1000 } }] } }\n",
    )
    .await;
    let input = lines(0..2500, |n| format!("{{\"id\":\"m{n}\",\"delay\":\"1h\",\"payload\":1}}\n"));
    let import = ["import", "web", "--token", "0123456789abcdef", "--json"];
    let ended = scene.run_with_input(&import, input.as_bytes()).await;
    assert_eq!((ended.code, &*ended.out), (Some(0), "{\"scheduled\":2500}\n"), "{ended:?}");
}

#[tokio::test]
async fn what_a_limit_of_the_route_refuses_is_counted_and_fails() {
    let scene = Scene::with_environment("", &[("PUNCTUAL__ROUTES__WEB__LIMITS__MESSAGES", "3")]).await;
    let input = lines(0..5, |n| format!("{{\"id\":\"m{n}\",\"delay\":\"1h\",\"payload\":1}}\n"));
    let ended = scene.run_with_input(&["import", "web"], input.as_bytes()).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.out, "2 limit_messages, 3 scheduled\n");
}
