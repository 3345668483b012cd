//! Faults by a seeded plan, at random times and overlapping.

use std::{collections::BTreeMap, time::Duration};

use futures::future::join_all;
use tokio::{
    select,
    time::{Instant, sleep, sleep_until},
};

use super::{
    broker_faults, clock, endpoint::Behaviour, instances, primaries, random::Random, redis_faults, store::Shape,
    world::INSTANCES, world::World,
};
pub use super::{
    caused::{Caused, Faults, counts},
    kinds::{KINDS, Kind},
};
use crate::support::proxy::{Direction, Mode, Proxy};

/// A fault of the plan.
#[derive(Clone)]
pub struct Planned {
    pub at: Duration,
    pub kind: Kind,
    pub instance: usize,
    pub lasts: Duration,
    /// Draws the rest of it.
    pub random: Random,
}

/// At the beginning of a round there is no fault: messages must be on time. In milliseconds.
const CALM: u64 = 12_000;

/// The faults of a round, which all begin within `length`. `every`: the mean time between two of a kind, in milliseconds.
pub fn plan(random: &mut Random, length: Duration, only: &[Kind], every: Option<u64>) -> Vec<Planned> {
    let length = u64::try_from(length.as_millis()).expect("a short round");
    let mut all = Vec::new();
    for (kind, mean) in KINDS {
        let mut random = random.fork();
        if !only.contains(&kind) {
            continue;
        }
        let mean = every.unwrap_or(mean);
        let mut at = CALM + random.between(0, mean);
        while at < length {
            all.push(draw(&mut random, kind, at));
            at += random.between(mean / 4, mean * 7 / 4);
        }
    }
    all.sort_by_key(|planned| planned.at);
    all
}

/// How often each kind is planned.
pub fn planned(plan: &[Planned]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for planned in plan {
        *counts.entry(planned.kind.name()).or_default() += 1;
    }
    counts
}

fn draw(random: &mut Random, kind: Kind, at: u64) -> Planned {
    let lasts = match kind {
        Kind::Kill | Kind::Terminate => random.between(100, 3000),
        // At times shorter than a lease, at times several leases.
        Kind::Stop | Kind::BrokerFreeze => random.pick(&[1000, 3000, 6000, 12_000, 20_000]) + random.between(0, 1000),
        Kind::RedisKill | Kind::RedisFreeze | Kind::CutOff | Kind::Leader => random.between(2000, 8000),
        Kind::FailOver | Kind::Clock | Kind::Slots => 0,
        Kind::Flush | Kind::Clients => random.between(500, 3000),
        Kind::Endpoint | Kind::Memory | Kind::Right => random.between(300, 6000),
        Kind::Unread => random.pick(&[5000, 20_000, 59_000]) + random.between(0, 1000),
        Kind::Older => random.between(5000, 15_000),
        Kind::Exchange | Kind::FullQueue | Kind::OtherRedis => random.between(500, 5000),
        Kind::Kafka | Kind::RabbitMq => random.between(0, 3000),
        // At times longer than a lease.
        Kind::Network => random.between(300, 8000),
        Kind::EndpointNetwork | Kind::KafkaNetwork | Kind::RabbitMqNetwork | Kind::OtherRedisNetwork => {
            random.between(300, 5000)
        }
    };
    let instance = usize::try_from(random.next() % 3).expect("an index") % INSTANCES;
    let random = random.fork();
    Planned { at: Duration::from_millis(at), kind, instance, lasts: Duration::from_millis(lasts), random }
}

/// Causes all faults of a plan, and waits for their ends. A fault of what another one has changed already is left out.
pub async fn run(plan: &[Planned], world: &World, faults: &Faults) {
    let (begun, base) = (Instant::now(), clock::offset());
    let steps = plan.iter().filter(|planned| planned.kind == Kind::Clock);
    clock::expect(steps.map(|planned| redis_faults::offset(planned, base, world.shape)));
    let causing = join_all(plan.iter().map(|planned| async move {
        sleep_until(begun + planned.at).await;
        cause(planned, world, faults, base).await;
    }));
    select! {
        _ = causing => {}
        () = primaries::watch(world, faults) => {}
    }
    redis_faults::end(plan, world, faults).await;
}

/// `base`: the offset of the clock at the beginning of the round.
async fn cause(planned: &Planned, world: &World, faults: &Faults, base: i64) {
    match planned.kind {
        Kind::Kill | Kind::Stop | Kind::Terminate => instances::signal(planned, world, faults).await,
        Kind::Unread => instances::leave_unread(planned, world, faults).await,
        Kind::Older => instances::take_older(planned, world, faults).await,
        Kind::RedisKill | Kind::RedisFreeze | Kind::FailOver | Kind::CutOff | Kind::Slots => {
            primaries::run(planned, world, faults).await;
        }
        Kind::Kafka | Kind::Leader | Kind::RabbitMq | Kind::BrokerFreeze | Kind::Exchange | Kind::FullQueue => {
            broker_faults::run(planned, world, faults).await;
        }
        Kind::Flush => redis_faults::repeat(planned, world, faults, &[&["SCRIPT", "FLUSH"]]).await,
        Kind::Clients => {
            let kills: [&[&str]; 2] = [&["CLIENT", "KILL", "TYPE", "normal"], &["CLIENT", "KILL", "TYPE", "pubsub"]];
            redis_faults::repeat(planned, world, faults, &kills).await;
        }
        Kind::OtherRedis => world.elsewhere.interrupt(planned, faults).await,
        Kind::Endpoint => to_endpoint(planned, world, faults).await,
        Kind::Network
        | Kind::EndpointNetwork
        | Kind::KafkaNetwork
        | Kind::RabbitMqNetwork
        | Kind::OtherRedisNetwork => {
            to_network(planned, world, faults).await;
        }
        Kind::Right | Kind::Memory => redis_faults::to_settings(planned, world, faults).await,
        Kind::Clock => redis_faults::step_clock(planned, world, faults, base),
    }
}

async fn to_endpoint(planned: &Planned, world: &World, faults: &Faults) {
    let Ok(_turn) = world.turn(planned.kind).try_lock() else { return };
    let behaviour = planned.random.clone().pick(&[
        Behaviour::Status(500),
        Behaviour::Status(503),
        Behaviour::Throttle,
        Behaviour::Hang,
        Behaviour::HangFor("parallel"),
        Behaviour::HangFor("web"),
        Behaviour::Reset,
        Behaviour::Close,
        Behaviour::Slow(Duration::from_millis(700)),
        Behaviour::OddHead,
        Behaviour::Drip,
    ]);
    let fault = faults.begin(planned.kind, format!("{behaviour:?}"));
    world.endpoint.behave(behaviour);
    sleep(planned.lasts).await;
    world.endpoint.behave(Behaviour::Fine);
    faults.end(fault);
}

/// Latency, lost packets, connections that are half-open or cut.
async fn to_network(planned: &Planned, world: &World, faults: &Faults) {
    let mut random = planned.random.clone();
    let mode = match random.between(1, 8) {
        1..=2 => Mode::Delay(Duration::from_millis(random.between(20, 800))),
        3 => Mode::Hold(Direction::ToServer),
        4 => Mode::Hold(Direction::ToClient),
        5..=6 => Mode::Hold(Direction::Both),
        7 => Mode::BlackHole,
        _ => Mode::Cut,
    };
    let (turn, paths, instance, detail): (_, Vec<&Proxy>, _, _) = match (planned.kind, &world.brokers) {
        (Kind::Network, _) => {
            let network = &world.networks[planned.instance];
            let is_all = random.chance(60);
            let detail = match world.shape {
                _ if is_all => "",
                Shape::Sentinels => ", not to the sentinels",
                Shape::Cluster => ", to the first half of the servers",
            };
            (&network.turn, network.paths(is_all), Some(planned.instance), detail)
        }
        (Kind::KafkaNetwork, Some(brokers)) => {
            let both = brokers.kafka_paths.iter();
            let (paths, detail) = match random.between(1, 4) {
                1 => (both.take(1).collect(), ", to the first broker"),
                2 => (both.skip(1).collect(), ", to the second broker"),
                _ => (both.collect(), ""),
            };
            (world.turn(planned.kind), paths, None, detail)
        }
        (Kind::RabbitMqNetwork, Some(brokers)) => (world.turn(planned.kind), vec![&brokers.rabbitmq_path], None, ""),
        (Kind::OtherRedisNetwork, _) => (world.turn(planned.kind), vec![&world.elsewhere.path], None, ""),
        (Kind::EndpointNetwork, _) => (world.turn(planned.kind), vec![&world.endpoint_path], None, ""),
        _ => return,
    };
    let Ok(_turn) = turn.try_lock() else { return };
    let detail = format!("{mode:?}{detail} for {:?}", planned.lasts);
    let fault = match instance {
        Some(instance) => faults.begin_of(instance, planned.kind, &detail),
        None => faults.begin(planned.kind, detail),
    };
    join_all(paths.iter().map(|path| path.set(mode))).await;
    sleep(planned.lasts).await;
    join_all(paths.iter().map(|path| path.set(Mode::Pass))).await;
    faults.end(fault);
}
