//! Faults of all servers of Redis: of their clients, their scripts, their rights, their memory and their clock.

use std::time::Duration;

use redis::Cmd;
use tokio::time::{Instant, sleep, timeout};

use super::{
    caused::Faults,
    clock,
    kinds::Kind,
    nemesis::Planned,
    store::{Shape, USER},
    world::World,
};

/// Between two repetitions of a fault that is repeated while it lasts.
const REPEAT: Duration = Duration::from_millis(150);
/// For one server.
const ANSWER: Duration = Duration::from_millis(600);
/// Maximum time until a server that is killed or frozen answers again.
const MAX_DOWN: Duration = Duration::from_mins(1);
/// One of them is taken away.
const RIGHTS: [&str; 16] = [
    "zadd",
    "zrem",
    "hset",
    "hget",
    "hmget",
    "hdel",
    "time",
    "evalsha",
    "eval",
    "rpush",
    "publish",
    "subscribe",
    "wait",
    "info",
    "zrangebyscore",
    "script|load",
];
/// Steps of the clock go up to one of these offsets from the one at the beginning of a round, in milliseconds. Servers of a cluster
/// find each other down by this clock: after a step back of minutes they would replace no primary for as long.
const STEPS: [u64; 4] = [1000, 10_000, 90_000, 300_000];
const STEPS_OF_CLUSTERS: [u64; 2] = [1000, 10_000];

/// Scripts that are forgotten, or clients that are disconnected, again and again.
pub async fn repeat(planned: &Planned, world: &World, faults: &Faults, commands: &[&[&str]]) {
    let Ok(_turn) = world.turn(planned.kind).try_lock() else { return };
    let fault = faults.begin(planned.kind, format!("for {:?}", planned.lasts));
    let end = Instant::now() + planned.lasts;
    let commands: Vec<Cmd> = commands.iter().map(|words| command(words)).collect();
    while Instant::now() < end {
        for port in &world.ports {
            ask(*port, &commands).await;
        }
        sleep(REPEAT).await;
    }
    faults.end(fault);
}

/// A right of the user is missing, or memory is full.
pub async fn to_settings(planned: &Planned, world: &World, faults: &Faults) {
    let Ok(_turn) = world.turn(planned.kind).try_lock() else { return };
    let right = planned.random.clone().pick(&RIGHTS);
    let (words, detail) = match planned.kind {
        Kind::Right => (["ACL", "SETUSER", USER, &format!("-{right}")], right),
        _ => (["CONFIG", "SET", "maxmemory", "1mb"], "maxmemory"),
    };
    let fault = faults.begin(planned.kind, format!("{detail} for {:?}", planned.lasts));
    for port in &world.ports {
        ask(*port, &[command(&words)]).await;
    }
    sleep(planned.lasts).await;
    restore(world, planned.kind).await;
    faults.end(fault);
}

/// Gives back all rights, or all memory, also to servers that do not answer at first.
async fn restore(world: &World, kind: Kind) {
    let words: Vec<String> = match kind {
        Kind::Right => {
            let rights = RIGHTS.iter().map(|right| format!("+{right}"));
            ["ACL", "SETUSER", USER].map(str::to_owned).into_iter().chain(rights).collect()
        }
        _ => ["CONFIG", "SET", "maxmemory", "0"].map(str::to_owned).into(),
    };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let deadline = Instant::now() + MAX_DOWN;
    for port in &world.ports {
        while !ask(*port, &[command(&words)]).await {
            assert!(Instant::now() < deadline, "a server did not answer for {MAX_DOWN:?}");
            sleep(REPEAT).await;
        }
    }
}

/// The offset at the end of a step, in milliseconds.
pub fn offset(planned: &Planned, base: i64, shape: Shape) -> i64 {
    let mut random = planned.random.clone();
    let most = match shape {
        Shape::Sentinels => random.pick(&STEPS),
        Shape::Cluster => random.pick(&STEPS_OF_CLUSTERS),
    };
    let step = i64::try_from(random.between(0, most)).expect("minutes");
    if random.chance(50) { base + step } else { base - step }
}

/// While a primary is replaced, no step goes forwards: replicas would count it as time without their primary, and the sentinels
/// would promote none of them.
pub fn step_clock(planned: &Planned, world: &World, faults: &Faults, base: i64) {
    let (from, to) = (clock::offset(), offset(planned, base, world.shape));
    let replacing = world.redis.try_lock();
    if to > from && replacing.is_err() {
        return;
    }
    let fault = faults.begin(planned.kind, format!("from {from} to {to} ms"));
    world.clock.step(to);
    faults.end(fault);
}

/// Ends what can outlast a fault, after all of them: a frozen server can have obeyed late. The clock goes forwards to where it
/// was in the round: no message waits for longer than its delay.
pub async fn end(plan: &[Planned], world: &World, faults: &Faults) {
    for kind in [Kind::Right, Kind::Memory] {
        if plan.iter().any(|planned| planned.kind == kind) {
            restore(world, kind).await;
        }
    }
    let (from, to) = (clock::offset(), clock::highest_offset());
    if from < to {
        let fault = faults.begin(Kind::Clock, format!("from {from} to {to} ms, in the end"));
        world.clock.step(to);
        faults.end(fault);
    }
}

fn command(words: &[&str]) -> Cmd {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command
}

/// Whether the server did as it was asked.
async fn ask(port: u16, commands: &[Cmd]) -> bool {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}/0")).expect("a valid address");
    let asking = async {
        let mut link = client.get_multiplexed_async_connection().await.ok()?;
        let mut is_done = true;
        for command in commands {
            // A client that is killed may be this one.
            is_done &= command.exec_async(&mut link).await.is_ok();
        }
        Some(is_done)
    };
    timeout(ANSWER, asking).await.ok().flatten().unwrap_or(false)
}
