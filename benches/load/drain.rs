use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use hyper::Method;
use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    Result,
    http::Connection,
    usage::{self, Usage},
};

/// Interval of queue checks: less than one percent of a drain.
const PAUSE: Duration = Duration::from_millis(5);
/// Interval of queue checks over the API, which makes a script call for each partition.
const PAUSE_BY_API: Duration = Duration::from_millis(20);

#[derive(Args)]
pub struct Options {
    /// http://host:port of the API
    #[arg(long)]
    api: String,
    /// URL of Redis; of a cluster, one for each primary
    #[arg(long, required = true)]
    redis: Vec<String>,
    /// Process id of punctual
    #[arg(long)]
    pid: u32,
    /// Partitions of route r0
    #[arg(long, default_value_t = 1)]
    partitions: usize,
    /// Number of messages that are not due
    #[arg(long, default_value_t = 0)]
    keep: u64,
}

/// Resumes route r0, which must be paused, and waits until its messages are delivered. All but `keep` must be due.
pub async fn run(options: &Options) -> Result<Value> {
    let mut servers = Vec::new();
    for url in &options.redis {
        servers.push(usage::connect(url).await?);
    }
    let mut api = Connection::open(&options.api).await?;
    let mut stats = Connection::open(&options.api).await?;
    let partitions: Vec<String> = (0..options.partitions).map(|index| tag(0, index, options.partitions)).collect();
    let mut left = async |servers: &mut [MultiplexedConnection]| match servers {
        [server] => left(server, &partitions).await,
        _ => left_by_api(&mut stats).await,
    };
    let pause = if servers.len() == 1 { PAUSE } else { PAUSE_BY_API };
    let count = left(&mut servers).await?.checked_sub(options.keep).ok_or("fewer messages than --keep")?;
    usage::reset_peak(options.pid)?;
    let before = Usage::of_all(&mut servers, options.pid).await?;
    let started = Instant::now();
    api.send(Method::POST, "/v1/routes/r0/resume", &[], Bytes::new()).await?;
    while left(&mut servers).await? > options.keep {
        sleep(pause).await;
    }
    let seconds = started.elapsed().as_secs_f64();
    let used = Usage::of_all(&mut servers, options.pid).await?.since(before);
    let each = |total: f64| total / count as f64;
    Ok(json!({
        "count": count, "seconds": seconds, "rate": count as f64 / seconds,
        "redis_us": each(used.redis * 1e6), "process_us": each(used.process * 1e6), "scripts": each(used.scripts as f64),
        "peak_mib": usage::peak(options.pid)?,
    }))
}

/// Hash tag of the keys of a partition.
pub fn tag(route: usize, index: usize, partitions: usize) -> String {
    format!("{{punctual:r{route}:{index}/{partitions}}}")
}

/// Number of undelivered messages in the partitions with these tags.
pub async fn left(redis: &mut MultiplexedConnection, tags: &[String]) -> Result<u64> {
    let mut pipeline = redis::pipe();
    for tag in tags {
        for set in ["pending", "unack"] {
            pipeline.cmd("ZCARD").arg(format!("{tag}:{set}"));
        }
    }
    let counts: Vec<u64> = pipeline.query_async(redis).await?;
    Ok(counts.into_iter().sum())
}

async fn left_by_api(api: &mut Connection) -> Result<u64> {
    let body = api.send(Method::GET, "/v1/routes/r0", &[], Bytes::new()).await?;
    let stats: Value = serde_json::from_slice(&body)?;
    Ok(stats["pending"].as_u64().ok_or("no number")? + stats["unack"].as_u64().ok_or("no number")?)
}
