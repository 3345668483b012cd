//! Routes that a reload removes, and that come back.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    client::Client,
    eventually,
    reload::{MAX_WAIT, base, parts, reload_with},
};
use crate::support::{RedisServer, punctual::Punctual, receiver::Receiver};

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_route_keeps_its_messages_and_one_that_comes_back_delivers_them() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let mut configuration = base(&redis, &receiver);
    configuration["routes"]["b"] = json!({ "sink": "hook", "dead": { "max_count": 100 } });
    let punctual = Punctual::start(&configuration.to_string()).await;
    let client = Client::of(&punctual);
    client.schedule("b", r#"{"id":"later","delay":"2s","payload":1}"#).await;
    assert!(client.call("GET", "/metrics", "").await.text.contains("route=\"b\""));

    let whole = configuration.clone();
    configuration["routes"].as_object_mut().unwrap().remove("b");
    let reloaded = reload_with(&punctual, &configuration).await;
    assert_eq!(parts(&reloaded, "removed"), ["routes.b"]);
    assert_eq!(client.call("POST", "/v1/routes/b/messages", r#"{"payload":1}"#).await.status, 404);
    let page = client.call("GET", "/metrics", "").await.text;
    assert!(!page.contains("route=\"b\"") && page.contains("route=\"a\""), "{page}");
    let routes = client.call("GET", "/v1/routes", "").await.json;
    let left = routes["routes"].as_array().unwrap().iter().find(|route| route["route"] == "b").expect("it is shown");
    assert_eq!((&left["pending"], &left["sink"]), (&json!(1), &Value::Null));
    sleep(Duration::from_secs(3)).await;
    assert_eq!(receiver.count(), 0, "it is not delivered");

    let reloaded = reload_with(&punctual, &whole).await;
    assert_eq!(parts(&reloaded, "added"), ["routes.b"]);
    let arrived = receiver.wait_for(1, MAX_WAIT).await;
    assert_eq!(arrived[0].id(), "later");
    eventually("it is delivered", MAX_WAIT, async || {
        let page = client.call("GET", "/metrics", "").await.text;
        page.contains("punctual_messages_delivered_total{route=\"b\",sink=\"hook\"} 1").then_some(())
    })
    .await;
    assert!(!punctual.log().contains("lost"), "{}", punctual.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_that_comes_back_does_not_send_the_schedules_that_moved_to_another() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let of_route = |route: &str| {
        let mut configuration = base(&redis, &receiver);
        configuration["routes"] = json!({ route: { "sink": "hook" } });
        configuration["schedules"] = json!({ "tick": { "route": route, "every": "1s", "payload": "x" } });
        configuration
    };
    let punctual = Punctual::start(&of_route("old").to_string()).await;
    let client = Client::of(&punctual);
    receiver.wait_for(1, MAX_WAIT).await;
    let mut moved = of_route("new");
    reload_with(&punctual, &moved).await;
    let sent = async |route: &str| {
        let route = route.to_owned();
        eventually("an occurrence", MAX_WAIT, async || {
            let page = client.call("GET", "/metrics", "").await.text;
            page.contains(&format!("punctual_messages_delivered_total{{route=\"{route}\",sink=\"hook\"}} 1"))
                .then_some(())
        })
        .await;
    };
    sent("new").await;
    moved["routes"]["old"] = json!({ "sink": "hook" });
    reload_with(&punctual, &moved).await;
    eventually("only one is left", MAX_WAIT, async || {
        let all = client.call("GET", "/v1/schedules", "").await.json;
        (all["schedules"].as_array().expect("a list").len() == 1).then_some(())
    })
    .await;
    let shown = client.call("GET", "/v1/schedules/tick", "").await.json;
    assert_eq!(shown["route"], "new", "{shown}");
    // An occurrence that waited on the former route may have been sent; none follows it.
    sleep(Duration::from_secs(1)).await;
    let before = receiver.count();
    let later = receiver.wait_for(before + 3, MAX_WAIT).await;
    let routes: BTreeSet<_> = later[before..].iter().map(|request| request.header("punctual-route")).collect();
    assert_eq!(routes.into_iter().collect::<Vec<_>>(), ["new"]);
}
