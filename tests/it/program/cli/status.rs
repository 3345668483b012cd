//! `status`.

use std::time::Duration;

use super::{Scene, lines};
use crate::{program::eventually, support::receiver::Behaviour};

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

#[tokio::test]
async fn status_shows_why_messages_are_dead() {
    let names = ["a", "b", "c", "d"];
    let routes = ["A", "B", "C", "D"].map(|name| format!("PUNCTUAL__ROUTES__{name}__SINK"));
    let scene = Scene::with_environment("", &routes.each_ref().map(|variable| (&**variable, "hook"))).await;
    assert!(!scene.done(&["status"]).await.contains(" dead: "));
    scene.receiver.behave(Behaviour::Echo(422));
    for (name, count) in names.iter().zip(1_u32..) {
        let ids = lines(0..count, |n| format!("{{\"id\":\"{n}\",\"payload\":1}}\n"));
        scene.run_with_input(&["import", name], ids.as_bytes()).await;
    }
    scene.expired("b", &["late"]).await;
    let shown = eventually("all are dead", Duration::from_secs(10), async || {
        let shown = scene.done(&["status"]).await;
        let (_, dead) = shown.rsplit_once("\n\n").expect("parts");
        let each: Vec<&str> = dead.lines().collect();
        let begins =
            ["d: 4 dead: rejected 4 (HTTP 422: {", "b: 3 dead: rejected 2 (HTTP 422: {", "c: 3 dead: rejected 3 ("];
        let all = each.len() == 3 && each.iter().zip(begins).all(|(line, begin)| line.starts_with(begin));
        all.then(|| dead.to_owned())
    })
    .await;
    assert!(shown.contains("), expired 1 (claimed "), "{shown}");
    let json = scene.json(&["status"]).await;
    let route =
        |name: &str| json["routes"].as_array().unwrap().iter().find(|route| route["route"] == name).unwrap().clone();
    assert_eq!(route("a").get("dead_summary"), None, "only the routes with the most");
    assert_eq!(route("d")["dead_summary"], scene.json(&["dead", "summary", "d"]).await);

    // The status lacks only the parts that the API refuses.
    let mut connection = scene.redis.connection().await;
    let keys: Vec<String> = redis::cmd("KEYS").arg("*:d:*errors").query_async(&mut connection).await.expect("keys");
    for key in &keys {
        redis::cmd("SET").arg(key).arg("no hash").exec_async(&mut connection).await.expect("it is set");
    }
    let broken = scene.done(&["status"]).await;
    assert!(broken.contains("\nd: 4 dead: the reasons are not known: "), "{keys:?} {broken}");
    assert!(broken.contains("\nb: 3 dead: rejected 2 ("), "{broken}");
    assert!(scene.json(&["status"]).await.to_string().contains(r#""dead_summary":{"error":""#));
}

#[tokio::test]
async fn another_server_is_not_taken_for_a_punctual() {
    let scene = Scene::start().await;
    for status in [200, 404, 500] {
        scene.receiver.behave(Behaviour::Echo(status));
        let url = scene.receiver.url();
        let ended = scene.run(&["status", "--url", &url, "--token", "s3cret"]).await;
        assert_eq!((ended.code, &*ended.out), (Some(1), ""), "{ended:?}");
        assert!(ended.error.contains("(the token)") && !ended.error.contains("s3cret"), "{ended:?}");
        let named = format!("{url} answered {status}");
        assert!(ended.error.contains(&named) && ended.error.contains("is no punctual: it answered `"), "{ended:?}");
    }
}
