//! Faults by a seeded plan, at random times and overlapping.

use std::{collections::BTreeMap, sync::Mutex, time::Duration};

use futures::future::join_all;
use tokio::time::{Instant, sleep, sleep_until};

use super::{endpoint::Behaviour, random::Random, world::INSTANCES, world::World};
use crate::support::receiver::wall_clock;

/// Kinds of faults, each with the mean time between two of them in milliseconds.
pub const KINDS: [(Kind, u64); 11] = [
    (Kind::Kill, 8000),
    (Kind::Stop, 10_000),
    (Kind::Terminate, 9000),
    (Kind::RedisKill, 90_000),
    (Kind::RedisFreeze, 110_000),
    (Kind::FailOver, 100_000),
    (Kind::Flush, 12_000),
    (Kind::Clients, 12_000),
    (Kind::Endpoint, 6000),
    (Kind::Kafka, 60_000),
    (Kind::RabbitMq, 40_000),
];
/// Between two repetitions of a fault that is repeated while it lasts.
const REPEAT: Duration = Duration::from_millis(150);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Kill,
    Stop,
    Terminate,
    RedisKill,
    RedisFreeze,
    FailOver,
    Flush,
    Clients,
    Endpoint,
    Kafka,
    RabbitMq,
}

impl Kind {
    /// As `--only` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Terminate => "terminate",
            Self::RedisKill => "redis-kill",
            Self::RedisFreeze => "redis-freeze",
            Self::FailOver => "fail-over",
            Self::Flush => "script-flush",
            Self::Clients => "client-kill",
            Self::Endpoint => "endpoint",
            Self::Kafka => "kafka",
            Self::RabbitMq => "rabbitmq",
        }
    }

    /// Whether a message of the route can arrive twice because of it, and a claim that is no longer current be sent.
    pub fn duplicates(self, route: &str) -> bool {
        match self {
            Self::Kill | Self::Stop | Self::RedisKill | Self::RedisFreeze | Self::FailOver => true,
            // It has stored what it did not confirm any more.
            Self::Kafka => route == "topic",
            Self::RabbitMq => route == "queue",
            _ => false,
        }
    }
}

/// A fault of the plan.
#[derive(Clone, Debug)]
pub struct Planned {
    pub at: Duration,
    pub kind: Kind,
    pub instance: usize,
    pub lasts: Duration,
    pub behaviour: Behaviour,
}

/// A fault that was caused.
#[derive(Clone, Debug)]
pub struct Caused {
    pub kind: Kind,
    pub detail: String,
    /// Epoch milliseconds.
    pub began: u64,
    /// `None`: it goes on.
    pub ended: Option<u64>,
    is_withdrawn: bool,
}

/// All faults of a round.
#[derive(Default)]
pub struct Faults(Mutex<Vec<Caused>>);

impl Faults {
    fn begin(&self, kind: Kind, detail: String) -> usize {
        let mut all = self.0.lock().expect("no panic under this lock");
        all.push(Caused { kind, detail, began: wall_clock(), ended: None, is_withdrawn: false });
        all.len() - 1
    }

    fn end(&self, index: usize) {
        self.0.lock().expect("no panic under this lock")[index].ended = Some(wall_clock());
    }

    /// It was not caused.
    fn withdraw(&self, index: usize) {
        self.0.lock().expect("no panic under this lock")[index].is_withdrawn = true;
    }

    pub fn all(&self) -> Vec<Caused> {
        let all = self.0.lock().expect("no panic under this lock");
        all.iter().filter(|fault| !fault.is_withdrawn).cloned().collect()
    }
}

/// At the beginning of a round there is no fault: messages must be on time. In milliseconds.
const CALM: u64 = 12_000;

/// The faults of a round, which all begin within `length`.
pub fn plan(random: &mut Random, length: Duration, only: &[Kind]) -> Vec<Planned> {
    let length = u64::try_from(length.as_millis()).expect("a short round");
    let mut all = Vec::new();
    for (kind, mean) in KINDS {
        let mut random = random.fork();
        if !only.contains(&kind) {
            continue;
        }
        let mut at = CALM + random.between(0, mean);
        while at < length {
            all.push(draw(&mut random, kind, at));
            at += random.between(mean / 4, mean * 7 / 4);
        }
    }
    all.sort_by_key(|planned| planned.at);
    all
}

fn draw(random: &mut Random, kind: Kind, at: u64) -> Planned {
    let lasts = match kind {
        Kind::Kill | Kind::Terminate => random.between(100, 3000),
        // At times shorter than a lease, at times several leases.
        Kind::Stop => random.pick(&[1000, 3000, 6000, 12_000, 20_000]) + random.between(0, 1000),
        Kind::RedisKill | Kind::RedisFreeze => random.between(2000, 8000),
        Kind::FailOver => 0,
        Kind::Flush | Kind::Clients => random.between(500, 3000),
        Kind::Endpoint => random.between(300, 6000),
        Kind::Kafka | Kind::RabbitMq => random.between(0, 3000),
    };
    let behaviour = random.pick(&[
        Behaviour::Status(500),
        Behaviour::Status(503),
        Behaviour::Throttle,
        Behaviour::Hang,
        Behaviour::Reset,
        Behaviour::Close,
        Behaviour::Slow(Duration::from_millis(700)),
        Behaviour::OddHead,
        Behaviour::Drip,
    ]);
    let instance = usize::try_from(random.next() % 3).expect("an index") % INSTANCES;
    Planned { at: Duration::from_millis(at), kind, instance, lasts: Duration::from_millis(lasts), behaviour }
}

/// Causes all faults of a plan, and waits for their ends. A fault of what another one has changed already is left out.
pub async fn run(plan: &[Planned], world: &World, faults: &Faults) {
    let begun = Instant::now();
    join_all(plan.iter().map(|planned| async move {
        sleep_until(begun + planned.at).await;
        cause(planned, world, faults).await;
    }))
    .await;
}

async fn cause(planned: &Planned, world: &World, faults: &Faults) {
    match planned.kind {
        Kind::Kill | Kind::Stop | Kind::Terminate => to_instance(planned, world, faults).await,
        Kind::RedisKill | Kind::RedisFreeze | Kind::FailOver => to_redis(planned, world, faults).await,
        Kind::Kafka | Kind::RabbitMq => to_broker(planned, world, faults).await,
        Kind::Flush => repeat(planned, world, faults, &[&["SCRIPT", "FLUSH"]]).await,
        Kind::Clients => {
            let kills: [&[&str]; 2] = [&["CLIENT", "KILL", "TYPE", "normal"], &["CLIENT", "KILL", "TYPE", "pubsub"]];
            repeat(planned, world, faults, &kills).await;
        }
        Kind::Endpoint => {
            let Ok(_turn) = world.endpoint_turn.try_lock() else { return };
            let fault = faults.begin(planned.kind, format!("{:?}", planned.behaviour));
            world.endpoint.behave(planned.behaviour);
            sleep(planned.lasts).await;
            world.endpoint.behave(Behaviour::Fine);
            faults.end(fault);
        }
    }
}

async fn to_instance(planned: &Planned, world: &World, faults: &Faults) {
    let Ok(mut instance) = world.instances[planned.instance].try_lock() else { return };
    let fault = faults.begin(planned.kind, format!("instance {} for {:?}", planned.instance, planned.lasts));
    match planned.kind {
        Kind::Stop => {
            instance.suspend();
            sleep(planned.lasts).await;
            instance.resume();
        }
        Kind::Kill => {
            instance.kill().await;
            sleep(planned.lasts).await;
            instance.launch();
        }
        _ => {
            instance.begun().await;
            let exit = instance.terminate().await;
            assert_eq!(exit.code, Some(0), "{exit:?}\n{}", instance.log());
            sleep(planned.lasts).await;
            instance.launch();
        }
    }
    faults.end(fault);
}

async fn to_redis(planned: &Planned, world: &World, faults: &Faults) {
    let Ok(mut redis) = world.redis.try_lock() else { return };
    let old = redis.master().await;
    let fault = faults.begin(planned.kind, format!("server {old} for {:?}", planned.lasts));
    match planned.kind {
        Kind::FailOver if !redis.try_fail_over().await => return faults.withdraw(fault),
        Kind::RedisKill => {
            redis.servers[old].kill();
            redis.switched(old).await;
            sleep(planned.lasts).await;
            redis.servers[old].restart().await;
        }
        Kind::RedisFreeze => {
            redis.servers[old].freeze();
            redis.switched(old).await;
            sleep(planned.lasts).await;
            redis.servers[old].resume();
        }
        _ => {
            redis.switched(old).await;
        }
    }
    // It follows the new primary before the next fault: two of three servers would not be enough.
    redis.servers[old].replicates().await;
    faults.end(fault);
}

/// Killed or stopped, and started again.
async fn to_broker(planned: &Planned, world: &World, faults: &Faults) {
    let Some(brokers) = &world.brokers else { return };
    let is_killed = planned.instance == 0;
    let detail = format!("{} for {:?}", if is_killed { "killed" } else { "stopped" }, planned.lasts);
    if planned.kind == Kind::Kafka {
        let Ok(mut kafka) = brokers.kafka.try_lock() else { return };
        let fault = faults.begin(planned.kind, detail);
        if is_killed {
            kafka.kill();
        } else {
            kafka.stop().await;
        }
        sleep(planned.lasts).await;
        kafka.restart().await;
        faults.end(fault);
    } else {
        let Ok(mut rabbitmq) = brokers.rabbitmq.try_lock() else { return };
        let fault = faults.begin(planned.kind, detail);
        if is_killed {
            rabbitmq.kill();
        } else {
            rabbitmq.stop().await;
        }
        sleep(planned.lasts).await;
        rabbitmq.restart().await;
        faults.end(fault);
    }
}

/// Repeats commands at all servers of Redis that answer.
async fn repeat(planned: &Planned, world: &World, faults: &Faults, commands: &[&[&str]]) {
    let fault = faults.begin(planned.kind, format!("for {:?}", planned.lasts));
    let end = Instant::now() + planned.lasts;
    while Instant::now() < end {
        for port in &world.ports {
            let client = redis::Client::open(format!("redis://127.0.0.1:{port}/0")).expect("a valid address");
            // It kills its own connection, too.
            let asking = async {
                let mut link = client.get_multiplexed_async_connection().await.ok()?;
                for words in commands {
                    let mut command = redis::cmd(words[0]);
                    let _ = command.arg(&words[1..]).exec_async(&mut link).await;
                }
                Some(())
            };
            let _ = tokio::time::timeout(REPEAT * 4, asking).await;
        }
        sleep(REPEAT).await;
    }
    faults.end(fault);
}

/// How often each kind was caused.
pub fn counts(faults: &[Caused]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for fault in faults {
        *counts.entry(fault.kind.name()).or_default() += 1;
    }
    counts
}
