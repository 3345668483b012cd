//! The queues' Redis becomes a replica behind an address that follows the master, and connections to it stay open.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    client::Client,
    eventually,
    redis_outage::{Posts, configuration, post},
};
use crate::support::{
    RedisServer,
    proxy::Proxy,
    punctual::Punctual,
    receiver::{Receiver, wall_clock},
};

const MAX_WAIT: Duration = Duration::from_secs(10);
const BACK_WITHIN: Duration = Duration::from_secs(5);
/// How long the address goes on leading to the replica.
const STILL_OLD: Duration = Duration::from_secs(3);
/// The API, the scheduler and the wake-ups have one each.
const CONNECTIONS: usize = 3;
/// Log lines of the keeper, with a text that can change once, and one or two of other parts that notice it too.
const MOST_COMPLAINTS: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_was_demoted_is_left_for_the_one_behind_the_same_address() {
    let (old, new, receiver) = (RedisServer::start().await, RedisServer::start().await, Receiver::start());
    replicate(&new, &old).await;
    let proxy = Proxy::start(old.port());
    let punctual = Punctual::start(&configuration(&proxy.redis_url(), &receiver)).await;
    let client = Client::of(&punctual);
    client.schedule("web", r#"{"id":"before","delay":"8s","payload":""}"#).await;
    redis::cmd("WAIT").arg(&[1, 5000]).exec_async(&mut old.connection().await).await.expect("replicated");
    let (posts, stop) = (Arc::new(Mutex::new(Posts::default())), Arc::new(AtomicBool::new(false)));
    let posting = tokio::spawn(post(client.clone(), Arc::clone(&posts), Arc::clone(&stop)));
    receiver.wait_for(100, Duration::from_secs(20)).await;

    redis::cmd("REPLICAOF").arg(&["NO", "ONE"]).exec_async(&mut new.connection().await).await.expect("promoted");
    replicate(&old, &new).await;
    let reason = eventually("it is not ready, with the reason", MAX_WAIT, async || {
        let answer = client.call("GET", "/readyz", "").await;
        (answer.status == 503).then_some(answer.text)
    })
    .await;
    assert!(reason.contains("replica"), "{reason}");
    let before = proxy.accepted();
    tokio::time::sleep(STILL_OLD).await;
    let attempts = proxy.accepted() - before;
    println!("demotion: {attempts} connections in {STILL_OLD:?} while the address led to the replica");
    let calm = CONNECTIONS * (usize::try_from(STILL_OLD.as_secs()).unwrap() + 1);
    assert!((1..=calm).contains(&attempts), "{attempts} connections in {STILL_OLD:?}");
    assert_eq!(client.call("GET", "/readyz", "").await.status, 503);

    proxy.lead_to(new.port());
    let (switched, switched_wall) = (Instant::now(), wall_clock());
    let accepted_after = eventually("a post is accepted again", MAX_WAIT, async || {
        posts.lock().unwrap().latest.filter(|at| *at > switched).map(|at| at - switched)
    })
    .await;
    let first_after = eventually("a message is delivered again", MAX_WAIT, async || {
        receiver
            .requests()
            .iter()
            .map(|request| request.arrived)
            .find(|at| *at > switched_wall)
            .map(|at| at - switched_wall)
    })
    .await;
    println!("demotion: accepted {accepted_after:?} and delivered {first_after} ms after the address had moved");
    assert!(accepted_after <= BACK_WITHIN && Duration::from_millis(first_after) <= BACK_WITHIN);
    eventually("wake-ups come from the new master", BACK_WITHIN, async || {
        let mut channels = redis::cmd("PUBSUB");
        let (_, count): (String, u64) = channels
            .arg(&["NUMSUB", "{punctual:web:0/1}:wake"])
            .query_async(&mut new.connection().await)
            .await
            .expect("counted");
        (count == 1).then_some(())
    })
    .await;
    eventually("what had been scheduled before comes", MAX_WAIT, async || {
        receiver.requests().iter().any(|request| request.id() == "before").then_some(())
    })
    .await;
    stop.store(true, Ordering::SeqCst);
    posting.await.unwrap();
    assert_eq!(client.drained("web", MAX_WAIT).await["dead"], 0);
    assert!(receiver.requests().iter().all(|request| request.attempt() == 1), "no attempt was burnt");
    assert_eq!(client.call("GET", "/readyz", "").await.status, 200);
    let log = punctual.log();
    assert!(log.lines().any(|line| line.contains("ERROR") && line.contains("replica")), "{log}");
    assert!(log.contains("redis is usable again"), "{log}");
    let complaints = log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).count();
    println!("demotion: {complaints} lines of level warn or error");
    assert!(complaints <= MOST_COMPLAINTS, "{log}");

    // After the move no further connection is made. A late answer of the old master may cost each connection one
    // reconnect.
    let before = proxy.accepted();
    let mut accepted = before;
    loop {
        tokio::time::sleep(STILL_OLD).await;
        if proxy.accepted() == accepted {
            break;
        }
        accepted = proxy.accepted();
        assert!(accepted <= before + CONNECTIONS, "{} connections after all had moved", accepted - before);
    }
}

/// Makes `one` a replica of `other`, and waits until it is in step.
async fn replicate(one: &RedisServer, other: &RedisServer) {
    let mut connection = one.connection().await;
    let port = other.port().to_string();
    redis::cmd("REPLICAOF").arg(&["127.0.0.1", &port]).exec_async(&mut connection).await.expect("demoted");
    eventually("it replicates", MAX_WAIT, async || {
        let info: String = redis::cmd("INFO")
            .arg("replication")
            .query_async(&mut one.connection().await)
            .await
            .expect("the server answers");
        info.contains("master_link_status:up").then_some(())
    })
    .await;
}
