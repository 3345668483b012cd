//! Messages that crashed their process twice: one at a time, and in the way of no other.

use std::time::Duration;

use redis::AsyncCommands;
use tokio::time::{Instant, sleep_until};

use super::{alone, client::Client, p99};
use crate::support::{
    RedisServer,
    punctual::Punctual,
    receiver::{Behaviour, Receiver, Request},
};

const ORDINARY: usize = 600;
const GAP: u64 = 10;

struct Run {
    redis: RedisServer,
    slow: Receiver,
    fast: Receiver,
    client: Client,
    _punctual: Punctual,
}

impl Run {
    async fn start() -> Self {
        let (redis, slow, fast) = (RedisServer::start().await, Receiver::start(), Receiver::start());
        let punctual = Punctual::start(&format!(
            "redis: {{ url: '{}' }}\n\
             sinks: {{ slow: {{ type: http, url: '{}' }}, fast: {{ type: http, url: '{}' }} }}\n\
             routes: {{ slow: {{ sink: slow }}, fast: {{ sink: fast }} }}\n",
            redis.url(),
            slow.url(),
            fast.url()
        ))
        .await;
        let client = Client::of(&punctual);
        Self { redis, slow, fast, client, _punctual: punctual }
    }

    /// Due at once, when they are suspects.
    async fn suspects(&self, count: usize) {
        let ids: Vec<String> = (0..count).map(|n| format!("suspect{n}")).collect();
        let messages: Vec<String> =
            ids.iter().map(|id| format!(r#"{{"id":"{id}","delay":2000,"payload":"x"}}"#)).collect();
        self.client.schedule("slow", &format!("[{}]", messages.join(","))).await;
        let counts: Vec<(&str, &str)> = ids.iter().map(|id| (&**id, "0 2")).collect();
        let () = self.redis.connection().await.hset_multiple("{punctual:slow:0}:attempts", &counts).await.unwrap();
    }

    /// `ORDINARY` messages, one every `GAP` ms from now on.
    async fn ordinary(&self, route: &str) {
        let message = |n: usize| format!(r#"{{"id":"o{n}","delay":{},"payload":"x"}}"#, 2000 + GAP * n as u64);
        let messages: Vec<String> = (0..ORDINARY).map(message).collect();
        self.client.schedule(route, &format!("[{}]", messages.join(","))).await;
    }
}

fn lateness(requests: &[Request]) -> Vec<u64> {
    let ordinary = requests.iter().filter(|request| request.id().starts_with('o'));
    ordinary.map(|request| request.arrived - request.due()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_on_a_hanging_endpoint_delays_no_other_route() {
    let _alone = alone().await;
    let run = Run::start().await;
    run.slow.behave(Behaviour::Hang);
    run.suspects(1).await;
    run.ordinary("fast").await;
    let requests = run.fast.wait_for(ORDINARY, Duration::from_mins(1)).await;
    let late = p99(lateness(&requests));
    println!("suspects: one hangs, p99 of another route {late} ms");
    assert_eq!(run.slow.count(), 1, "it is in flight");
    assert!(late < 100, "{late} ms");
    run.slow.behave(Behaviour::Status(200));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_suspects_delay_ordinary_messages_of_their_route_by_less_than_1_s() {
    let _alone = alone().await;
    let run = Run::start().await;
    run.slow.behave(Behaviour::Delay(Duration::from_millis(20)));
    let begun = Instant::now();
    run.suspects(1000).await;
    run.ordinary("slow").await;
    sleep_until(begun + Duration::from_secs(10)).await;
    let late = lateness(&run.slow.requests());
    let worst = late.iter().max().copied().unwrap_or_default();
    println!("suspects: 1000 of them, {} of {ORDINARY} ordinary ones arrived, the last {worst} ms late", late.len());
    assert_eq!(late.len(), ORDINARY);
    assert!(worst < 1000, "{worst} ms");
    run.client.drained("slow", Duration::from_mins(2)).await;
    println!("suspects: all delivered after {:?}", begun.elapsed());
}
