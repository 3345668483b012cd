//! A round: faults and calls for a minute, then calm until all is settled, then the verdict.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::Value;
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep},
};

use super::{
    Settings,
    clients::{Clients, Tally},
    ends,
    judge::{self, Observed, Verdict},
    list::{self, Watch},
    metrics::{self, Snapshot},
    nemesis::{self, Caused, Faults},
    operator, partitions,
    random::Random,
    routes, schedules,
    world::{Usage, World, text_of},
};
use crate::support::{http, receiver::wall_clock};

/// A round without the time to settle.
const LENGTH: Duration = Duration::from_secs(55);
/// A shorter one shows little.
pub const MIN_LENGTH: Duration = Duration::from_secs(30);
/// Clients that wait for an answer or for their time: calls of an outage do not stop the others.
const MAX_LIVES: usize = 3000;
/// Maximum time until the queue is empty, once all faults have ended and all clients are done: twice a lease, and the longest delays of the
/// scheduler.
const MAX_DRAIN: Duration = Duration::from_mins(1);

/// Maximum time until instances have closed connections that their clients have closed.
const CLOSED: Duration = Duration::from_secs(2);

/// The result of a round.
pub struct Outcome {
    pub verdict: Verdict,
    pub tally: Tally,
    /// How often each kind of fault was planned.
    pub planned: BTreeMap<&'static str, usize>,
    pub faults: Vec<Caused>,
    /// From the end of all faults to the empty queue.
    pub drain: Duration,
    pub usage: Vec<Usage>,
}

pub async fn run(world: &Arc<World>, number: u64, left: Duration, mut random: Random, settings: &Settings) -> Outcome {
    let before = Snapshot::take(world).await;
    let length = LENGTH.min(left.max(MIN_LENGTH));
    let plan = nemesis::plan(&mut random, length, &settings.only, settings.every);
    let clients = Arc::new(Clients::new(world, format!("r{number}")));
    let (watch, faults) = (Watch::start(world), Faults::default());
    let partitions = partitions::Watch::start(world);
    let begin = begin_lives(&clients, length, random.fork(), settings.rate);
    let ticking = schedules::live(&clients, length, random.fork());
    let at_rate = random.fork();
    let (since, acting) = (wall_clock(), operator::live(&clients, world, number, length, random.fork()));
    let (mut lives, schedules, acts, ()) = tokio::join!(begin, ticking, acting, nemesis::run(&plan, world, &faults));
    world.is_well().await;
    let calm = Instant::now();
    clients.live_at_rate(at_rate).await;
    while let Some(end) = lives.join_next().await {
        end.expect("a client does not panic");
    }
    let mut stuck = operator::finish(&clients, &acts).await;
    arrived(world, &clients.oracle.owed_by_sources()).await;
    stuck.extend(schedules::finish(&clients, &schedules).await);
    let left = drain(world).await;
    let drain = calm.elapsed();
    let dead = dead(world).await;
    stuck.extend(flows_left(world, &dead).await);
    stuck.extend(clients.groups_left().await);
    // A look of the watch may be under way.
    sleep(Duration::from_millis(200)).await;
    let mut arrivals = world.endpoint.take();
    arrivals.extend(world.elsewhere.arrivals(&format!("r{number}-")).await);
    if let Some(brokers) = &world.brokers {
        arrivals.extend(brokers.arrivals(&format!("r{number}-")).await);
    }
    let elements = match world.primary().await {
        Some(port) => list::all(port).await,
        // On a cluster there is no list.
        None => Vec::new(),
    };
    let observed = Observed {
        began: since,
        lives: clients.oracle.take(),
        arrivals,
        seen: watch.finish(),
        list: elements,
        dead,
        faults: faults.all(),
        schedules,
        acts,
        ends: ends::read(world, since).await,
        changes: std::mem::take(&mut clients.changes.lock().expect("no panic under this lock")),
    };
    let (of_round, all_dead) = (observed.of_round(&format!("r{number}-")), observed.dead.len());
    let mut verdict = judge::judge(&of_round);
    let (looks, wrong) = partitions.finish();
    verdict.noted.insert("partitions checked", looks);
    verdict.breaches.extend(wrong);
    if looks == 0 {
        verdict.breaches.push("no partition was looked at\n".to_owned());
    }
    if left.is_ok() {
        let after = Snapshot::take(world).await;
        verdict.breaches.extend(metrics::compare(&before, &after, &of_round, all_dead));
    }
    let tally = clients.tally();
    // It explains what is lost so far.
    verdict.breaches.splice(0..0, left.err().into_iter().chain(stuck));
    verdict.breaches.extend(tally.unexpected.iter().map(|found| format!("unexpected answer: {found}\n")));
    // Closes its connections.
    drop(clients);
    sleep(CLOSED).await;
    let planned = nemesis::planned(&plan);
    Outcome { verdict, tally, planned, faults: observed.faults, drain, usage: world.usage().await }
}

impl Observed {
    /// Without what former rounds have left.
    fn of_round(&self, prefix: &str) -> Self {
        let is_of = |id: &str| id.starts_with(prefix);
        Self {
            began: self.began,
            lives: self.lives.clone(),
            arrivals: self.arrivals.clone(),
            seen: self.seen.iter().filter(|(id, _)| is_of(id)).map(|(id, seen)| (id.clone(), seen.clone())).collect(),
            list: self.list.iter().filter(|element| is_of(&element.id)).cloned().collect(),
            dead: self.dead.iter().filter(|(id, _)| is_of(id)).cloned().collect(),
            faults: self.faults.clone(),
            schedules: self.schedules.clone(),
            acts: self.acts.clone(),
            ends: self.ends.clone(),
            changes: self.changes.clone(),
        }
    }
}

/// Begins clients at the rate, for the length of the round.
async fn begin_lives(clients: &Arc<Clients>, length: Duration, mut random: Random, rate: u64) -> JoinSet<()> {
    let end = Instant::now() + length;
    let mut ticks = interval(Duration::from_micros(1_000_000 / rate));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut lives = JoinSet::new();
    for number in 0.. {
        ticks.tick().await;
        if Instant::now() >= end {
            break;
        }
        while lives.try_join_next().is_some() {}
        if lives.len() < MAX_LIVES {
            lives.spawn(Arc::clone(clients).live(number, random.fork()));
        }
    }
    lives
}

/// Waits for messages that sources owe, which do not count as waiting ones. The judge names those that are missing.
async fn arrived(world: &World, ids: &[String]) {
    let deadline = Instant::now() + MAX_DRAIN;
    while !world.endpoint.has(ids) && Instant::now() < deadline {
        sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until nothing waits and nothing is in flight. `Err`: the statistics of the routes that are not empty.
async fn drain(world: &World) -> Result<(), String> {
    let (client, deadline) = (http::client(), Instant::now() + MAX_DRAIN);
    loop {
        let answer = client.get(format!("{}/v1/routes", world.bases[0])).send().await;
        let text = match answer {
            Ok(answer) => answer.text().await.unwrap_or_default(),
            Err(error) => error.to_string(),
        };
        let json: Value = serde_json::from_str(&text).unwrap_or_default();
        let routes = json["routes"].as_array().cloned().unwrap_or_default();
        let is_empty = |route: &Value| route["pending"] == 0 && route["unack"] == 0 && route["bytes"] == 0;
        if routes.len() == world.names().len() && routes.iter().all(is_empty) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("{}: not drained {MAX_DRAIN:?} after the faults: {text}\n", wall_clock()));
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Flows that the store still counts or holds, although nothing waits and nothing is in flight.
async fn flows_left(world: &World, dead: &[(String, String)]) -> Vec<String> {
    let mut left = Vec::new();
    // On a cluster only the primary of the key answers.
    let ports = world.primary().await.map_or_else(|| world.ports.clone(), |port| vec![port]);
    for route in routes::WITH_FLOW {
        for name in ["flows", "waiting", "flights", "gates"] {
            let key = format!("{{punctual:{route}:0/1}}:{name}");
            let mut found = None;
            for port in &ports {
                let client = redis::Client::open(format!("redis://127.0.0.1:{port}/0")).expect("an address");
                let mut link = client.get_multiplexed_async_connection().await.expect("it is well");
                let asked: redis::RedisResult<Vec<String>> = if name == "flows" {
                    redis::cmd("HKEYS").arg(&key).query_async(&mut link).await
                } else {
                    redis::cmd("ZRANGE").arg(&key).arg(0).arg(-1).query_async(&mut link).await
                };
                found = found.or(asked.ok());
            }
            let mut of_messages = found.expect("a primary answers");
            // The number of the last message is kept, and dead letters keep their flows.
            of_messages.retain(|id| !id.is_empty() && !dead.iter().any(|(dead, _)| dead == id));
            if !of_messages.is_empty() {
                left.push(format!("{key} is not empty in the end: {of_messages:?}\n"));
            }
        }
    }
    left
}

/// Id and error of all dead letters. The error begins with the reason.
async fn dead(world: &World) -> Vec<(String, String)> {
    let listed = world.messages("state=dead&payload=false").await;
    listed.iter().map(|message| (text_of(message, "id"), text_of(message, "last_error"))).collect()
}
