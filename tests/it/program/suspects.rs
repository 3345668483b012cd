//! Messages that crashed their process twice: one at a time, and in the way of no other.

use std::time::Duration;

use redis::AsyncCommands;
use tokio::time::Instant;

use super::{client::Client, eventually, heavy, p99};
use crate::support::{
    RedisServer,
    punctual::Punctual,
    receiver::{Behaviour, Receiver, Request},
    scale::rounds,
};

/// More than the samples of a p99, over four seconds.
const ORDINARY: usize = 400;
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
             sinks: {{ slow: {{ type: http, url: '{}', timeout: 1m }}, fast: {{ type: http, url: '{}' }} }}\n\
             routes: {{ slow: {{ sink: slow, lease: 2m }}, fast: {{ sink: fast }} }}\n",
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
        let () = self.redis.connection().await.hset_multiple("{punctual:slow:0/1}:attempts", &counts).await.unwrap();
    }

    /// `ORDINARY` messages with ids that begin with `prefix`, one every `GAP` ms from two seconds on.
    async fn ordinary(&self, route: &str, prefix: &str) {
        let message = |n: usize| format!(r#"{{"id":"{prefix}{n}","delay":{},"payload":"x"}}"#, 2000 + GAP * n as u64);
        let messages: Vec<String> = (0..ORDINARY).map(message).collect();
        self.client.schedule(route, &format!("[{}]", messages.join(","))).await;
    }
}

fn lateness(requests: &[Request], prefix: &str) -> Vec<u64> {
    let ordinary = requests.iter().filter(|request| request.id().starts_with(prefix));
    ordinary.map(|request| request.arrived - request.due()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_on_a_hanging_endpoint_delays_no_other_route() {
    let _turn = heavy().await;
    let run = Run::start().await;
    // The lateness on this machine without a suspect.
    run.ordinary("fast", "calm").await;
    run.fast.wait_for(ORDINARY, Duration::from_mins(1)).await;
    run.slow.behave(Behaviour::Hang);
    run.suspects(1).await;
    run.slow.wait_for(1, Duration::from_secs(30)).await;
    run.ordinary("fast", "beside").await;
    let requests = run.fast.wait_for(2 * ORDINARY, Duration::from_mins(1)).await;
    let [calm, beside] = ["calm", "beside"].map(|prefix| p99(lateness(&requests, prefix)));
    println!("suspects: one hangs, p99 of another route {beside} ms, {calm} ms without it");
    assert_eq!((run.slow.count(), &run.client.stats("slow").await["unack"]), (1, &1.into()), "it is in flight");
    assert!(beside < 100 + 2 * calm, "{beside} ms, {calm} ms without the suspect");
    run.slow.behave(Behaviour::Status(200));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_suspects_delay_ordinary_messages_of_their_route_by_less_than_1_s() {
    let _turn = heavy().await;
    let run = Run::start().await;
    run.slow.behave(Behaviour::Delay(Duration::from_millis(20)));
    let begun = Instant::now();
    // Suspects are sent in sequence, 20 ms each: also the few of the plain run last as long as the ordinary messages.
    let count = rounds(150, 1000);
    run.suspects(count).await;
    run.ordinary("slow", "ordinary").await;
    let late = eventually("all ordinary ones arrive", Duration::from_mins(1), async || {
        Some(lateness(&run.slow.requests(), "ordinary")).filter(|late| late.len() == ORDINARY)
    })
    .await;
    let worst = late.iter().max().copied().unwrap_or_default();
    println!("suspects: {count} of them, of {ORDINARY} ordinary ones the last was {worst} ms late");
    assert!(worst < 1000, "{worst} ms");
    run.client.drained("slow", Duration::from_mins(2)).await;
    println!("suspects: all delivered after {:?}", begun.elapsed());
}
