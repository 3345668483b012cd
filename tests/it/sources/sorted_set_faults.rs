//! Sorted sets under competition and trouble: every member exactly once, or still where it was.

use std::{collections::BTreeSet, time::Duration};

use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::sorted_set::{World, configuration};
use crate::{
    program::{eventually, heavy},
    support::{RedisServer, punctual::Punctual, receiver::wall_clock, scale::rounds},
};

const MAX_WAIT: Duration = Duration::from_secs(30);
const WORKERS: usize = 8;

#[tokio::test(flavor = "multi_thread")]
async fn among_eight_workers_and_two_instances_every_member_is_had_once() {
    let _turn = heavy().await;
    let mut world = World::start(&["--notify-keyspace-events", "Kz"], json!({ "poll": "100ms" })).await;
    let _other = Punctual::start(&configuration(&world.redis, &world.receiver, json!({}))).await;
    // Five due in each millisecond: three thousand, too, keep all of them busy at once.
    let members = rounds(3000, 10_000);
    let first = wall_clock() + 3000;
    for from in (0..members).step_by(500) {
        let mut pipe = redis::pipe();
        for n in from..from + 500 {
            #[expect(clippy::cast_precision_loss)]
            pipe.zadd("delayed", format!("member {n}"), (first + n as u64 / 5) as f64 / 1000.0).ignore();
        }
        pipe.exec_async(&mut world.raw).await.expect("written");
    }
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(work(world.redis.connection().await));
    }
    let by_workers: Vec<String> = workers.join_all().await.into_iter().flatten().collect();
    let ours = members - by_workers.len();
    world.receiver.wait_for(ours, MAX_WAIT).await;
    world.client.drained("web", MAX_WAIT).await;
    let requests = world.receiver.requests();
    println!("sorted set: {} by workers, {ours} by punctual", by_workers.len());
    let mut seen = BTreeSet::new();
    let twice: Vec<_> = requests.iter().filter(|request| !seen.insert(request.body.to_vec())).collect();
    assert!(twice.is_empty(), "twice: {twice:?}");
    assert_eq!(requests.len(), ours);
    let mut all: BTreeSet<String> = by_workers.iter().cloned().collect();
    all.extend(requests.iter().map(|request| String::from_utf8(request.body.to_vec()).expect("text")));
    assert_eq!((all.len(), world.count().await), (members, 0), "each of them, and so none twice");
    assert!(ours > 0 && !by_workers.is_empty(), "there was a competition");
}

/// As workers are commonly written: poll, then claim by ZREM, until nothing is left.
async fn work(mut connection: redis::aio::MultiplexedConnection) -> Vec<String> {
    connection.set_response_timeout(MAX_WAIT);
    let mut had = Vec::new();
    loop {
        #[expect(clippy::cast_precision_loss)]
        let now = wall_clock() as f64 / 1000.0;
        let mut poll = redis::cmd("ZRANGEBYSCORE");
        poll.arg("delayed").arg("-inf").arg(now).arg("LIMIT").arg(0).arg(1);
        let due: Vec<String> = poll.query_async(&mut connection).await.expect("a sorted set");
        if let Some(member) = due.into_iter().next() {
            let removed: u64 =
                redis::cmd("ZREM").arg("delayed").arg(&member).query_async(&mut connection).await.expect("it removes");
            if removed == 1 {
                had.push(member);
            }
            continue;
        }
        let left: u64 = redis::cmd("ZCARD").arg("delayed").query_async(&mut connection).await.expect("it counts");
        if left == 0 {
            return had;
        }
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_route_is_paused_members_stay_and_can_be_cancelled() {
    let mut world = World::start(&["--notify-keyspace-events", "Kz"], json!({})).await;
    assert_eq!(world.client.call("POST", "/v1/routes/web/pause", "").await.status, 204);
    for n in 0..5 {
        world.add(wall_clock(), &format!("m{n}")).await;
    }
    sleep(Duration::from_millis(500)).await;
    assert_eq!(world.count().await, 5);
    let polls = polls(&world.commands(Duration::from_secs(3)).await);
    assert!(polls <= 1, "{polls} polls in 3 s at what cannot leave");
    let removed: u64 = redis::cmd("ZREM").arg("delayed").arg("m0").query_async(&mut world.raw).await.unwrap();
    assert_eq!(removed, 1);
    assert_eq!(world.client.call("POST", "/v1/routes/web/resume", "").await.status, 204);
    let resumed = Instant::now();
    world.receiver.wait_for(4, MAX_WAIT).await;
    assert!(resumed.elapsed() < Duration::from_secs(2), "resuming wakes: {:?}", resumed.elapsed());
    world.client.drained("web", MAX_WAIT).await;
    assert_eq!(world.receiver.count(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_endpoint_is_down_only_so_many_members_leave_their_set() {
    let mut world = World::start(&["--notify-keyspace-events", "Kz"], json!({})).await;
    world.receiver.refuse();
    let mut pipe = redis::pipe();
    for n in 0..5000 {
        pipe.zadd("delayed", format!("m{n}"), 1).ignore();
    }
    pipe.exec_async(&mut world.raw).await.expect("written");
    // Until what was in flight when it went down is back.
    let mut before = 0;
    let left = eventually("no more leave", MAX_WAIT, async || {
        sleep(Duration::from_secs(2)).await;
        let left = world.count().await;
        (std::mem::replace(&mut before, left) == left).then_some(left)
    })
    .await;
    // Two partitions, a thousand each, and some that were claimed before it was known to be down.
    assert!((1000..5000).contains(&left), "{left} are left");
    let polls = polls(&world.commands(Duration::from_secs(3)).await);
    assert!(polls <= 1, "{polls} polls in 3 s at what cannot leave");
    world.receiver.listen();
    world.receiver.wait_for(5000, MAX_WAIT).await;
    let stats = world.client.drained("web", MAX_WAIT).await;
    assert_eq!((stats["dead"].as_u64(), world.count().await), (Some(0), 0));
}

/// Calls that read the set or take from it.
fn polls(commands: &[String]) -> usize {
    commands.iter().filter(|line| line.contains("\"delayed\"")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_killed_and_one_that_is_full_lose_no_member() {
    // Synced each second, a killed server may lose its latest writes: here it may not.
    let arguments = ["--appendfsync", "always", "--notify-keyspace-events", "Kz"];
    let mut world = World::start(&arguments, json!({ "poll": "100ms" })).await;
    let first = wall_clock() + 500;
    for n in 0..1000 {
        world.add(first + 2 * n, &format!("m{n}")).await;
    }
    world.receiver.wait_for(100, MAX_WAIT).await;
    world.redis.restart().await;
    world.raw = world.redis.connection().await;
    world.receiver.wait_for(300, MAX_WAIT).await;

    // Some that are due while it is full: added and full at once.
    let mut pipe = redis::pipe();
    pipe.atomic();
    for n in 1000..1100 {
        pipe.zadd("delayed", format!("m{n}"), 1).ignore();
    }
    pipe.cmd("CONFIG").arg(&["SET", "maxmemory", "1"]).ignore();
    pipe.exec_async(&mut world.raw).await.expect("written");
    eventually("the source notices that redis is full", MAX_WAIT, async || {
        (world.source().await["state"] == "failing").then_some(())
    })
    .await;
    assert!(world.count().await >= 100, "what is due stays in its set");
    set_memory(&mut world, "0").await;
    world.receiver.wait_for(1100, MAX_WAIT).await;
    world.client.drained("web", MAX_WAIT).await;
    let bodies: BTreeSet<Vec<u8>> = world.receiver.requests().iter().map(|one| one.body.to_vec()).collect();
    assert_eq!((bodies.len(), world.count().await), (1100, 0));
}

async fn set_memory(world: &mut World, most: &str) {
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("maxmemory").arg(most);
    let () = set.query_async(&mut world.raw).await.expect("it is set");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_type_is_reported_and_nothing_is_lost() {
    let redis = RedisServer::start().await;
    let receiver = crate::support::receiver::Receiver::start();
    let mut raw = redis.connection().await;
    let () = redis::cmd("SET").arg("delayed").arg("text").query_async(&mut raw).await.unwrap();
    let punctual = Punctual::start(&configuration(&redis, &receiver, json!({ "poll": "50ms" }))).await;
    let client = crate::program::client::Client::of(&punctual);
    eventually("the source fails", MAX_WAIT, async || {
        let sources = client.call("GET", "/v1/sources", "").await.json;
        (sources["sources"][0]["state"] == "failing").then_some(())
    })
    .await;
    assert_eq!(client.metrics().await.sum("punctual_source_up", &[]), 0);
    let mut pipe = redis::pipe();
    pipe.del("delayed").ignore().zadd("delayed", "m", 1).ignore();
    pipe.exec_async(&mut raw).await.expect("written");
    receiver.wait_for(1, MAX_WAIT).await;
    assert_eq!(client.metrics().await.sum("punctual_source_up", &[]), 1);
}
