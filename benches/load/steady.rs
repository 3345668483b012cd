use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    Result, drain, lateness,
    usage::{self, Usage},
};

/// Interval of queue checks once all messages are due.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Args)]
pub struct Options {
    #[arg(long)]
    redis: String,
    /// Process id of punctual
    #[arg(long)]
    pid: u32,
    #[arg(long, default_value_t = 1)]
    routes: usize,
    /// When the first message is due, ms since 1970
    #[arg(long)]
    base: u64,
    /// Time over which messages become due, ms
    #[arg(long)]
    spread: u64,
}

/// Measures CPU while messages become due, in percent of one core, and script calls per message. All messages must be
/// scheduled.
pub async fn run(options: &Options) -> Result<Value> {
    let mut redis = usage::connect(&options.redis).await?;
    let partitions: Vec<String> = (0..options.routes).map(|route| drain::tag(route, 0, 1)).collect();
    let count = drain::left(&mut redis, &partitions).await?;
    until(options.base).await;
    let before = Usage::read(&mut redis, Some(options.pid)).await?;
    until(options.base + options.spread).await;
    let used = Usage::read(&mut redis, Some(options.pid)).await?.since(before);
    while drain::left(&mut redis, &partitions).await? > 0 {
        sleep(PAUSE).await;
    }
    let percent = |seconds: f64| seconds * 1e5 / options.spread as f64;
    Ok(json!({
        "count": count, "scripts": used.scripts as f64 / count as f64,
        "redis_percent": percent(used.redis), "process_percent": percent(used.process),
    }))
}

async fn until(millis: u64) {
    sleep(Duration::from_micros((millis * 1000).saturating_sub(lateness::now()))).await;
}
