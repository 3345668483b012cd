use std::sync::{Arc, Mutex};

use bytes::Bytes;
use clap::Args;
use hyper::Method;
use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::Instant};

use crate::{
    Result,
    http::Connection,
    lateness, message,
    usage::{self, Usage},
};

/// Messages of an array: the maximum of the API.
const ARRAY: usize = 1000;

#[derive(Args)]
pub struct Options {
    /// http://host:port of the API
    #[arg(long)]
    api: String,
    /// Number of routes r0, r1, ..., which take turns
    #[arg(long, default_value_t = 1)]
    routes: usize,
    /// URL of punctual's Redis; without it, Redis is not measured
    #[arg(long)]
    redis: Option<String>,
    #[arg(long)]
    count: usize,
    /// Number of the first message, from which its id is made
    #[arg(long, default_value_t = 0)]
    first: usize,
    /// Bytes of a payload
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// Concurrent requests, each on its own connection
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// When the first message is due, ms from now
    #[arg(long, default_value_t = 0)]
    wait: u64,
    /// Time over which messages become due, ms, evenly
    #[arg(long, default_value_t = 0)]
    spread: u64,
    /// Number of flows, which take turns; 0: the messages have none
    #[arg(long, default_value_t = 0)]
    flows: usize,
}

/// Schedules the messages. `base` in the output: when the first message is due, ms since 1970. Fails if that is before
/// all are scheduled.
pub async fn run(options: Options) -> Result<Value> {
    let base = lateness::now() / 1000 + options.wait;
    let arrays = Arc::new(Mutex::new(arrays(&options, base).into_iter()));
    let mut connections = Vec::new();
    for _ in 0..options.connections {
        connections.push(Connection::open(&options.api).await?);
    }
    let mut redis = match &options.redis {
        Some(url) => Some(usage::connect(url).await?),
        None => None,
    };
    let before = read(redis.as_mut()).await?;
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for mut connection in connections {
        let arrays = arrays.clone();
        tasks.spawn(async move {
            loop {
                let next = arrays.lock().expect("no thread panicked").next();
                let Some((path, body)) = next else { return Result::Ok(()) };
                connection.send(Method::POST, &path, &[("content-type", "application/json")], body).await?;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let seconds = started.elapsed().as_secs_f64();
    if options.wait > 0 && lateness::now() / 1000 >= base {
        return Err("messages were due before all were scheduled: wait longer".into());
    }
    let used = read(redis.as_mut()).await?.since(before);
    let count = options.count as f64;
    Ok(json!({
        "count": options.count, "seconds": seconds, "rate": count / seconds, "base": base,
        "redis_us": redis.map(|_| used.redis * 1e6 / count), "load_cores": used.process / seconds,
    }))
}

/// Usage of Redis, if its URL is known, and of this process.
async fn read(redis: Option<&mut MultiplexedConnection>) -> Result<Usage> {
    let own = std::process::id();
    match redis {
        Some(redis) => Usage::read(redis, Some(own)).await,
        None => Ok(Usage { redis: 0.0, process: usage::of_process(own)?, scripts: 0 }),
    }
}

/// Path and body of each request.
fn arrays(options: &Options, base: u64) -> Vec<(String, Bytes)> {
    let mut arrays = Vec::new();
    for route in 0..options.routes {
        let numbers: Vec<usize> = (route..options.count).step_by(options.routes).collect();
        for numbers in numbers.chunks(ARRAY) {
            let messages = numbers.iter().map(|number| {
                let due = base + options.spread * *number as u64 / options.count as u64;
                let number = options.first + number;
                let (id, payload) = (message::id(number), message::payload(number, due, options.size));
                let flow = match options.flows {
                    0 => String::new(),
                    flows => format!(r#""flow":"tenant:{}","#, number % flows),
                };
                format!(r#"{{"id":"{id}",{flow}"deliver_at":{due},"payload":{payload}}}"#)
            });
            let body = format!("[{}]", messages.collect::<Vec<_>>().join(","));
            arrays.push((format!("/v1/routes/r{route}/messages"), body.into()));
        }
    }
    arrays
}
