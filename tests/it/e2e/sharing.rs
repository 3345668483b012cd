use std::{collections::HashSet, time::Duration};

use super::{alone, client::Client};
use crate::support::{
    RedisServer,
    punctual::Punctual,
    receiver::{Receiver, Request},
};

const MESSAGES: u64 = 4_000;
const ARRAY: u64 = 100;

#[tokio::test(flavor = "multi_thread")]
async fn instances_share_a_route_with_partitions_and_nothing_comes_twice() {
    let _alone = alone().await;
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
    assert!(shares.iter().all(|share| *share >= MESSAGES / 10), "both take part: {shares:?}");
}
