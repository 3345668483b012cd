//! `redis.durability` asks for a replica that is not there.

use std::time::Duration;

use super::switch::configuration;
use crate::{
    program::{client::Client, eventually},
    support::{punctual::Punctual, receiver::Receiver, sentinels::WatchedRedis, servers},
};

const MAX_WAIT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn only_scheduling_is_refused_while_a_replica_is_missing() {
    let (mut redis, receiver) = (WatchedRedis::start(1).await, Receiver::start());
    let setting = configuration(&redis, ", durability: { replicas: 1, timeout: 100ms }", &receiver);
    let punctual = Punctual::start(&setting).await;
    let client = Client::of(&punctual);
    for id in ["before", "kept"] {
        client.schedule("web", &format!(r#"{{"id":"{id}","delay":"3s","payload":""}}"#)).await;
    }
    redis.servers[1].kill();
    for (method, path, body) in [
        ("POST", "messages", r#"{"id":"refused","delay":"1s","payload":""}"#),
        ("PATCH", "messages/before", r#"{"delay":"1s"}"#),
        ("DELETE", "messages/kept", ""),
    ] {
        let answer = client.call(method, &format!("/v1/routes/web/{path}"), body).await;
        assert!(answer.status == 503 && answer.text.contains("0 of 1 replicas"), "{method}: {answer:?}");
    }
    // The calls with the answer 503 were done, as long as this master lasts.
    receiver.wait_for(2, MAX_WAIT).await;
    assert_eq!(client.drained("web", MAX_WAIT).await["dead"], 0);
    let mut ids: Vec<String> = receiver.requests().iter().map(|request| request.id().to_owned()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["before", "refused"]);

    // It is ready nevertheless: it delivers, and so does an instance that starts now.
    assert_eq!(client.readiness().await.status, 200);
    let metrics = client.metrics().await;
    assert_eq!(metrics.sum("punctual_ready", &[]), 1);
    assert!(metrics.sum("punctual_redis_errors_total", &["kind=\"noreplicas\""]) >= 3);
    let started = Punctual::start(&setting).await;
    assert!(started.log().contains("0 replicas of 1: what is scheduled is answered with 503"), "{}", started.log());

    // A master that refuses writes without its replica stops deliveries, too. Redis 6.2 lets scripts write
    // nevertheless.
    let needs_replicas = async |count: u64| {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg("min-replicas-to-write").arg(count);
        command.exec_async(&mut redis.servers[0].connection().await).await.expect("set");
    };
    needs_replicas(1).await;
    let answer = client.readiness().await;
    if servers::redis_version() >= (7, 0) {
        assert!(answer.status == 503 && answer.text.to_lowercase().contains("noreplicas"), "{answer:?}");
    } else {
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    needs_replicas(0).await;

    redis.servers[1].restart().await;
    eventually("a message is accepted again", MAX_WAIT, async || {
        let posted = client.try_post("web", r#"{"id":"after","payload":""}"#.into()).await;
        posted.is_some_and(|status| status < 300).then_some(())
    })
    .await;
    receiver.wait_for(3, MAX_WAIT).await;

    // Without a master nothing goes on.
    redis.servers[1].kill();
    redis.servers[0].kill();
    assert_eq!(client.readiness().await.status, 503);
}
