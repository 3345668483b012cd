use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use clap::Args;
use hyper::Method;
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::Instant};

use crate::{Result, http::Connection, lateness, message};

#[derive(Args)]
pub struct Options {
    /// http://host:port
    #[arg(long)]
    url: String,
    #[arg(long)]
    count: usize,
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Bytes of a payload
    #[arg(long, default_value_t = 100)]
    size: usize,
}

/// Each connection sends its next request after the reply. Requests have the headers that punctual sends.
pub async fn run(options: &Options) -> Result<Value> {
    let mut connections = Vec::new();
    for _ in 0..options.connections {
        connections.push(Connection::open(&options.url).await?);
    }
    let due = lateness::now() / 1000;
    let body = Bytes::from(message::payload(0, due, options.size));
    let sent = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for mut connection in connections {
        let (body, sent, count) = (body.clone(), sent.clone(), options.count);
        tasks.spawn(async move {
            let due = due.to_string();
            loop {
                let number = sent.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Result::Ok(());
                }
                let id = message::id(number);
                let headers = [
                    ("content-type", "application/json"),
                    ("punctual-id", &*id),
                    ("punctual-route", "r0"),
                    ("punctual-attempt", "1"),
                    ("punctual-due", &*due),
                ];
                connection.send(Method::POST, "/", &headers, body.clone()).await?;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let seconds = started.elapsed().as_secs_f64();
    Ok(json!({ "count": options.count, "seconds": seconds, "rate": options.count as f64 / seconds }))
}
