//! The whole program as its users run it: the real binary on real servers, and what it promises seen from outside.
//!
//! Numbers that depend on the machine are printed (`cargo test -- --nocapture`) and held to loose bounds.

mod audit;
pub mod client;
pub mod metrics_page;
pub mod partial;
mod payload;
mod rabbitmq_migration;

mod cli;
mod clients;
mod collectors;
mod commands;
mod crash;
mod crowds;
mod deadline;
mod demotion;
mod dev;
mod economy;
mod embedded;
mod endpoints;
mod examples;
mod failover;
mod fair;
mod flow;
mod flows;
mod forwarding;
mod groups;
mod history;
mod idle;
mod lifecycle;
mod limits;
mod listening;
mod log;
mod missed;
mod night;
mod outage;
mod own_sink;
mod poison;
mod readers;
mod redis_outage;
pub mod refusals;
mod reload;
mod removed_routes;
mod repartition;
mod rights;
mod schedule_faults;
mod schedules;
mod secrets;
mod send_test;
mod sharing;
mod stop;
mod suspects;
mod traces;
mod unanswered;
mod upgrade;
mod watching;
mod without_file;

use std::time::Duration;

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, sleep},
};

use crate::support::RedisServer;

/// How many tests with `heavy` run at once.
const HEAVY: u32 = 3;
static MACHINE: Semaphore = Semaphore::const_new(HEAVY as usize);

/// One at a time, beside none that are `heavy`: for tests with much load, or bounds of a few milliseconds. All others wait, so
/// that a test which mostly sleeps is `heavy`.
pub async fn alone() -> SemaphorePermit<'static> {
    MACHINE.acquire_many(HEAVY).await.expect("it is never closed")
}

/// A few at a time: for tests with many servers or some load, and for those with bounds that a few others do not break.
pub async fn heavy() -> SemaphorePermit<'static> {
    MACHINE.acquire().await.expect("it is never closed")
}

/// Polls for what is not announced, and returns it. The longer it takes, the less often: each look costs processor time of other
/// tests.
///
/// # Panics
/// When it has not come about after `max_wait`; `what` is its name.
pub async fn eventually<T>(what: &str, max_wait: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        let waited = started.elapsed();
        assert!(waited < max_wait, "not within {max_wait:?}: {what}");
        sleep((waited / 20).clamp(Duration::from_millis(10), Duration::from_millis(100))).await;
    }
}

/// The value that 99 of 100 do not exceed; 0 of none.
pub fn p99(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get((values.len() * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0)
}

/// Calls of scripts so far.
pub async fn script_calls(redis: &RedisServer) -> usize {
    calls(redis, &["evalsha", "eval"]).await
}

/// Calls of these commands so far.
pub async fn calls(redis: &RedisServer, commands: &[&str]) -> usize {
    let stats: String =
        redis::cmd("INFO").arg("commandstats").query_async(&mut redis.connection().await).await.expect("it answers");
    let calls = |command: &&str| -> usize {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    };
    commands.iter().map(calls).sum()
}
