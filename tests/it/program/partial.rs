//! A part of a destination that fails: one connection of an HTTP endpoint. Those of brokers are with their sinks.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::{alone, client::Client};
use crate::support::{RawServer, RedisServer, punctual::Punctual, read_request, receiver::wall_clock, scale::rounds};

/// Time from the first call to the first due time, in ms: long enough to schedule all messages.
const AHEAD: u64 = 3000;
/// Messages of one call, the most that the API takes.
const ARRAY: u64 = 1000;

/// Schedules `count` messages on route `r`, `rate` of them due in each second, with what `more` adds to each. Returns when
/// the first is due, epoch ms.
pub async fn post(client: &Client, count: u64, rate: u64, more: impl Fn(u64) -> Value) -> u64 {
    let start = wall_clock() + AHEAD;
    for from in (0..count).step_by(usize::try_from(ARRAY).expect("small")) {
        let messages = (from..count.min(from + ARRAY)).map(|n| {
            let mut message = more(n);
            message["id"] = format!("m{n}").into();
            message["deliver_at"] = (start + n * 1000 / rate).into();
            if message["payload"].is_null() {
                message["payload"] = n.to_string().into();
            }
            message
        });
        client.schedule("r", &messages.collect::<Value>().to_string()).await;
    }
    assert!(wall_clock() < start, "all are scheduled before the first is due");
    start
}

#[tokio::test(flavor = "multi_thread")]
async fn one_reset_connection_delays_at_most_10_requests() {
    const RATE: u64 = 500;
    const LATE_MILLIS: u64 = 100;
    // Two seconds of flow before and after the reset fill all connections too.
    let (count, reset_at) = rounds((1500, 700), (3000, 1000));
    let _alone = alone().await;
    let redis = RedisServer::start().await;
    let (requests, arrivals) = (Arc::new(AtomicUsize::new(0)), Arc::<Mutex<Vec<(String, u64)>>>::default());
    let seen = Arc::clone(&arrivals);
    let endpoint = RawServer::start(move |mut stream| {
        let (requests, seen) = (Arc::clone(&requests), Arc::clone(&seen));
        async move {
            while let Some(head) = read_request(&mut stream).await {
                if requests.fetch_add(1, Ordering::SeqCst) + 1 == reset_at {
                    stream.set_zero_linger().expect("an option of every socket");
                    return;
                }
                let header =
                    |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).expect("a header").to_owned();
                let due: u64 = header("punctual-due: ").parse().expect("a number");
                seen.lock().unwrap().push((header("punctual-id: "), wall_clock().saturating_sub(due)));
                if stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.is_err() {
                    return;
                }
            }
        }
    });
    let configuration = json!({
        "redis": { "url": redis.url() },
        "sinks": { "hook": { "type": "http", "url": format!("http://127.0.0.1:{}/", endpoint.port()) } },
        "routes": { "r": { "sink": "hook" } },
    });
    let punctual = Punctual::start(&configuration.to_string()).await;
    let client = Client::of(&punctual);
    post(&client, count, RATE, |_| json!({})).await;
    let stats = client.drained("r", Duration::from_mins(1)).await;
    assert_eq!(stats["dead"], 0, "{stats}");
    let arrivals = arrivals.lock().unwrap().clone();
    let over = |limit: u64| arrivals.iter().filter(|(_, lateness)| *lateness > limit).count();
    println!(
        "http: one connection reset: of {} arrivals {} later than 50 ms, {} than {LATE_MILLIS} ms, {} than 500 ms",
        arrivals.len(),
        over(50),
        over(LATE_MILLIS),
        over(500)
    );
    assert_eq!(arrivals.len() as u64, count, "each once");
    // Those before the reset show how many this machine delays by itself.
    let late = |those: &[(String, u64)]| those.iter().filter(|(_, lateness)| *lateness > LATE_MILLIS).count();
    let (before, after) = arrivals.split_at(reset_at - 1);
    let (before, after) = (late(before), late(after));
    assert!(after <= 10 + 2 * before, "{after} later than {LATE_MILLIS} ms, {before} before the reset");
}
