//! The cost of a message in Redis: script calls for its whole life, from the API to its acknowledgement.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{alone, client::Client, script_calls};
use crate::support::{RedisServer, punctual::Punctual, receiver::Receiver, scale::seconds};

/// Messages a second. A debug build does not reach it over HTTP.
const RATE: usize = 5_000;
const HTTP_RATE: usize = if cfg!(debug_assertions) { 500 } else { RATE };
const ARRAY: usize = 50;
/// Connections of the run with a post for each message.
const CLIENTS: usize = 64;
/// Messages that have their whole life in one script call, at `RATE`. The faster the machine, the more claims find only
/// the messages of the last two milliseconds: the row "5,000/s on one route" of docs/performance.md has 0.21 calls a
/// message. On a slower machine messages cost more, but the calls of a second do not.
const MESSAGES_PER_CALL: usize = 4;

struct Run {
    redis: RedisServer,
    _receiver: Receiver,
    _punctual: Punctual,
    client: Client,
}

impl Run {
    async fn start() -> Self {
        let redis = RedisServer::start().await;
        let receiver = Receiver::start();
        let punctual = Punctual::start(&format!(
            "redis: {{ url: '{}' }}\n\
             sinks: {{ hook: {{ type: http, url: '{}' }}, jobs: {{ type: redis_list, key: jobs }} }}\n\
             routes: {{ web: {{ sink: hook }}, list: {{ sink: jobs }} }}\n",
            redis.url(),
            receiver.url()
        ))
        .await;
        let client = Client::of(&punctual);
        Self { redis, _receiver: receiver, _punctual: punctual, client }
    }

    /// Posts at a rate, `array` in each request, over `CLIENTS` connections at most.
    async fn flow(&self, what: &str, route: &'static str, array: usize, rate: usize) {
        // At one rate: calls for each message are the same in a shorter time.
        let posting = seconds(2, 4);
        let calls_before = script_calls(&self.redis).await;
        let started = Instant::now();
        let (next, posted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let (client, next, posted) = (self.client.clone(), Arc::clone(&next), Arc::clone(&posted));
            clients.spawn(async move {
                loop {
                    let first = next.fetch_add(array, Ordering::SeqCst);
                    let at = started + Duration::from_secs(1) * number(first) / number(rate);
                    // A machine that cannot keep the rate posts less, not longer.
                    if at.max(Instant::now()) >= started + posting {
                        return;
                    }
                    sleep_until(at).await;
                    client.schedule(route, &body(first, array)).await;
                    posted.fetch_add(array, Ordering::SeqCst);
                }
            });
        }
        while let Some(client) = clients.join_next().await {
            client.expect("every post is accepted");
        }
        let messages = posted.load(Ordering::SeqCst);
        self.client.drained(route, Duration::from_mins(1)).await;
        let took = started.elapsed();
        let calls = script_calls(&self.redis).await - calls_before;
        let metrics = self.client.metrics().await;
        let delivered = metrics.sum("punctual_messages_delivered_total", &[&format!("route=\"{route}\"")]);
        assert_eq!(delivered, messages as u64);
        let by_script = ["schedule", "claim", "ack", "transfer"].map(|script| {
            let label = format!("script=\"{script}\"");
            format!("{} {script}", metrics.sum("punctual_redis_script_seconds_count", &[&label]))
        });
        println!(
            "economy: {what}: {calls} script calls for {messages} messages = {:.3} each (all so far: {}); \
             {}/s posted, delivered after {took:.1?}",
            f64::from(number(calls)) / f64::from(number(messages)),
            by_script.join(", "),
            messages * 1000 / posting.as_millis() as usize
        );
        let at_rate = took.as_millis() as usize * RATE / 1000;
        let most = messages.max(at_rate) / MESSAGES_PER_CALL;
        assert!(calls <= most, "{calls} script calls, at most {most}");
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).expect("a small number")
}

/// Due half a second later, spread a little, so that they leave as evenly as they came.
fn body(first: usize, count: usize) -> String {
    let message = |n: usize| format!(r#"{{"id":"m{n}","delay":{},"payload":"{n}"}}"#, 500 + n % 10);
    if count == 1 {
        return message(first);
    }
    let messages: Vec<String> = (first..first + count).map(message).collect();
    format!("[{}]", messages.join(","))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_costs_a_quarter_of_a_script_call_for_its_whole_life() {
    let _alone = alone().await;
    let run = Run::start().await;
    run.flow("arrays into a list", "list", ARRAY, RATE).await;
    run.flow("arrays to http", "web", ARRAY, HTTP_RATE).await;
    let run = Run::start().await;
    run.flow("single posts into a list", "list", 1, RATE).await;
}
