//! The baseline of Redis' work: as few commands for each batch as a reliable queue needs, and no scheduler.

use clap::Args;
use redis::{Script, aio::MultiplexedConnection};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::Instant};

use crate::{
    Result, lateness, message,
    usage::{self, Usage},
};

/// Keys: pending, messages. Arguments for each message: id, due, body.
const SCHEDULE: &str = r"
local pending, messages = { 'ZADD', KEYS[1] }, { 'HSET', KEYS[2] }
for i = 1, #ARGV, 3 do
  pending[#pending + 1], pending[#pending + 2] = ARGV[i + 1], ARGV[i]
  messages[#messages + 1], messages[#messages + 2] = ARGV[i], ARGV[i + 2]
end
redis.call(unpack(messages))
redis.call(unpack(pending))";

/// Keys: pending, unack, messages. Arguments: now, maximum number of messages. Reply: ids, bodies.
const CLAIM: &str = r"
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #ids == 0 then return { {}, {} } end
local leases = { 'ZADD', KEYS[2] }
for _, id in ipairs(ids) do leases[#leases + 1], leases[#leases + 2] = ARGV[1] + 30000, id end
redis.call('ZREM', KEYS[1], unpack(ids))
redis.call(unpack(leases))
return { ids, redis.call('HMGET', KEYS[3], unpack(ids)) }";

/// Keys: unack, messages, list. Arguments: ids, then their bodies.
const FINISH: &str = r"
local n = #ARGV / 2
redis.call('RPUSH', KEYS[3], unpack(ARGV, n + 1))
redis.call('ZREM', KEYS[1], unpack(ARGV, 1, n))
redis.call('HDEL', KEYS[2], unpack(ARGV, 1, n))";

#[derive(Args)]
pub struct Options {
    #[arg(long)]
    redis: String,
    #[arg(long)]
    count: usize,
    /// Bytes of a payload
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// Messages per script call
    #[arg(long, default_value_t = 500)]
    batch: usize,
    /// Concurrent script calls, on one connection
    #[arg(long, default_value_t = 4)]
    at_once: usize,
}

pub async fn schedule(options: &Options) -> Result<Value> {
    let mut redis = usage::connect(&options.redis).await?;
    let batches = batches(options);
    let before = Usage::read(&mut redis, None).await?;
    let started = Instant::now();
    fill(&redis, batches, options.at_once).await?;
    measured(options, &mut redis, before, started).await
}

/// Schedules due messages, which is not measured, and moves them into the list `due`.
pub async fn drain(options: &Options) -> Result<Value> {
    let mut redis = usage::connect(&options.redis).await?;
    fill(&redis, batches(options), options.at_once).await?;
    let before = Usage::read(&mut redis, None).await?;
    let started = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..options.at_once {
        workers.spawn(work(redis.clone(), options.batch));
    }
    while let Some(ended) = workers.join_next().await {
        ended??;
    }
    measured(options, &mut redis, before, started).await
}

async fn work(mut redis: MultiplexedConnection, batch: usize) -> Result<()> {
    let (claim, finish) = (Script::new(CLAIM), Script::new(FINISH));
    loop {
        let mut call = claim.key(["pending", "unack", "messages"].as_slice());
        call.arg(lateness::now() / 1000).arg(batch);
        let (ids, bodies): (Vec<String>, Vec<bytes::Bytes>) = call.invoke_async(&mut redis).await?;
        if ids.is_empty() {
            return Ok(());
        }
        let mut call = finish.key(["unack", "messages", "due"].as_slice());
        for id in ids {
            call.arg(id);
        }
        for body in bodies {
            call.arg(&body[..]);
        }
        let () = call.invoke_async(&mut redis).await?;
    }
}

/// Arguments of `SCHEDULE`.
fn batches(options: &Options) -> Vec<Vec<String>> {
    let due = lateness::now() / 1000;
    let numbers: Vec<usize> = (0..options.count).collect();
    let of = |number: &usize| [message::id(*number), due.to_string(), message::payload(*number, due, options.size)];
    numbers.chunks(options.batch).map(|numbers| numbers.iter().flat_map(of).collect()).collect()
}

async fn fill(redis: &MultiplexedConnection, batches: Vec<Vec<String>>, at_once: usize) -> Result<()> {
    let mut tasks = JoinSet::new();
    for batch in batches {
        if tasks.len() == at_once
            && let Some(ended) = tasks.join_next().await
        {
            ended??;
        }
        let mut redis = redis.clone();
        tasks.spawn(async move {
            let script = Script::new(SCHEDULE);
            let mut call = script.key(["pending", "messages"].as_slice());
            for argument in &batch {
                call.arg(argument);
            }
            let () = call.invoke_async(&mut redis).await?;
            Result::Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

async fn measured(
    options: &Options,
    redis: &mut MultiplexedConnection,
    before: Usage,
    started: Instant,
) -> Result<Value> {
    let seconds = started.elapsed().as_secs_f64();
    let used = Usage::read(redis, None).await?.since(before);
    let count = options.count as f64;
    Ok(json!({
        "count": options.count, "seconds": seconds, "rate": count / seconds,
        "redis_us": used.redis * 1e6 / count, "scripts": used.scripts as f64 / count,
    }))
}
