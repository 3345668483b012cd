//! Rights, credentials and TLS, of the sentinels and of the servers that they name.

use std::{collections::HashSet, time::Duration};

use super::switch::configuration;
use crate::{
    program::{
        client::Client,
        eventually,
        rights::{assert_nothing_was_denied, documented, documented_with, limit},
    },
    support::{
        Authority,
        command::Workplace,
        punctual::Punctual,
        receiver::Receiver,
        sentinels::{CREDENTIALS, MASTER, RIGHTS, WatchedRedis},
    },
};

const MAX_WAIT: Duration = Duration::from_secs(20);
/// Success means that the replica has it, so that a fail-over loses nothing.
const DURABLE: &str = "durability: { replicas: 1 }";

/// Rights that the page about Redis grants.
fn rights() -> Vec<&'static str> {
    [documented().0, documented_with("redis.sentinel"), documented_with("redis.durability")].concat()
}

/// With users on servers and sentinels; `servers` and `sentinels`: further settings of either.
fn configured(redis: &WatchedRedis, servers: &str, sentinels: &str, receiver: &Receiver) -> String {
    let more = format!(", username: limited, password: secret, {DURABLE}{servers}");
    configuration(redis, &more, receiver)
        .replace(&format!("master: {MASTER}"), &format!("master: {MASTER}, {CREDENTIALS}{sentinels}"))
}

/// Users are not replicated: each server gets its own.
async fn with_users(redis: &WatchedRedis) {
    for server in &redis.servers {
        limit(server, &rights()).await;
    }
}

/// Delivers before and after a fail-over.
async fn follows_a_fail_over(redis: &WatchedRedis, punctual: &Punctual, receiver: &Receiver) {
    let client = Client::of(punctual);
    client.schedule("web", r#"{"id":"delivered","payload":""}"#).await;
    receiver.wait_for(1, MAX_WAIT).await;
    client.schedule("web", r#"{"id":"scheduled","delay":"6s","payload":""}"#).await;
    redis.fail_over().await;
    redis.switched(0).await;
    redis.servers[0].replicates().await;
    eventually("a message is accepted", MAX_WAIT, async || {
        let posted = client.try_post("web", r#"{"id":"after","payload":""}"#.into()).await;
        posted.is_some_and(|status| status < 300).then_some(())
    })
    .await;
    eventually("all are delivered", MAX_WAIT, async || {
        let ids: HashSet<String> = receiver.requests().iter().map(|request| request.id().to_owned()).collect();
        (ids.len() == 3).then_some(())
    })
    .await;
    assert_eq!(client.drained("web", MAX_WAIT).await["dead"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_rights_are_enough_to_follow_a_fail_over() {
    assert!(include_str!("../../../../docs/failover.md").contains(RIGHTS));
    let (redis, receiver) = (WatchedRedis::start(1).await, Receiver::start());
    with_users(&redis).await;
    let punctual = Punctual::start(&configured(&redis, "", "", &receiver)).await;
    follows_a_fail_over(&redis, &punctual, &receiver).await;
    for server in &redis.servers {
        assert_nothing_was_denied(server).await;
    }
    for place in 0..WatchedRedis::SENTINELS {
        assert!(redis.denied(place).await.is_empty(), "{:?}", redis.denied(place).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_right_for_sentinels_and_durable_replies_is_needed() {
    let (redis, receiver) = (WatchedRedis::start(0).await, Receiver::start());
    let master = &redis.servers[0];
    limit(master, &[&rights()[..], &["-role"]].concat()).await;
    let mut punctual = Punctual::spawn(&configured(&redis, "", "", &receiver), &[]);
    let log = eventually("the missing right is logged", MAX_WAIT, async || {
        let log = punctual.log();
        log.contains("'role'").then_some(log)
    })
    .await;
    let client = Client::of(&punctual);
    let answer = client.readiness().await;
    assert!(answer.status == 503 && answer.text.contains("role"), "{answer:?}\n{log}");
    limit(master, &["+role", "-wait"]).await;
    punctual.ready().await;
    let schedule = async || client.call("POST", "/v1/routes/web/messages", r#"{"id":"m","payload":""}"#).await;
    let answer = schedule().await;
    assert!(answer.status == 503 && answer.text.contains("'wait'"), "{answer:?}");
    limit(master, &["+wait"]).await;
    let answer = schedule().await;
    assert!(answer.status == 503 && answer.text.contains("0 of 1 replicas"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_and_sentinels_that_take_tls_only_are_followed() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (redis, receiver) = (WatchedRedis::start_encrypted(1, &authority).await, Receiver::start());
    with_users(&redis).await;
    let tls = |trusted: &Authority| {
        let file = |name| authority.file(name).display().to_string();
        let (ca, cert, key) = (trusted.file("ca.pem"), file("client.pem"), file("client.key"));
        format!(", tls: {{ ca_file: '{}', cert_file: '{cert}', key_file: '{key}' }}", ca.display())
    };
    // Each has files of its own.
    for (servers, sentinels, refused) in [(&authority, &other, "redis.sentinel.urls.0"), (&other, &authority, "redis")]
    {
        let workplace = Workplace::with(&configured(&redis, &tls(servers), &tls(sentinels), &receiver));
        let ended = workplace.run(&["check", "--connect"]).await;
        let answer = ended.out.lines().find(|line| line.split_whitespace().next() == Some(refused));
        let is_untrusted = answer.is_some_and(|answer| answer.contains("invalid peer certificate"));
        assert!(ended.code == Some(1) && is_untrusted, "{ended:?}");
    }
    let punctual = Punctual::start(&configured(&redis, &tls(&authority), &tls(&authority), &receiver)).await;
    follows_a_fail_over(&redis, &punctual, &receiver).await;
}
