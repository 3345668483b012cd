//! Calls of an operator and of other programs, on a cluster.

use std::time::Duration;

use redis::Value;
use serde_json::json;

use super::{OLD, PARTITIONS, Partition};
use crate::{
    program::{
        client::Client,
        eventually,
        failover::load::configuration,
        heavy,
        rights::{assert_nothing_was_denied, documented, documented_with, limit},
    },
    support::{
        cluster::ClusterRedis,
        punctual::Punctual,
        receiver::{Receiver, wall_clock},
    },
};

const MAX_WAIT: Duration = Duration::from_secs(10);
const PRODUCE: &str = include_str!("../../../../../lua/produce.lua");
/// Later than that, a message was not announced: claimers sleep for seconds.
const MOST_LATE: u64 = 500;

fn with_partitions(redis: &ClusterRedis, partitions: u32, receiver: &Receiver) -> String {
    configuration(&redis.setting(), &format!(", partitions: {partitions}"), receiver)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_reaches_the_partition_of_its_message_wherever_it_is() {
    let _turn = heavy().await;
    let (redis, receiver) = (ClusterRedis::start().await, Receiver::start());
    let partitions = Partition::of_web(&redis).await;
    let mut punctual = Punctual::start(&with_partitions(&redis, PARTITIONS, &receiver)).await;
    let client = Client::of(&punctual);
    let ids: Vec<String> = (0..60).map(|n| format!("m{n}")).collect();
    let all: Vec<_> = ids.iter().map(|id| json!({ "id": id, "delay": "1h", "payload": id })).collect();
    client.schedule("web", &json!(all).to_string()).await;
    assert!(partitions.iter().all(|one| ids.iter().any(|id| one.has(id))), "a message in each partition");

    let listed = client.call("GET", "/v1/routes/web/messages?state=pending&limit=100", "").await;
    assert_eq!(listed.json["messages"].as_array().map(Vec::len), Some(60), "{listed:?}");
    for id in &ids {
        let found = client.call("GET", &format!("/v1/routes/web/messages/{id}"), "").await;
        assert_eq!((found.status, &found.json["payload"]), (200, &json!(id)), "{found:?}");
    }
    let forecast = client.call("GET", "/v1/routes/web/forecast?horizon=2h&buckets=2", "").await;
    assert_eq!(forecast.status, 200, "{forecast:?}");
    for id in &ids[..10] {
        assert_eq!(client.call("DELETE", &format!("/v1/routes/web/messages/{id}"), "").await.status, 204);
    }
    assert_eq!(client.call("POST", "/v1/routes/web/pause", "").await.status, 204);
    for id in &ids[10..20] {
        let moved = client.call("PATCH", &format!("/v1/routes/web/messages/{id}"), r#"{"delay":"0s"}"#).await;
        assert_eq!(moved.status, 200, "{moved:?}");
    }
    assert_eq!(client.stats("web").await["pending"], 50);
    assert_eq!(receiver.count(), 0, "it is paused");
    assert_eq!(client.call("POST", "/v1/routes/web/resume", "").await.status, 204);
    receiver.wait_for(10, MAX_WAIT).await;

    // Other programs call the script on the server that has the slot, and wake punctual up.
    for partition in &partitions {
        let id = partition.an_id("p");
        let mut link = redis.server(partition.primary).connection().await;
        let due = wall_clock() + 300;
        let mut call = redis::cmd("EVAL");
        call.arg(PRODUCE).arg(1).arg(format!("{}:pending", partition.tag)).arg(&[1]).arg(&id).arg(due).arg("x").arg("");
        let reply: Vec<Value> = call.query_async(&mut link).await.expect("scheduled");
        assert_eq!(reply[0], Value::BulkString(b"scheduled".to_vec()));
        let late = eventually("it arrives", MAX_WAIT, async || {
            let requests = receiver.requests();
            requests.iter().find(|request| request.id() == id).map(|request| request.arrived - due)
        })
        .await;
        assert!(late < MOST_LATE, "{id} was {late} ms late");
    }

    let other = Punctual::spawn(&with_partitions(&redis, PARTITIONS + 1, &receiver), &[]).ended().await;
    assert_eq!(other.code(), Some(1));
    let purged = client.call("POST", "/v1/routes/web/purge", r#"{"all":true}"#).await;
    assert_eq!((purged.status, &purged.json["count"]), (200, &json!(40)), "{purged:?}");
    assert_eq!(punctual.terminate().await.code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_rights_are_enough() {
    let _turn = heavy().await;
    let (redis, receiver) = (ClusterRedis::start().await, Receiver::start());
    let rights = [documented().0, documented_with("redis.cluster")].concat();
    for place in 0..redis.count() {
        limit(redis.server(place), &rights).await;
    }
    let setting = format!("{}, username: limited, password: secret", redis.setting());
    let punctual = Punctual::start(&configuration(&setting, &format!(", partitions: {PARTITIONS}"), &receiver)).await;
    let client = Client::of(&punctual);
    for partition in &Partition::of_web(&redis).await {
        let id = partition.an_id("m");
        client.schedule("web", &json!({ "id": id, "payload": "", "delay": "300ms" }).to_string()).await;
        redis.move_slots(partition.slot..=partition.slot, 1).await;
    }
    receiver.wait_for(PARTITIONS as usize, MAX_WAIT).await;
    for place in 0..redis.count() {
        assert_nothing_was_denied(redis.server(place)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_was_emptied_is_used_again() {
    let _turn = heavy().await;
    let (redis, receiver) = (ClusterRedis::start().await, Receiver::start());
    let partitions = Partition::of_web(&redis).await;
    let punctual = Punctual::start(&with_partitions(&redis, PARTITIONS, &receiver)).await;
    let client = Client::of(&punctual);
    redis::cmd("FLUSHALL").exec_async(&mut redis.server(OLD).connection().await).await.expect("emptied");
    for partition in &partitions {
        let id = partition.an_id("m");
        client.schedule("web", &json!({ "id": id, "payload": "" }).to_string()).await;
    }
    receiver.wait_for(partitions.len(), MAX_WAIT).await;
    let log = punctual.log();
    assert!(log.contains("redis has lost"), "{log}");
}
