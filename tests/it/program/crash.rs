use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use redis::AsyncCommands;
use tokio::time::Instant;

use super::{client::Client, eventually};
use crate::support::{
    RedisServer,
    punctual::Punctual,
    receiver::{Behaviour, Receiver, wall_clock},
};

const MESSAGES: usize = 10_000;
const MAX_IN_FLIGHT: usize = 200;
/// Messages that an instance holds when it is stopped.
const HELD: usize = 20;
const LEASE_MS: u64 = 3000;
/// How long after its lease ended a message of the killed instance is pending again.
const BACK_WITHIN_MS: u64 = 2000;

fn configuration(redis: &RedisServer, receiver: &Receiver) -> String {
    format!(
        "redis: {{ url: '{}' }}\n\
         sinks: {{ hook: {{ type: http, url: '{}', timeout: 2500ms }} }}\n\
         routes: {{ web: {{ sink: hook, lease: {LEASE_MS}ms, max_in_flight: {MAX_IN_FLIGHT} }} }}\n",
        redis.url(),
        receiver.url()
    )
}

/// Ids under a lease, with its end in epoch microseconds.
async fn leased(redis: &RedisServer) -> BTreeMap<String, u64> {
    let rows: Vec<(String, f64)> =
        redis.connection().await.zrange_withscores("{punctual:web:0/1}:unack", 0, -1).await.unwrap();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive integer below 2^53")]
    rows.into_iter().map(|(id, score)| (id, score as u64)).collect()
}

/// Counts of failed attempts and expired leases, as they are stored.
async fn attempts(redis: &RedisServer) -> BTreeMap<String, String> {
    redis.connection().await.hgetall("{punctual:web:0/1}:attempts").await.unwrap()
}

async fn schedule_many(client: &Client, count: usize, delay: impl Fn(usize) -> usize) {
    let messages: Vec<String> =
        (0..count).map(|n| format!(r#"{{"id":"m{n}","delay":{},"payload":"{n}"}}"#, delay(n))).collect();
    for part in messages.chunks(1000) {
        client.schedule("web", &format!("[{}]", part.join(","))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_instance_loses_nothing_and_its_leases_are_recovered() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    receiver.behave(Behaviour::Delay(Duration::from_millis(50)));
    let mut punctual = Punctual::start(&configuration(&redis, &receiver)).await;
    schedule_many(&Client::of(&punctual), MESSAGES, |n| 1000 + n).await;
    receiver.wait_for(MESSAGES / 3, Duration::from_secs(30)).await;
    punctual.kill().await;
    let held = leased(&redis).await;
    assert!((1..=MAX_IN_FLIGHT).contains(&held.len()), "{} in flight", held.len());

    punctual.restart().await;
    let client = Client::of(&punctual);
    let last_lease_ends = *held.values().max().unwrap() / 1000;
    eventually("the leases of the killed one are recovered", Duration::from_secs(10), async || {
        let now = leased(&redis).await;
        held.iter().all(|(id, lease)| now.get(id) != Some(lease)).then_some(())
    })
    .await;
    let recovered = wall_clock().saturating_sub(last_lease_ends);
    let stats = client.drained("web", Duration::from_mins(1)).await;
    assert_eq!(stats["dead"], 0);

    let requests = receiver.requests();
    let mut arrivals: HashMap<&str, Vec<u64>> = HashMap::new();
    for request in &requests {
        assert_eq!(request.attempt(), 1, "a crash is no attempt");
        arrivals.entry(request.id()).or_default().push(request.arrived);
    }
    assert_eq!(arrivals.len(), MESSAGES, "none is lost");
    let duplicates = requests.len() - MESSAGES;
    let mut latest = 0;
    for (id, lease_ends) in &held {
        let last = arrivals[&**id].iter().max().unwrap() * 1000 + 999;
        assert!(last >= *lease_ends, "{id} came back before its lease ended");
        latest = latest.max((last - lease_ends) / 1000);
    }
    for (id, times) in &arrivals {
        assert!(times.len() == 1 || held.contains_key(*id), "{id} came twice but was not in flight");
    }
    let expired = client.metrics().await.sum("punctual_leases_expired_total", &[]);
    println!(
        "crash: {} in flight at the kill, {duplicates} duplicates; recovered {recovered} ms after the last lease, \
         delivered up to {latest} ms after theirs, behind what waited longer",
        held.len()
    );
    assert!(duplicates <= held.len());
    assert_eq!(expired, held.len() as u64);
    assert!(recovered <= BACK_WITHIN_MS, "{recovered} ms");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_stood_still_past_its_leases_changes_nothing() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    receiver.behave(Behaviour::Hang);
    let configuration = configuration(&redis, &receiver);
    let zombie = Punctual::start(&configuration).await;
    schedule_many(&Client::of(&zombie), HELD, |_| 0).await;
    receiver.wait_for(HELD, Duration::from_secs(5)).await;
    zombie.suspend();
    // Its requests are confirmed, but it cannot see that.
    receiver.behave(Behaviour::Status(200));
    receiver.behave(Behaviour::Hang);

    let other = Punctual::start(&configuration).await;
    let all = receiver.wait_for(2 * HELD, Duration::from_secs(10)).await;
    assert!(all[HELD..].iter().all(|request| request.attempt() == 1), "no attempt was counted");
    let held = leased(&redis).await;
    assert_eq!(held.len(), HELD, "held by the other now");
    assert_eq!(attempts(&redis).await.len(), HELD, "a crash of each is counted");
    zombie.resume();
    let zombie_client = Client::of(&zombie);
    eventually("the zombie's settlements are refused", Duration::from_secs(2), async || {
        let metrics = zombie_client.metrics().await;
        (metrics.sum("punctual_stale_settlements_total", &["route=\"web\""]) >= HELD as u64).then_some(())
    })
    .await;
    assert_eq!(leased(&redis).await, held, "the other's claims stand as they stood");
    assert!(attempts(&redis).await.is_empty(), "it lives: no crash is counted, and no attempt");
    assert!(!redis.connection().await.exists::<_, bool>("{punctual:web:0/1}:dead").await.unwrap());

    receiver.behave(Behaviour::Status(200));
    let stats = Client::of(&other).drained("web", Duration::from_secs(10)).await;
    assert_eq!(stats["dead"], 0);
    assert_eq!(receiver.count(), 2 * HELD, "each once by each of the two");
    let delivered = Client::of(&other).metrics().await.sum("punctual_messages_delivered_total", &[]);
    assert_eq!(delivered, HELD as u64);
    let by_zombie = zombie_client.metrics().await.sum("punctual_messages_delivered_total", &[]);
    assert_eq!(by_zombie, 0, "what was refused is not counted as delivered");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_instance_takes_over_from_one_that_was_killed() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    receiver.behave(Behaviour::Hang);
    let configuration = configuration(&redis, &receiver);
    let mut killed = Punctual::start(&configuration).await;
    schedule_many(&Client::of(&killed), HELD, |_| 0).await;
    receiver.wait_for(HELD, Duration::from_secs(5)).await;
    let in_flight = Client::of(&killed).metrics().await.sum("punctual_in_flight_messages", &[]);
    assert_eq!(in_flight, HELD as u64);
    let survivor = Punctual::start(&configuration).await;
    killed.kill().await;
    let killed_at = Instant::now();
    receiver.behave(Behaviour::Status(200));
    Client::of(&survivor).drained("web", Duration::from_secs(10)).await;
    println!("crash: all {HELD} of the killed one were delivered by the other {:?} later", killed_at.elapsed());
    assert_eq!(receiver.count(), 2 * HELD);
}
