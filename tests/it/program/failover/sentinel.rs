//! Answers of sentinels. Punctual finds the master in spite of wrong and missing ones.

use std::time::Duration;

use serde_json::{Value, json};

use super::switch::configuration;
use crate::{
    program::{client::Client, eventually},
    support::{
        command::Workplace,
        punctual::Punctual,
        receiver::Receiver,
        sentinels::{CREDENTIALS, MASTER, WatchedRedis},
    },
};

const MAX_WAIT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_fail_over_that_an_operator_asks_for_moves_deliveries_and_wake_ups() {
    let (redis, receiver) = (WatchedRedis::start(1).await, Receiver::start());
    let punctual = Punctual::start(&configuration(&redis, "", &receiver)).await;
    let client = Client::of(&punctual);
    client.schedule("web", r#"{"id":"before","delay":"6s","payload":""}"#).await;
    redis::cmd("WAIT").arg(&[1, 5000]).exec_async(&mut redis.servers[0].connection().await).await.expect("replicated");
    redis.fail_over().await;
    let new = redis.switched(0).await;
    eventually("wake-ups come from the new master", MAX_WAIT, async || {
        let mut command = redis::cmd("PUBSUB");
        let channels = command.arg(&["NUMSUB", "{punctual:web:0/1}:wake"]);
        let (_, count): (String, u64) =
            channels.query_async(&mut redis.servers[new].connection().await).await.expect("counted");
        (count == 1).then_some(())
    })
    .await;
    client.schedule("web", r#"{"id":"after","payload":""}"#).await;
    receiver.wait_for(2, MAX_WAIT).await;
    assert_eq!(client.drained("web", MAX_WAIT).await["dead"], 0);
    assert!(receiver.requests().iter().all(|request| request.attempt() == 1));
    // The old one follows the new one. Nothing of ours is on it any more.
    redis.servers[0].replicates().await;
    eventually("the old master has no subscriber", MAX_WAIT, async || {
        let mut command = redis::cmd("CLIENT");
        let clients: String =
            command.arg("LIST").query_async(&mut redis.servers[0].connection().await).await.expect("listed");
        (!clients.lines().any(|client| client.contains(" sub=1 ") && !client.contains("name=sentinel"))).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_that_is_gone_or_names_a_replica_is_passed_over() {
    let (mut redis, receiver) = (WatchedRedis::start(1).await, Receiver::start());
    redis.kill_sentinel(0);
    redis.mislead(1, redis.servers[1].port()).await;
    let with_user = format!("master: {MASTER}, {CREDENTIALS}");
    let setting = configuration(&redis, "", &receiver).replace(&format!("master: {MASTER}"), &with_user);
    let punctual = Punctual::start(&setting).await;
    let client = Client::of(&punctual);
    client.schedule("web", r#"{"id":"m","payload":""}"#).await;
    receiver.wait_for(1, MAX_WAIT).await;
    let log = punctual.log();
    let master = format!("primary=\"127.0.0.1:{}\"", redis.servers[0].port());
    assert!(
        log.lines().any(|line| line.contains("the sentinels name the redis primary") && line.contains(&master)),
        "{log}"
    );
    assert!(redis.denied(2).await.is_empty(), "{:?}", redis.denied(2).await);
}

#[tokio::test]
async fn the_configurations_of_the_page_are_valid() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/failover.md")).expect("a page");
    let blocks: Vec<&str> = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        let secrets = block.replace("${file:/run/secrets/", "${");
        let ended =
            Workplace::with(&secrets.replace("${sentinel}", "a").replace("${redis}", "b")).run(&["check"]).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_asks_each_sentinel_and_the_master() {
    let (mut redis, receiver) = (WatchedRedis::start(0).await, Receiver::start());
    let check = async |more: &str| {
        let setting = configuration(&redis, "", &receiver).replace(&format!("master: {MASTER}"), more);
        let ended = Workplace::with(&setting).run(&["check", "--connect", "--json"]).await;
        let answers: Value = serde_json::from_str(&ended.out).expect("JSON");
        (ended.code, answers)
    };
    let named = format!("127.0.0.1:{}", redis.servers[0].port());
    let (code, answers) = check(&format!("master: {MASTER}, {CREDENTIALS}")).await;
    assert_eq!(code, Some(0), "{answers}");
    let said = format!("the primary is {named}; it has no replica");
    assert_eq!(answers["advice"]["redis"], said);
    for place in 0..3 {
        assert_eq!(answers["answers"][format!("redis.sentinel.urls.{place}")], json!("ok"));
        assert_eq!(answers["advice"][format!("redis.sentinel.urls.{place}")], format!("names {named}"));
    }
    let (code, answers) = check(&format!("master: {MASTER}, username: punctual, password: wrong")).await;
    assert_eq!(code, Some(1));
    let first = answers["answers"]["redis.sentinel.urls.0"].as_str().expect("text").to_owned();
    assert!(first.contains("authentication failed") && answers["answers"]["redis"] != "ok", "{answers}");
    let (code, answers) = check("master: other").await;
    assert_eq!(code, Some(1));
    assert!(answers["answers"]["redis"].as_str().expect("text").contains("it knows no primary `other`"), "{answers}");

    redis.kill_sentinel(2);
    let ended = Workplace::with(&configuration(&redis, "", &receiver)).run(&["check", "--connect"]).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.error.contains("1 of 5") && ended.out.contains("redis.sentinel.urls.2"), "{ended:?}");
}
