//! Helpers of tests in which a source is replaced by a reload while messages flow into it.

use std::{collections::BTreeMap, fs, time::Duration};

use redis::AsyncCommands;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::support::{RedisServer, answer, http, punctual::Punctual};

const MAX_WAIT: Duration = Duration::from_mins(1);

/// Messages that flow, and the number between two reloads.
pub const COUNT: usize = 3000;
pub const STEP: usize = 500;

/// From a source into the list `jobs` of its Redis.
pub fn configuration(redis: &RedisServer, source: &Value) -> Value {
    json!({
        "redis": { "url": redis.url() },
        "sinks": { "jobs": { "type": "redis_list", "key": "jobs" } },
        "routes": { "jobs": { "sink": "jobs" } },
        "sources": { "in": source },
    })
}

/// Replaces the source.
pub async fn reload(punctual: &Punctual, configuration: &Value) {
    fs::write(punctual.path("punctual.yaml"), configuration.to_string()).expect("the configuration is written");
    let reloaded = answer(http::client().post(punctual.url("/v1/reload"))).await;
    assert_eq!((reloaded.status, &reloaded.json["replaced"]), (200, &json!(["sources.in"])), "{}", reloaded.text);
}

/// Waits until the list `jobs` has each number. Returns how often each is there.
pub async fn arrived(redis: &RedisServer) -> BTreeMap<usize, usize> {
    let deadline = Instant::now() + MAX_WAIT;
    loop {
        let jobs: Vec<String> = redis.connection().await.lrange("jobs", 0, -1).await.expect("a list");
        let mut counts = BTreeMap::new();
        for job in &jobs {
            *counts.entry(job.parse().expect("a number")).or_default() += 1;
        }
        if counts.len() == COUNT {
            return counts;
        }
        assert!(Instant::now() < deadline, "{} of {COUNT} arrived", counts.len());
        sleep(Duration::from_millis(50)).await;
    }
}
