//! The fault campaign: clients use three instances while a seeded plan of faults hits all of their processes, and a judge
//! compares what the sinks got with what is owed by the answers.
//!
//! `tests/campaign.sh` runs it. `oracle` knows what is owed, `nemesis` causes the faults, `judge` compares.

mod broker_faults;
mod brokers;
mod calls;
mod caused;
mod clients;
mod clock;
mod configuration;
mod elsewhere;
mod endpoint;
mod ends;
mod flow;
mod groups;
mod history;
mod inputs;
mod instances;
mod judge;
mod kinds;
mod list;
mod metrics;
mod nemesis;
mod network;
mod operator;
mod oracle;
mod partitions;
mod payload;
mod primaries;
mod producers;
mod random;
mod redis_faults;
mod report;
mod round;
mod routes;
mod schedules;
mod store;
mod world;
mod writers;

use std::{env, path::PathBuf, sync::Arc, time::Duration};

use tokio::time::Instant;

use self::{
    judge::MAX_P99,
    nemesis::{KINDS, Kind},
    random::Random,
    report::Report,
    store::Shape,
    world::World,
};
use crate::program::alone;

/// Without a setting.
const MINUTES: u64 = 2;
const SEED: u64 = 1;

struct Settings {
    program: PathBuf,
    length: Duration,
    seed: u64,
    only: Vec<Kind>,
    /// The mean time between two faults of a kind, in milliseconds. `None`: that of the kind.
    every: Option<u64>,
    shape: Shape,
    /// Calls are answered once all replicas have the message.
    is_durable: bool,
    /// Messages or arrays of messages that are scheduled per second.
    rate: u64,
    /// The p99 of the lateness without faults, at most, in milliseconds.
    max_p99: u64,
}

impl Settings {
    /// The options from the environment, which `tests/campaign.sh` sets.
    fn read() -> Self {
        let number = |name: &str, otherwise: u64| match env::var(name) {
            Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}: `{text}` is no number")),
            Err(_) => otherwise,
        };
        let kinds: Vec<Kind> = KINDS.iter().map(|(kind, _)| *kind).collect();
        let only = match env::var("PUNCTUAL_CAMPAIGN_ONLY") {
            Ok(names) if names == "none" => Vec::new(),
            Ok(names) if !names.is_empty() => names
                .split(',')
                .map(|name| {
                    *kinds.iter().find(|kind| kind.name() == name).unwrap_or_else(|| panic!("no kind `{name}`"))
                })
                .collect(),
            _ => kinds,
        };
        let shape = match env::var("PUNCTUAL_CAMPAIGN_WORLD").as_deref() {
            Ok("cluster") => Shape::Cluster,
            Ok("" | "sentinel") | Err(_) => Shape::Sentinels,
            Ok(other) => panic!("no world `{other}`"),
        };
        Self {
            program: env::var("PUNCTUAL_CAMPAIGN_PROGRAM")
                .unwrap_or_else(|_| env!("CARGO_BIN_EXE_punctual").into())
                .into(),
            length: Duration::from_mins(number("PUNCTUAL_CAMPAIGN_MINUTES", MINUTES)),
            seed: number("PUNCTUAL_CAMPAIGN_SEED", SEED),
            only: only.into_iter().filter(|kind: &Kind| kind.suits(shape)).collect(),
            every: Some(number("PUNCTUAL_CAMPAIGN_EVERY", 0) * 1000).filter(|every| *every > 0),
            shape,
            is_durable: number("PUNCTUAL_CAMPAIGN_DURABLE", 1) == 1,
            rate: number("PUNCTUAL_CAMPAIGN_RATE", 60),
            max_p99: number("PUNCTUAL_CAMPAIGN_MAX_P99", MAX_P99),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: tests/campaign.sh"]
async fn faults_at_random_break_no_promise() {
    let _alone = alone().await;
    let settings = Settings::read();
    let end = Instant::now() + settings.length;
    let mut random = Random::new(settings.seed);
    let world = Arc::new(World::start(&settings).await);
    let mut report = Report::new(settings.seed, settings.max_p99);
    for number in 0.. {
        let left = end.saturating_duration_since(Instant::now());
        if left < round::MIN_LENGTH && number > 0 {
            break;
        }
        let outcome = round::run(&world, number, left, random.fork(), &settings).await;
        report.add(&world, number, outcome).await;
        if report.is_broken() {
            break;
        }
    }
    report.finish();
}
