//! The output of a campaign: a line for each round, the sum in the end, and each breach with the logs of the instances.

use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};

use super::{nemesis, round::Outcome, world::Usage, world::World};

/// Lines of one log in a round, at most: more are a flood.
const MAX_LINES: usize = 3000;
/// Open files that an instance may have more than after the first round: connections of clients that are idle.
const MORE_FILES: usize = 100;
/// Resident memory that an instance may have more than after the first round, in KiB.
const MORE_KIB: u64 = 96 * 1024;
/// Messages without faults from which a percentile is taken.
const ENOUGH: usize = 100;
/// Faults of a kind in a campaign's plan of which one is caused for sure: many are left out because another one has their process.
const OFTEN: usize = 8;
/// Breaches that are printed.
const MAX_PRINTED: usize = 5;

pub struct Report {
    seed: u64,
    max_p99: u64,
    rounds: u64,
    sums: BTreeMap<&'static str, usize>,
    largest: BTreeMap<&'static str, usize>,
    duplicates: BTreeMap<&'static str, usize>,
    planned: BTreeMap<&'static str, usize>,
    faults: BTreeMap<&'static str, usize>,
    answers: BTreeMap<String, u64>,
    lateness: Vec<u64>,
    /// Milliseconds.
    worst_recovery: u64,
    worst_drain: Duration,
    /// The latest first delivery, also during faults: milliseconds, and its history.
    latest: (u64, String),
    first_usage: Vec<Usage>,
    /// Lengths of the logs that were looked at.
    logged: Vec<usize>,
    breaches: Vec<String>,
}

impl Report {
    pub fn new(seed: u64, max_p99: u64) -> Self {
        Self {
            seed,
            max_p99,
            rounds: 0,
            sums: BTreeMap::new(),
            largest: BTreeMap::new(),
            duplicates: BTreeMap::new(),
            planned: BTreeMap::new(),
            faults: BTreeMap::new(),
            answers: BTreeMap::new(),
            lateness: Vec::new(),
            worst_recovery: 0,
            worst_drain: Duration::ZERO,
            latest: (0, String::new()),
            first_usage: Vec::new(),
            logged: Vec::new(),
            breaches: Vec::new(),
        }
    }

    pub async fn add(&mut self, world: &World, number: u64, outcome: Outcome) {
        let Outcome { verdict, tally, planned, faults, drain, usage } = outcome;
        let counts = nemesis::counts(&faults);
        println!(
            "round {number}: owed {}, delivered {}, either {}, never {}, lost {}, early {}, corrupt {}, stale {}, dead {}, \
             duplicates {:?}, unexplained {}, {:?}, at most {:?}; faults {counts:?}; calm p99 {} ms of {}, last overdue delivery after \
             {} ms, drained after {drain:.1?}; {usage:?}",
            verdict.owed,
            verdict.delivered,
            verdict.either,
            verdict.cancelled,
            verdict.lost,
            verdict.early,
            verdict.corrupt,
            verdict.stale,
            verdict.dead,
            verdict.duplicates,
            verdict.unexplained,
            verdict.noted,
            verdict.largest,
            percentile(&verdict.lateness, 99),
            verdict.lateness.len(),
            verdict.recovery,
        );
        self.rounds += 1;
        for (name, value) in [
            ("owed", verdict.owed),
            ("delivered", verdict.delivered),
            ("either", verdict.either),
            ("never", verdict.cancelled),
            ("lost", verdict.lost),
            ("early", verdict.early),
            ("corrupt", verdict.corrupt),
            ("stale", verdict.stale),
            ("dead", verdict.dead),
            ("unexplained", verdict.unexplained),
        ] {
            *self.sums.entry(name).or_default() += value;
        }
        for (name, count) in verdict.noted {
            *self.sums.entry(name).or_default() += count;
        }
        for (name, value) in verdict.largest {
            let largest = self.largest.entry(name).or_default();
            *largest = value.max(*largest);
        }
        for (kind, count) in verdict.duplicates {
            *self.duplicates.entry(kind).or_default() += count;
        }
        for (kind, count) in counts {
            *self.faults.entry(kind).or_default() += count;
        }
        for (kind, count) in planned {
            *self.planned.entry(kind).or_default() += count;
        }
        for (answer, count) in tally.answers {
            *self.answers.entry(answer).or_default() += count;
        }
        self.worst_recovery = self.worst_recovery.max(verdict.recovery);
        self.worst_drain = self.worst_drain.max(drain);
        self.latest = std::mem::take(&mut self.latest).max(verdict.latest);
        self.breaches.extend(verdict.breaches);
        self.check_lateness(number, &verdict.lateness, &verdict.late);
        self.lateness.extend(verdict.lateness);
        self.check_usage(usage);
        self.check_faults();
        let logs = world.logs().await;
        self.check_logs(&logs);
        self.keep(&logs);
    }

    pub fn is_broken(&self) -> bool {
        !self.breaches.is_empty()
    }

    /// Without faults nearly all messages are on time.
    fn check_lateness(&mut self, number: u64, lateness: &[u64], late: &[String]) {
        let p99 = percentile(lateness, 99);
        if lateness.len() >= ENOUGH && p99 > self.max_p99 {
            let what = format!("round {number}: without faults, the p99 of {} is {p99} ms late\n", lateness.len());
            self.breaches.push(what + &late.concat());
        }
    }

    /// A kind that is often planned is caused: no lock is always taken, and the world lacks nothing.
    fn check_faults(&mut self) {
        let is_missing = |kind: &&str, count: usize| count >= OFTEN && !self.faults.contains_key(*kind);
        let missing = self.planned.iter().filter(|(kind, count)| is_missing(kind, **count));
        let missing = missing.map(|(kind, count)| format!("{kind} was planned {count} times and never caused\n"));
        self.breaches.extend(missing.collect::<Vec<_>>());
    }

    /// Memory and files are back to where they were.
    fn check_usage(&mut self, usage: Vec<Usage>) {
        for (instance, (now, first)) in usage.iter().zip(&self.first_usage).enumerate() {
            if now.files > first.files + MORE_FILES || now.resident_kib > first.resident_kib + MORE_KIB {
                self.breaches
                    .push(format!("instance {instance} uses {now:?}, after the first round it used {first:?}\n"));
            }
        }
        if self.first_usage.is_empty() {
            self.first_usage = usage;
        }
    }

    /// Neither panics nor a flood.
    fn check_logs(&mut self, logs: &[String]) {
        self.logged.resize(logs.len(), 0);
        for (instance, log) in logs.iter().enumerate() {
            let new = &log[self.logged[instance]..];
            self.logged[instance] = log.len();
            if let Some(line) = new.lines().find(|line| line.contains("panicked")) {
                self.breaches.push(format!("instance {instance} panicked: {line}\n"));
            }
            let lines = new.lines().count();
            if lines > MAX_LINES {
                self.breaches.push(format!("instance {instance} logged {lines} lines in a round\n"));
            }
        }
    }

    fn directory(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("target/campaign/seed-{}", self.seed))
    }

    /// Logs and breaches, for a look after the end.
    fn keep(&self, logs: &[String]) {
        let directory = self.directory();
        fs::create_dir_all(&directory).expect("a directory below target");
        for (instance, log) in logs.iter().enumerate() {
            fs::write(directory.join(format!("instance-{instance}.log")), log).expect("written");
        }
        fs::write(directory.join("breaches.txt"), self.breaches.concat()).expect("written");
    }

    /// # Panics
    /// With the breaches, if there are any.
    pub fn finish(self) {
        println!("seed {}, {} rounds: {:?}", self.seed, self.rounds, self.sums);
        println!("at most {:?}", self.largest);
        println!("duplicates by fault: {:?}", self.duplicates);
        println!("faults: {:?}", self.faults);
        println!("answers: {:#?}", self.answers);
        println!(
            "calm times: {} messages, late p50 {} ms, p99 {} ms, at most {} ms; after the end of the faults the last overdue \
             delivery came within {} ms, and the queue was empty within {:.1?}",
            self.lateness.len(),
            percentile(&self.lateness, 50),
            percentile(&self.lateness, 99),
            percentile(&self.lateness, 100),
            self.worst_recovery,
            self.worst_drain,
        );
        println!("{}", self.latest.1);
        for breach in self.breaches.iter().take(MAX_PRINTED) {
            println!("BREACH {breach}");
        }
        assert!(
            self.breaches.is_empty(),
            "{} breaches with seed {}; logs and histories are in {}",
            self.breaches.len(),
            self.seed,
            self.directory().display()
        );
    }
}

fn percentile(values: &[u64], percent: usize) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0)
}
