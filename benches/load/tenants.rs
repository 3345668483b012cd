//! One tenant with many messages that are due at once, beside others with few: how late the messages of the others are,
//! and how many of the first leave each second.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use bytes::Bytes;
use clap::Args;
use hyper::Method;
use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    Result,
    http::Connection,
    lateness,
    usage::{self, Usage},
};

/// Messages of an array: the maximum of the API.
const ARRAY: usize = 1000;
/// Elements that one command pops.
const BATCH: usize = 1000;
/// Time in ms for the last messages of the other tenants.
const LAST: u64 = 500;
/// Intervals in seconds over which the rate of the big tenant is checked.
const INTERVAL: usize = 10;

#[derive(Args)]
pub struct Options {
    /// http://host:port of the API
    #[arg(long)]
    api: String,
    #[arg(long)]
    redis: String,
    /// Process id of punctual
    #[arg(long)]
    pid: u32,
    /// Messages of the big tenant
    #[arg(long)]
    big: usize,
    /// Other tenants
    #[arg(long, default_value_t = 100)]
    others: usize,
    /// Messages per second of each of the others
    #[arg(long, default_value_t = 10)]
    each: usize,
    /// Time in s over which their messages become due
    #[arg(long)]
    seconds: usize,
    /// When the messages of the big tenant are due, ms from now
    #[arg(long)]
    wait: u64,
    /// Rate of a flow in messages per second, and its burst: those of the configuration
    #[arg(long, default_value_t = 100)]
    rate: u64,
    #[arg(long, default_value_t = 20)]
    burst: u64,
}

/// Schedules all messages on route r0, then reads the list `due` until those of the others have arrived.
pub async fn run(options: &Options) -> Result<Value> {
    let base = lateness::now() / 1000 + options.wait;
    let mut api = Connection::open(&options.api).await?;
    for body in arrays(options, base) {
        api.send(Method::POST, "/v1/routes/r0/messages", &[("content-type", "application/json")], body).await?;
    }
    if lateness::now() / 1000 >= base {
        return Err("messages were due before all were scheduled: wait longer".into());
    }
    let mut redis = usage::connect(&options.redis).await?;
    let before = Usage::read(&mut redis, Some(options.pid)).await?;
    let end = base + options.seconds as u64 * 1000 + LAST;
    let mut seen = Seen::default();
    let sampled = tokio::spawn(redis_by_second(options.redis.clone(), base, options.seconds));
    seen.read(options, &mut redis, base, end).await?;
    let used = Usage::read(&mut redis, Some(options.pid)).await?.since(before);
    let percent = |seconds: f64| seconds * 1e5 / (end - base) as f64;
    let mut measured = seen.judge(options, base);
    measured["redis_percent"] = json!(percent(used.redis));
    measured["process_percent"] = json!(percent(used.process));
    let mut seconds = sampled.await??;
    measured["redis_by_second"] = json!(seconds);
    seconds.sort_by(f64::total_cmp);
    measured["redis_median"] = json!(seconds.get(seconds.len() / 2));
    Ok(measured)
}

/// CPU of Redis in each second, in percent of a core.
async fn redis_by_second(url: String, base: u64, seconds: usize) -> Result<Vec<f64>> {
    let mut redis = usage::connect(&url).await?;
    let (mut percent, mut before) = (Vec::new(), None);
    for second in 0..=seconds as u64 {
        sleep(Duration::from_millis((base + second * 1000).saturating_sub(lateness::now() / 1000))).await;
        let (now, used) = (lateness::now() as f64 / 1e6, Usage::read(&mut redis, None).await?.redis);
        if let Some((at, earlier)) = before.replace((now, used)) {
            percent.push((100.0 * (used - earlier) / (now - at)).round());
        }
    }
    Ok(percent)
}

/// Bodies of the requests. The payload is the tenant, 0 for the big one, and the due time.
fn arrays(options: &Options, base: u64) -> Vec<Bytes> {
    let small = options.others * options.each * options.seconds;
    let of_others = (0..small).map(|n| {
        // Evenly, and the tenants take turns.
        (1 + n % options.others, base + n as u64 * 1000 / (options.others * options.each) as u64)
    });
    let all: Vec<(usize, u64)> = std::iter::repeat_n((0, base), options.big).chain(of_others).collect();
    let bodies = all.chunks(ARRAY).map(|chunk| {
        let message = |(tenant, due): &(usize, u64)| {
            format!(r#"{{"flow":"tenant:{tenant}","deliver_at":{due},"payload":[{tenant},{due}]}}"#)
        };
        Bytes::from(format!("[{}]", chunk.iter().map(message).collect::<Vec<_>>().join(",")))
    });
    bodies.collect()
}

#[derive(Default)]
struct Seen {
    /// Arrivals at the big tenant, us since 1970.
    big: Vec<u64>,
    /// Lateness of the others in us, by the second in which the message was due.
    others: BTreeMap<u64, Vec<i64>>,
}

impl Seen {
    /// The arrival time of an element is Redis' time after the pop: TIME follows in the same pipeline.
    async fn read(&mut self, options: &Options, redis: &mut MultiplexedConnection, base: u64, end: u64) -> Result<()> {
        type Popped = Option<(String, Vec<Vec<u8>>)>;
        let mut pipeline = redis::pipe();
        pipeline.cmd("BLMPOP").arg(1).arg(1).arg("due").arg("LEFT").arg("COUNT").arg(BATCH).cmd("TIME");
        let mut left = options.others * options.each * options.seconds;
        loop {
            let (popped, (seconds, fraction)): (Popped, (u64, u64)) = pipeline.query_async(redis).await?;
            let now = seconds * 1_000_000 + fraction;
            for element in popped.into_iter().flat_map(|(_, elements)| elements) {
                let (tenant, due): (u64, u64) = serde_json::from_slice(&element)?;
                if tenant == 0 {
                    self.big.push(now);
                } else {
                    left -= 1;
                    let late = now.cast_signed() - (due * 1000).cast_signed();
                    self.others.entry((due - base) / 1000).or_default().push(late);
                }
            }
            if now >= end * 1000 && left == 0 {
                return Ok(());
            }
        }
    }

    fn judge(&self, options: &Options, base: u64) -> Value {
        let mut measured = lateness::summary(self.others.values().flatten().copied().collect());
        let seconds: Vec<usize> = (0..options.seconds).map(|second| self.within(base, second..second + 1)).collect();
        // In the first interval the burst leaves too.
        let intervals = (1..options.seconds / INTERVAL).map(|n| n * INTERVAL..(n + 1) * INTERVAL);
        let rates: Vec<f64> = intervals.map(|of| self.within(base, of) as f64 / INTERVAL as f64).collect();
        measured["rate_min"] = json!(rates.iter().copied().reduce(f64::min));
        measured["rate_max"] = json!(rates.iter().copied().reduce(f64::max));
        measured["over"] = json!(self.over(options));
        measured["big"] = json!(seconds);
        measured["late"] = json!(
            self.others.values().map(|late| lateness::summary(late.clone())["p99_ms"].clone()).collect::<Vec<_>>()
        );
        measured
    }

    /// Arrivals at the big tenant in these seconds.
    fn within(&self, base: u64, seconds: Range<usize>) -> usize {
        let at = |second: usize| (base + second as u64 * 1000) * 1000;
        let range = at(seconds.start)..at(seconds.end);
        self.big.iter().filter(|arrived| range.contains(arrived)).count()
    }

    /// Number of messages by which the arrivals of an interval exceed `burst` + `rate` x its length, at most; at least 0.
    fn over(&self, options: &Options) -> f64 {
        let rate = options.rate as f64 / 1e6;
        // Arrivals before this one, less what the rate allows: its minimum is where the worst interval begins.
        let (mut lowest, mut worst) = (f64::INFINITY, 0.0_f64);
        for (n, at) in self.big.iter().enumerate() {
            let ahead = n as f64 - rate * (at - self.big[0]) as f64;
            lowest = lowest.min(ahead);
            worst = worst.max(ahead + 1.0 - lowest - options.burst as f64);
        }
        worst
    }
}
