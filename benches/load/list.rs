use clap::Args;
use serde_json::{Value, json};

use crate::{Result, lateness, message, usage};

/// Elements that one command pops.
const BATCH: usize = 1000;

#[derive(Args)]
pub struct Options {
    #[arg(long)]
    redis: String,
    /// Elements to read
    #[arg(long)]
    count: usize,
}

/// Reads the list `due`. The arrival time of an element is Redis' time after the pop: TIME follows in the same
/// pipeline.
pub async fn run(options: &Options) -> Result<Value> {
    type Popped = Option<(String, Vec<Vec<u8>>)>;
    let mut redis = usage::connect(&options.redis).await?;
    let mut pipeline = redis::pipe();
    pipeline.cmd("BLMPOP").arg(0).arg(1).arg("due").arg("LEFT").arg("COUNT").arg(BATCH).cmd("TIME");
    let (mut micros, mut calls) = (Vec::with_capacity(options.count), 0);
    let (mut first, mut last) = (None, 0);
    while micros.len() < options.count {
        let (popped, (seconds, fraction)): (Popped, (u64, u64)) = pipeline.query_async(&mut redis).await?;
        last = seconds * 1_000_000 + fraction;
        first.get_or_insert(last);
        calls += 1;
        for element in popped.into_iter().flat_map(|(_, elements)| elements) {
            let due = message::due(&element).ok_or("an element without a due time")?;
            micros.push(last.cast_signed() - (due * 1000).cast_signed());
        }
    }
    let mut measured = lateness::summary(micros);
    measured["rate"] = json!(options.count as f64 * 1e6 / (last - first.unwrap_or(last)).max(1) as f64);
    measured["calls"] = json!(calls);
    Ok(measured)
}
