use std::{collections::HashSet, time::Duration};

use redis::AsyncCommands;

use super::{client::Client, heavy, p99, script_calls};
use crate::support::{
    RedisServer,
    punctual::Punctual,
    receiver::{Receiver, Request},
    scale::rounds,
};

const MESSAGES: u64 = 4_000;
const ARRAY: u64 = 100;

#[tokio::test(flavor = "multi_thread")]
async fn instances_share_a_route_with_partitions_and_nothing_comes_twice() {
    let _turn = heavy().await;
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let configuration = format!(
        "redis: {{ url: '{}' }}\nsinks: {{ hook: {{ type: http, url: '{}' }} }}\n\
         routes: {{ web: {{ sink: hook, partitions: 4 }} }}\n",
        redis.url(),
        receiver.url()
    );
    let instances = [Punctual::start(&configuration).await, Punctual::start(&configuration).await];
    let clients = instances.each_ref().map(Client::of);
    for first in (0..MESSAGES).step_by(usize::try_from(ARRAY).unwrap()) {
        let messages: Vec<String> = (first..first + ARRAY)
            .map(|n| format!(r#"{{"id":"m{n}","delay":{},"payload":"{n}"}}"#, 1000 + n % 2000))
            .collect();
        let client = &clients[usize::from((first / ARRAY).is_multiple_of(2))];
        client.schedule("web", &format!("[{}]", messages.join(","))).await;
    }
    receiver.wait_for(usize::try_from(MESSAGES).unwrap(), Duration::from_secs(30)).await;
    clients[0].drained("web", Duration::from_secs(5)).await;
    let requests = receiver.requests();
    let ids: HashSet<&str> = requests.iter().map(Request::id).collect();
    assert_eq!((ids.len() as u64, requests.len() as u64), (MESSAGES, MESSAGES), "each exactly once");
    let mut shares = Vec::new();
    for client in &clients {
        let metrics = client.metrics().await;
        shares.push(metrics.sum("punctual_messages_delivered_total", &[]));
        assert_eq!(metrics.sum("punctual_stale_settlements_total", &[]), 0);
        assert_eq!(metrics.sum("punctual_leases_expired_total", &[]), 0);
        assert_eq!(metrics.sum("punctual_messages_scheduled_total", &[]), MESSAGES / 2);
    }
    println!("sharing: two instances delivered {shares:?} of {MESSAGES}");
    assert_eq!(shares.iter().sum::<u64>(), MESSAGES);
}

/// Milliseconds between two messages of a light load.
const LIGHT_GAP: usize = 50;
/// Messages for one instance alone.
const CALM: usize = 60;

async fn light(client: &Client, count: usize, prefix: &str) {
    let message = |n: usize| format!(r#"{{"id":"{prefix}{n}","delay":{},"payload":"x"}}"#, 1000 + LIGHT_GAP * n);
    let messages: Vec<String> = (0..count).map(message).collect();
    client.schedule("web", &format!("[{}]", messages.join(","))).await;
}

fn lateness(requests: &[Request], prefix: &str) -> Vec<u64> {
    let those = requests.iter().filter(|request| request.id().starts_with(prefix));
    those.map(|request| request.arrived - request.due()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_instances_cost_little_and_a_death_delays_by_a_second_at_most() {
    let _turn = heavy().await;
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let configuration = format!(
        "redis: {{ url: '{}' }}\nsinks: {{ hook: {{ type: http, url: '{}' }} }}\nroutes: {{ web: {{ sink: hook }} }}\n",
        redis.url(),
        receiver.url()
    );
    let mut instances = vec![Punctual::start(&configuration).await];
    // How late this machine is with one.
    light(&Client::of(&instances[0]), CALM, "calm").await;
    let calm = p99(lateness(&receiver.wait_for(CALM, Duration::from_mins(1)).await, "calm"));
    for _ in 1..8 {
        instances.push(Punctual::start(&configuration).await);
    }
    let clients: Vec<Client> = instances.iter().map(Client::of).collect();
    // Script calls are counted for each message, at one rate: a short time shows as much.
    let light_count = rounds(120, 400);
    let before = script_calls(&redis).await;
    light(&clients[0], light_count, "a").await;
    receiver.wait_for(CALM + light_count, Duration::from_mins(1)).await;
    clients[0].drained("web", Duration::from_secs(5)).await;
    let calls = script_calls(&redis).await - before;
    let late = p99(lateness(&receiver.requests(), "a"));
    println!(
        "sharing: 8 instances, {calls} script calls for {light_count} messages = {}.{:02} each, p99 {late} ms, with one {calm} ms",
        calls / light_count,
        calls * 100 / light_count % 100
    );
    assert!(calls <= 3 * light_count && late < 50 + 2 * calm);

    light(&clients[0], light_count, "b").await;
    receiver.wait_for(CALM + light_count + light_count / 2, Duration::from_mins(1)).await;
    let mut delivered = Vec::new();
    for client in &clients {
        delivered.push(client.metrics().await.sum("punctual_messages_delivered_total", &[]));
    }
    let busiest = (0..8).max_by_key(|n| delivered[*n]).expect("eight");
    instances[busiest].kill().await;
    // Its messages in flight come back when their leases end.
    let held: Vec<String> =
        redis.connection().await.zrange("{punctual:web:0/1}:unack", 0, -1).await.expect("it answers");
    receiver.wait_for(CALM + 2 * light_count, Duration::from_mins(1)).await;
    let mut others = receiver.requests();
    others.retain(|request| !held.iter().any(|id| id == request.id()));
    let latest = lateness(&others, "b").into_iter().max().unwrap();
    println!("sharing: shares {delivered:?}; after the busiest died the latest message was {latest} ms late");
    assert!(latest <= 1000, "{latest} ms");
}
