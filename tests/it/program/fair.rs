//! Fair turns: the backlog of one route, or of one part of its destination, delays no others.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, time::sleep};

use super::{alone, client::Client, eventually};
use crate::support::{
    RawServer, RedisServer,
    punctual::Punctual,
    read_request,
    receiver::{Behaviour, Receiver, wall_clock},
};

/// Time that the endpoint takes for each message.
const REPLY: Duration = Duration::from_millis(200);
/// The endpoint has 160 replies a second for them.
const CONNECTIONS: u64 = 32;
/// Due at once: more than ten seconds of the endpoint's time.
const BACKLOG: u64 = 2000;
/// All of it, twice.
const MOST_UNSENT: f64 = 4000.0;
/// Messages that are due in sequence, one in `EVERY` ms, while the backlog is sent.
const FEW: u64 = 30;
const EVERY: u64 = 100;
/// The time of one reply, and that of a busy machine.
const LATE: u64 = 500;

/// Id and lateness in ms of each arrival.
type Arrivals = Arc<Mutex<Vec<(String, u64)>>>;

fn slow_endpoint() -> (RawServer, Arrivals) {
    let arrivals = Arrivals::default();
    let seen = Arc::clone(&arrivals);
    let endpoint = RawServer::start(move |mut stream| {
        let seen = Arc::clone(&seen);
        async move {
            while let Some(head) = read_request(&mut stream).await {
                let header =
                    |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).expect("a header").to_owned();
                let due: u64 = header("punctual-due: ").parse().expect("a number");
                seen.lock().unwrap().push((header("punctual-id: "), wall_clock().saturating_sub(due)));
                sleep(REPLY).await;
                if stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.is_err() {
                    return;
                }
            }
        }
    });
    (endpoint, arrivals)
}

async fn schedule(client: &Client, route: &str, name: &str, (from, every): (u64, u64), count: u64) {
    let headers = json!({ "tenant": name });
    for begin in (0..count).step_by(1000) {
        let messages = (begin..count.min(begin + 1000)).map(|n| {
            json!({ "id": format!("{name}{n}"), "deliver_at": from + n * every, "payload": "x", "headers": headers })
        });
        client.schedule(route, &messages.collect::<Value>().to_string()).await;
    }
}

/// The backlog goes to the first route, the few messages to the second. Returns when the few have arrived.
async fn judge(client: &Client, arrivals: &Arrivals, (many, few): (&str, &str)) {
    let due = wall_clock() + 1000;
    schedule(client, many, "many", (due, 0), BACKLOG).await;
    schedule(client, few, "few", (due + EVERY, EVERY), FEW).await;
    let all = || arrivals.lock().unwrap().clone();
    let late = eventually("the few have arrived", Duration::from_secs(25), async || {
        let late: Vec<u64> = all().iter().filter(|(id, _)| id.starts_with("few")).map(|(_, late)| *late).collect();
        (late.len() as u64 == FEW).then_some(late)
    })
    .await;
    let others = all().len() as u64 - FEW;
    let worst = late.iter().max().expect("some");
    println!("{FEW} messages beside {others} of a backlog: late by {worst} ms at most");
    assert!(*worst <= LATE, "late by {late:?} ms");
    // All connections are busy in that time.
    let possible = (FEW * EVERY + 1000) / 200 * CONNECTIONS;
    assert!(others >= possible / 2, "{others} of {possible}");
}

fn configuration(redis: &RedisServer, endpoint: &RawServer, path: &str, timeout: &str) -> String {
    let url = format!("http://127.0.0.1:{}/{path}", endpoint.port());
    let hook = json!({
        "type": "http", "url": url, "timeout": timeout, "max_connections": CONNECTIONS,
        "allow": if path.is_empty() { json!([]) } else { json!(["/many", "/few"]) },
    });
    json!({
        "redis": { "url": redis.url() },
        "sinks": { "hook": hook },
        "routes": { "backlog": { "sink": "hook" }, "other": { "sink": "hook" } },
    })
    .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_backlog_of_a_route_delays_another_by_one_reply() {
    let _alone = alone().await;
    let redis = RedisServer::start().await;
    let (endpoint, arrivals) = slow_endpoint();
    // A message that has waited for a second is returned unsent.
    let punctual = Punctual::start(&configuration(&redis, &endpoint, "", "2s")).await;
    let client = Client::of(&punctual);
    judge(&client, &arrivals, ("backlog", "other")).await;
    let page = client.call("GET", "/metrics", "").await.text;
    let value = |series: &str| {
        let line = page.lines().find(|line| line.starts_with(series)).unwrap_or_else(|| panic!("{series}: {page}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    for kind in ["failed", "throttled", "unavailable"] {
        let failures =
            value(&format!("punctual_delivery_failures_total{{route=\"backlog\",sink=\"hook\",kind=\"{kind}\"}}"));
        assert!(failures == 0.0, "{kind}: {page}");
    }
    let unsent = value("punctual_sink_attempts_total{sink=\"hook\",outcome=\"unsent\"}");
    let released = value("punctual_messages_released_total{route=\"backlog\"}");
    println!("{unsent} unsent, {released} released");
    assert!((1.0..=MOST_UNSENT).contains(&unsent), "{unsent} unsent");
    let stats = client.stats("backlog").await;
    let overdue = stats["oldest_overdue_seconds"].as_f64().expect("a number");
    assert!(overdue >= 2.0, "the oldest is due for longer than that: {stats}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_claimed_and_returned_unsent_is_overdue_also_while_it_is_claimed() {
    let redis = RedisServer::start().await;
    let receiver = Receiver::start();
    receiver.behave(Behaviour::Delay(Duration::from_millis(2500)));
    let configuration = json!({
        "redis": { "url": redis.url() },
        "sinks": { "hook": { "type": "http", "url": receiver.url(), "timeout": "3s", "max_connections": 1 } },
        "routes": { "sent": { "sink": "hook" }, "waits": { "sink": "hook" } },
    });
    let punctual = Punctual::start(&configuration.to_string()).await;
    let client = Client::of(&punctual);
    client.schedule("sent", r#"{"id":"a","payload":1}"#).await;
    receiver.wait_for(1, Duration::from_secs(2)).await;
    client.schedule("waits", r#"{"id":"b","payload":1}"#).await;
    let overdue = |stats: &Value| stats["oldest_overdue_seconds"].as_f64().expect("a number");
    // It is returned when the connection is free, because less than half of the timeout is left.
    let claimed = eventually("it is claimed again", Duration::from_secs(10), async || {
        let stats = client.stats("waits").await;
        (stats["unack"] == 1 && overdue(&stats) > 1.5).then_some(stats)
    })
    .await;
    assert_eq!((&claimed["pending"], &claimed["due"]), (&0.into(), &0.into()), "{claimed}");
    sleep(Duration::from_secs(1)).await;
    let later = client.stats("waits").await;
    assert_eq!(later["oldest_overdue_seconds"], claimed["oldest_overdue_seconds"], "not the time in the sink: {later}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_backlog_of_a_path_delays_another_by_one_reply() {
    let _alone = alone().await;
    let redis = RedisServer::start().await;
    let (endpoint, arrivals) = slow_endpoint();
    let punctual = Punctual::start(&configuration(&redis, &endpoint, "{header:tenant}", "10s")).await;
    judge(&Client::of(&punctual), &arrivals, ("backlog", "backlog")).await;
}
