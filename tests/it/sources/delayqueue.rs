//! Unchanged producers of hdt3213/delayqueue, and its old consumers beside punctual.

use std::{collections::BTreeSet, time::Duration};

use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::program::Program;
use crate::{
    program::{calls, client::Client, eventually, heavy},
    support::{
        RedisServer,
        punctual::Punctual,
        receiver::{Behaviour, Receiver, Request, wall_clock},
    },
};

const MAX_WAIT: Duration = Duration::from_secs(30);

fn configuration(redis: &RedisServer, receiver: &Receiver, sources: &Value) -> String {
    json!({
        "redis": { "url": redis.url() },
        "sinks": { "hook": { "type": "http", "url": receiver.url() } },
        "routes": { "web": { "sink": "hook", "retry": { "initial": "10ms", "max": "10ms" } } },
        "sources": sources,
    })
    .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_go_producer_works_with_and_without_hash_tag_and_prefix() {
    let Some(go) = Program::go() else { return };
    let _turn = heavy().await;
    let redis = RedisServer::start_with(&["--notify-keyspace-events", "Kzl"]).await;
    let receiver = Receiver::start();
    let sources = json!({
        "plain": { "type": "delayqueue", "name": "order-close", "route": "web" },
        "tagged": { "type": "delayqueue", "name": "order-close", "route": "web", "hash_tag": true, "prefix": "mine" },
    });
    let punctual = Punctual::start(&configuration(&redis, &receiver, &sources)).await;
    let client = Client::of(&punctual);
    let port = redis.port().to_string();
    let start = wall_clock() + 2000;
    let (plain, tagged) = (["dp", "false"], ["mine", "true"]);
    let arguments = [plain, tagged].map(|[prefix, tag]| [&*port, "order-close", prefix, tag, "1000", "100"]);
    tokio::join!(go.run(&arguments[0]), go.run(&arguments[1]));
    receiver.wait_for(2000, MAX_WAIT).await;
    client.drained("web", MAX_WAIT).await;
    // Beyond the time at which the intercepted ones would have been due.
    sleep(Duration::from_secs(8)).await;
    let requests = receiver.requests();
    assert_eq!(requests.len(), 2000);
    let mut bodies: Vec<&[u8]> = requests.iter().map(|request| &request.body[..]).collect();
    bodies.sort_unstable();
    let mut expected: Vec<String> = (0..1000).flat_map(|n| [format!("message {n}"), format!("message {n}")]).collect();
    expected.sort_unstable();
    assert_eq!(bodies, expected.iter().map(String::as_bytes).collect::<Vec<_>>());
    let ids: BTreeSet<&str> = requests.iter().map(Request::id).collect();
    assert!(ids.len() == 2000 && ids.iter().all(|id| id.len() == 36), "their own ids");
    for request in &requests {
        assert!(request.arrived >= request.due() && request.due() + 1000 > start, "in its second, not before");
    }
    let left: Vec<String> =
        redis::cmd("KEYS").arg("*order-close*").query_async(&mut redis.connection().await).await.unwrap();
    assert_eq!(left, Vec::<String>::new(), "their keys are left clean");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_tried_once_more_than_its_retries_and_bodies_do_not_expire() {
    let redis = RedisServer::start_with(&["--notify-keyspace-events", "Kzl"]).await;
    let receiver = Receiver::start();
    receiver.behave(Behaviour::Status(500));
    let mut raw = redis.connection().await;
    publish(&mut raw, "later", wall_clock() / 1000 + 3600, "0").await;
    let sources = json!({ "theirs": { "type": "delayqueue", "name": "jobs", "route": "web" } });
    let punctual = Punctual::start(&configuration(&redis, &receiver, &sources)).await;
    let client = Client::of(&punctual);
    eventually("the body has no expiry", MAX_WAIT, async || {
        let left: i64 = redis::cmd("TTL").arg("dp:jobs:msg:later").query_async(&mut raw).await.unwrap();
        (left == -1).then_some(())
    })
    .await;
    publish(&mut raw, "often", 1, "2").await;
    publish(&mut raw, "once", 1, "0").await;
    let mut bodyless = redis::pipe();
    bodyless.lpush("dp:jobs:ready", "bodyless").ignore();
    bodyless.exec_async(&mut raw).await.expect("written");
    eventually("three dead letters", MAX_WAIT, async || (client.stats("web").await["dead"] == 3).then_some(())).await;
    let mut attempts: Vec<String> =
        receiver.requests().iter().map(|one| format!("{} {}", one.id(), one.attempt())).collect();
    attempts.sort();
    assert_eq!(attempts, ["often 1", "often 2", "often 3", "once 1"]);
    let left: u64 = redis::cmd("ZCARD").arg("dp:jobs:pending").query_async(&mut raw).await.unwrap();
    let status = client.call("GET", "/v1/sources", "").await.json["sources"][0].clone();
    assert_eq!((left, &status["depth"], &status["state"]), (1, &json!(1), &json!("running")));
    // A run makes 18 calls. A scan that has no end makes thousands a second.
    let scans = calls(&redis, &["lrange"]).await;
    assert!(scans < 200, "{scans} calls of LRANGE");
}

async fn publish(raw: &mut MultiplexedConnection, id: &str, due: u64, retries: &str) {
    let mut pipe = redis::pipe();
    pipe.cmd("SET").arg(format!("dp:jobs:msg:{id}")).arg(format!("body of {id}")).arg("EX").arg(7200).ignore();
    pipe.hset("dp:jobs:retry:cnt", id, retries).ignore().zadd("dp:jobs:pending", id, due).ignore();
    pipe.exec_async(raw).await.expect("written");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_persist_bodies_it_is_logged_and_messages_go_on() {
    let redis = RedisServer::start().await;
    let receiver = Receiver::start();
    let mut raw = redis.connection().await;
    redis::cmd("ACL")
        .arg(&["SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", "-persist"])
        .exec_async(&mut raw)
        .await
        .expect("a user");
    publish(&mut raw, "later", wall_clock() / 1000 + 3600, "0").await;
    let sources = json!({ "theirs": { "type": "delayqueue", "name": "jobs", "route": "web", "poll": "100ms" } });
    let mut configuration: Value = serde_json::from_str(&configuration(&redis, &receiver, &sources)).expect("JSON");
    configuration["redis"]["username"] = json!("limited");
    configuration["redis"]["password"] = json!("secret");
    let punctual = Punctual::start(&configuration.to_string()).await;
    let client = Client::of(&punctual);
    let failing = eventually("the source fails", MAX_WAIT, async || {
        let source = client.call("GET", "/v1/sources", "").await.json["sources"][0].clone();
        (source["state"] == "failing").then_some(source)
    })
    .await;
    assert!(failing["last_error"].as_str().unwrap().contains("ACL SETUSER <user> +persist`"), "{failing}");
    publish(&mut raw, "now", 1, "0").await;
    receiver.wait_for(1, MAX_WAIT).await;
    assert_eq!(client.call("GET", "/v1/sources", "").await.json["sources"][0]["state"], "failing", "still");
    assert_eq!(punctual.log().matches("cannot take messages").count(), 1, "{}", punctual.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn beside_old_consumers_every_message_is_had_once() {
    const MESSAGES: usize = 2000;
    let _turn = heavy().await;
    let redis = RedisServer::start_with(&["--notify-keyspace-events", "Kzl"]).await;
    let receiver = Receiver::start();
    let mut raw = redis.connection().await;
    let first = wall_clock() / 1000 + 2;
    for n in 0..MESSAGES {
        publish(&mut raw, &format!("id-{n}"), first + n as u64 % 3, "3").await;
    }
    let sources = json!({ "theirs": { "type": "delayqueue", "name": "jobs", "route": "web", "poll": "20ms" } });
    let punctual = Punctual::start(&configuration(&redis, &receiver, &sources)).await;
    let consumer = tokio::spawn(consume(redis.connection().await));
    let client = Client::of(&punctual);
    let theirs = consumer.await.expect("it ends with the queue");
    receiver.wait_for(MESSAGES - theirs.len(), MAX_WAIT).await;
    let stats = client.drained("web", MAX_WAIT).await;
    assert_eq!(stats["dead"], 0);
    println!("delayqueue: {} by the old consumer", theirs.len());
    let mut all: Vec<String> = receiver.requests().iter().map(|request| request.id().to_owned()).collect();
    all.extend(theirs);
    let distinct: BTreeSet<&String> = all.iter().collect();
    assert_eq!((all.len(), distinct.len()), (MESSAGES, MESSAGES), "each once");
    assert!(receiver.count() > 0 && receiver.count() < MESSAGES, "there was a competition");
    let left: Vec<String> = redis::cmd("KEYS").arg("dp:jobs:*").query_async(&mut raw).await.unwrap();
    assert_eq!(left, Vec::<String>::new());
}

/// The commands of its consumer, without its concurrency and its pauses: due ones to ready, ready ones to unack one by
/// one, body, then the acknowledgement. Ends when the queue is empty; the ids that it had.
async fn consume(mut raw: MultiplexedConnection) -> Vec<String> {
    let to_ready = redis::Script::new(
        "local ids = redis.call('ZRangeByScore', KEYS[1], '0', ARGV[1])
        if #ids == 0 then return end
        for i = 1, #ids, 100 do redis.call('LPush', KEYS[2], unpack(ids, i, math.min(i + 99, #ids))) end
        redis.call('ZRemRangeByScore', KEYS[1], '0', ARGV[1])",
    );
    let to_unack = redis::Script::new(
        "local id = redis.call('RPop', KEYS[1])
        if not id then return end
        redis.call('ZAdd', KEYS[2], ARGV[1], id)
        return id",
    );
    let mut had = Vec::new();
    loop {
        let now = wall_clock() / 1000;
        let () = to_ready.key("dp:jobs:pending").key("dp:jobs:ready").arg(now).invoke_async(&mut raw).await.unwrap();
        let mut call = to_unack.prepare_invoke();
        let id: Option<String> =
            call.key("dp:jobs:ready").key("dp:jobs:unack").arg(now + 5).invoke_async(&mut raw).await.unwrap();
        let Some(id) = id else {
            let mut pipe = redis::pipe();
            pipe.zcard("dp:jobs:pending").llen("dp:jobs:ready").zcard("dp:jobs:unack");
            let (pending, ready, unack): (u64, u64, u64) = pipe.query_async(&mut raw).await.unwrap();
            if pending + ready + unack == 0 {
                return had;
            }
            sleep(Duration::from_millis(5)).await;
            continue;
        };
        let body: Option<String> =
            redis::cmd("GET").arg(format!("dp:jobs:msg:{id}")).query_async(&mut raw).await.unwrap();
        assert_eq!(body, Some(format!("body of {id}")), "the body of what a consumer has is not taken");
        for (command, key) in [("ZREM", "dp:jobs:unack"), ("HDEL", "dp:jobs:retry:cnt")] {
            let _: u64 = redis::cmd(command).arg(key).arg(&id).query_async(&mut raw).await.unwrap();
        }
        let _: u64 = redis::cmd("DEL").arg(format!("dp:jobs:msg:{id}")).query_async(&mut raw).await.unwrap();
        had.push(id);
    }
}
