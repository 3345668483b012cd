//! Metrics that a dashboard and its alerts see.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{client::Client, eventually};
use crate::support::{
    RedisServer,
    punctual::Punctual,
    receiver::{Behaviour, Receiver},
};

#[tokio::test(flavor = "multi_thread")]
async fn every_counter_is_there_from_the_start_and_at_0() {
    let (mut redis, receiver) = (RedisServer::start().await, Receiver::start());
    redis.kill();
    let punctual = Punctual::spawn(
        &format!(
            "redis: {{ url: '{}' }}\nsinks: {{ hook: {{ type: http, url: '{}' }} }}\nroutes: {{ web: {{ sink: hook }} }}\n",
            redis.url(),
            receiver.url()
        ),
        &[],
    );
    let client = Client::of(&punctual);
    eventually("it answers", Duration::from_secs(10), async || client.try_post("web", String::new()).await).await;
    let page = client.call("GET", "/metrics", "").await.text;
    let mut expected: Vec<String> = Vec::new();
    let mut series = |name: &str, labels: &[&str]| expected.push(format!("punctual_{name}{{{}}} 0", labels.join(",")));
    let route = "route=\"web\"";
    series("messages_scheduled_total", &[route, "via=\"api\""]);
    series("messages_delivered_total", &[route, "sink=\"hook\""]);
    for name in ["retried", "cancelled", "redriven", "purged", "released"] {
        series(&format!("messages_{name}_total"), &[route]);
    }
    for reason in ["rejected", "attempts", "expired", "crash", "orphan", "undecodable"] {
        series("messages_dead_total", &[route, &format!("reason=\"{reason}\"")]);
    }
    for kind in ["failed", "throttled", "rejected", "unavailable"] {
        series("delivery_failures_total", &[route, "sink=\"hook\"", &format!("kind=\"{kind}\"")]);
    }
    series("leases_expired_total", &[route]);
    for op in ["ack", "retry", "bury", "release", "transfer"] {
        series("stale_settlements_total", &[route, &format!("op=\"{op}\"")]);
    }
    for reason in ["timer", "notify", "fallback", "resubscribe"] {
        series("wakeups_total", &[&format!("reason=\"{reason}\"")]);
    }
    for kind in ["timeout", "connect", "auth", "busy", "noperm", "oom", "readonly", "other", "emptied"] {
        series("redis_errors_total", &[&format!("kind=\"{kind}\"")]);
    }
    series("sink_breaker_state", &["sink=\"hook\""]);
    series("in_flight_messages", &[route]);
    for line in expected {
        // So far only connects to Redis failed.
        let counted_already = line.contains("kind=\"connect\"") || line.contains("kind=\"timeout\"");
        let found =
            page.lines().any(|one| one == line || (counted_already && one.starts_with(&line[..line.len() - 1])));
        assert!(found, "{line} is missing in:\n{page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_breaker_of_a_sink_that_hangs_is_never_shown_as_closed() {
    const WATCHED: Duration = Duration::from_secs(5);
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let punctual = Punctual::start(&format!(
        "redis: {{ url: '{}' }}\nsinks: {{ hook: {{ type: http, url: '{}', timeout: 1500ms }} }}\n\
         routes: {{ web: {{ sink: hook, lease: 3s, retry: {{ initial: 100ms }} }} }}\n",
        redis.url(),
        receiver.url()
    ))
    .await;
    let client = Client::of(&punctual);
    receiver.behave(Behaviour::Hang);
    let messages: Vec<String> = (0..20).map(|n| format!(r#"{{"id":"m{n}","payload":""}}"#)).collect();
    client.schedule("web", &format!("[{}]", messages.join(","))).await;
    let state = async || client.metrics().await.sum("punctual_sink_breaker_state", &["sink=\"hook\""]);
    eventually("the breaker is open", Duration::from_secs(5), async || (state().await > 0).then_some(())).await;
    let (watching, mut seen) = (Instant::now(), [0; 3]);
    while watching.elapsed() < WATCHED {
        seen[usize::try_from(state().await).unwrap()] += 1;
        sleep(Duration::from_millis(50)).await;
    }
    println!("watching: closed, half-open, open were seen {seen:?} times");
    assert_eq!(seen[0], 0);
    assert!(seen[1] > seen[2], "a probe hangs nearly all the time: {seen:?}");
    assert_ne!(client.sink("hook").await["breaker"], "closed");
}
