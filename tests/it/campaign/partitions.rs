//! Watches the keys of the queue in Redis: each message is in one set and has a body, and `bytes` is the sum of the sizes of those that
//! wait or are in flight.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::{RedisResult, Value};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::world::World;
use crate::support::receiver::wall_clock;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(500);
/// A frozen server does not answer.
const ANSWER: Duration = Duration::from_secs(2);
/// Breaches that are kept.
const MAX_FOUND: usize = 3;
/// Reads all keys at one moment. The reply is a sentence about the first breach, or empty.
const SCRIPT: &str = "
    local places, bytes, number = {}, 0, 0
    for at, name in ipairs({ 'pending', 'unack', 'dead' }) do
        for _, id in ipairs(redis.call('ZRANGE', KEYS[at], 0, -1)) do
            if places[id] then return id .. ' is in ' .. places[id] .. ' and in ' .. name end
            local size = redis.call('HSTRLEN', KEYS[4], id)
            if size == 0 then return id .. ' is in ' .. name .. ' and has no body' end
            places[id], number = name, number + 1
            if name ~= 'dead' then bytes = bytes + size end
        end
    end
    local bodies = redis.call('HLEN', KEYS[4])
    if bodies ~= number then return bodies .. ' bodies of ' .. number .. ' messages' end
    local counted = tonumber(redis.call('GET', KEYS[5]) or '0')
    if counted ~= bytes then return 'bytes is ' .. counted .. ', the bodies have ' .. bytes end
    return ''
";
const NAMES: [&str; 5] = ["pending", "unack", "dead", "messages", "bytes"];

#[derive(Default)]
struct Found {
    looks: usize,
    breaches: Vec<String>,
}

pub struct Watch {
    found: Arc<Mutex<Found>>,
    watching: JoinHandle<()>,
}

impl Watch {
    pub fn start(world: &Arc<World>) -> Self {
        let found: Arc<Mutex<Found>> = Arc::default();
        let (shared, world) = (Arc::clone(&found), Arc::clone(world));
        let watching = tokio::spawn(async move {
            loop {
                for port in &world.ports {
                    let looked = timeout(ANSWER, look(*port)).await;
                    let Ok(Ok((looks, breaches))) = looked else { continue };
                    let mut found = shared.lock().expect("no panic under this lock");
                    found.looks += looks;
                    let free = MAX_FOUND.saturating_sub(found.breaches.len());
                    found.breaches.extend(breaches.into_iter().take(free));
                }
                sleep(PAUSE).await;
            }
        });
        Self { found, watching }
    }

    /// The number of partitions that were looked at, and breaches.
    pub fn finish(self) -> (usize, Vec<String>) {
        self.watching.abort();
        let found = std::mem::take(&mut *self.found.lock().expect("no panic under this lock"));
        (found.looks, found.breaches)
    }
}

/// Looks at all partitions of a primary, also of one that was replaced and does not know it.
async fn look(port: u16) -> RedisResult<(usize, Vec<String>)> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}/0"))?;
    let mut link = client.get_multiplexed_async_connection().await?;
    let role: Vec<Value> = redis::cmd("ROLE").query_async(&mut link).await?;
    if role.first() != Some(&Value::BulkString(b"master".to_vec())) {
        return Ok((0, Vec::new()));
    }
    let keys: Vec<String> = redis::cmd("KEYS").arg("{punctual:*").query_async(&mut link).await?;
    let partitions: BTreeSet<&str> = keys.iter().filter_map(|key| key.split_once('}')).map(|(head, _)| head).collect();
    let (mut looks, mut breaches) = (0, Vec::new());
    for partition in partitions {
        let mut command = redis::cmd("EVAL");
        command.arg(SCRIPT).arg(NAMES.len()).arg(NAMES.map(|name| format!("{partition}}}:{name}")).as_slice());
        // A slot that is being moved has some of its keys alone.
        let Ok(breach) = command.query_async::<String>(&mut link).await else { continue };
        looks += 1;
        if !breach.is_empty() {
            breaches.push(format!("{}: {partition}}} on port {port}: {breach}\n", wall_clock()));
        }
    }
    Ok((looks, breaches))
}
