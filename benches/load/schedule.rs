use std::sync::{Arc, Mutex};

use bytes::Bytes;
use clap::Args;
use hyper::Method;
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::Instant};

use crate::{Result, http::Connection, lateness, message, usage};

/// Messages of an array; the API takes as many at most.
const ARRAY: usize = 1000;

#[derive(Args)]
pub struct Options {
    /// http://host:port of the API
    #[arg(long)]
    api: String,
    /// Routes r0, r1, ..., which take turns
    #[arg(long, default_value_t = 1)]
    routes: usize,
    #[arg(long)]
    count: usize,
    /// Bytes of a payload
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// Requests at once, each on its own connection
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// When the first message is due, ms from now
    #[arg(long, default_value_t = 0)]
    wait: u64,
    /// Over how many ms they are due, evenly
    #[arg(long, default_value_t = 0)]
    spread: u64,
}

/// `base` is when the first message is due, ms since 1970. Fails if that comes before all are scheduled.
pub async fn run(options: Options) -> Result<Value> {
    let base = lateness::now() / 1000 + options.wait;
    let arrays = Arc::new(Mutex::new(arrays(&options, base).into_iter()));
    let mut connections = Vec::new();
    for _ in 0..options.connections {
        connections.push(Connection::open(&options.api).await?);
    }
    let cpu = usage::of_process(std::process::id())?;
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
    let cpu = usage::of_process(std::process::id())? - cpu;
    let rate = options.count as f64 / seconds;
    Ok(json!({ "count": options.count, "seconds": seconds, "rate": rate, "base": base, "load_cores": cpu / seconds }))
}

/// Path and body of each request.
fn arrays(options: &Options, base: u64) -> Vec<(String, Bytes)> {
    let mut arrays = Vec::new();
    for route in 0..options.routes {
        let numbers: Vec<usize> = (route..options.count).step_by(options.routes).collect();
        for numbers in numbers.chunks(ARRAY) {
            let messages = numbers.iter().map(|number| {
                let due = base + options.spread * *number as u64 / options.count as u64;
                let (id, payload) = (message::id(*number), message::payload(*number, due, options.size));
                format!(r#"{{"id":"{id}","deliver_at":{due},"payload":{payload}}}"#)
            });
            let body = format!("[{}]", messages.collect::<Vec<_>>().join(","));
            arrays.push((format!("/v1/routes/r{route}/messages"), body.into()));
        }
    }
    arrays
}
