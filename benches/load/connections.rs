use std::time::Duration;

use clap::Args;
use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    Result,
    usage::{self, Usage},
};

#[derive(Args)]
pub struct Options {
    #[arg(long)]
    redis: String,
    #[arg(long, default_value_t = 1000)]
    count: usize,
    /// Seconds for which the connections stay idle; Redis is measured as long before, without them
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

/// Per connection: CPU microseconds of Redis to open it, bytes, and CPU microseconds a second while it is idle.
pub async fn run(options: &Options) -> Result<Value> {
    let mut redis = usage::connect(&options.redis).await?;
    let without = idle(&mut redis, options.seconds).await?;
    let (memory, before) = (memory(&mut redis).await?, Usage::read(&mut redis, None).await?);
    let mut connections = Vec::with_capacity(options.count);
    for _ in 0..options.count {
        connections.push(usage::connect(&options.redis).await?);
    }
    let opened = Usage::read(&mut redis, None).await?.since(before).redis;
    let with = idle(&mut redis, options.seconds).await?;
    let bytes = self::memory(&mut redis).await? - memory;
    let count = options.count as f64;
    drop(connections);
    Ok(json!({ "open_us": opened * 1e6 / count, "bytes": bytes / count, "idle_us": (with - without) * 1e6 / count }))
}

/// CPU seconds that Redis uses per second.
async fn idle(redis: &mut MultiplexedConnection, seconds: u64) -> Result<f64> {
    let before = Usage::read(redis, None).await?;
    sleep(Duration::from_secs(seconds)).await;
    Ok(Usage::read(redis, None).await?.since(before).redis / seconds as f64)
}

async fn memory(redis: &mut MultiplexedConnection) -> Result<f64> {
    let info: String = redis::cmd("INFO").arg("memory").query_async(redis).await?;
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).ok_or("no used_memory")?;
    Ok(used.trim().parse()?)
}
