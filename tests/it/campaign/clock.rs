//! The wall clock of all servers of Redis, which a campaign steps forwards and backwards. A library that is preloaded into
//! `redis-server` adds an offset, and nothing else on the machine changes.
//!
//! A campaign has one such clock, and a process one campaign.

use std::{fs::File, os::unix::fs::FileExt, sync::Mutex};

use tempfile::TempDir;

use crate::support::{preload, receiver::wall_clock};

/// The code of the library.
const CODE: &str = include_str!("clock.c");
/// Names the file with the offset.
const FILE: &str = "PUNCTUAL_CAMPAIGN_CLOCK";

static STEPS: Mutex<Steps> = Mutex::new(Steps { all: Vec::new(), lowest: 0 });

struct Steps {
    all: Vec<Step>,
    /// No later step of the round goes below this offset.
    lowest: i64,
}

/// Times are epoch milliseconds of the machine, offsets milliseconds.
#[derive(Clone, Copy)]
struct Step {
    /// The step was made between these times.
    from: u64,
    to: u64,
    offset: i64,
}

/// The file with the offset, and the library.
pub struct Clock {
    directory: TempDir,
    file: File,
}

impl Clock {
    pub fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        preload::compile(directory.path(), "clock", CODE);
        let file = File::create(directory.path().join("offset")).expect("a file");
        file.write_all_at(&[0; 8], 0).expect("written");
        Self { directory, file }
    }

    /// For servers of Redis.
    pub fn environment(&self) -> [(String, String); 2] {
        let path = |name| self.directory.path().join(name).display().to_string();
        [(preload::VARIABLE.into(), path("clock.so")), (FILE.into(), path("offset"))]
    }

    /// Sets the offset, in milliseconds.
    pub fn step(&self, offset: i64) {
        // Under the lock, so that a reader of the steps knows of each one that can have had an effect.
        let mut steps = STEPS.lock().expect("no panic under this lock");
        let from = wall_clock();
        self.file.write_all_at(&offset.to_ne_bytes(), 0).expect("written");
        steps.all.push(Step { from, to: wall_clock(), offset });
    }
}

/// The steps that are coming end with these offsets.
pub fn expect(offsets: impl Iterator<Item = i64>) {
    let mut steps = STEPS.lock().expect("no panic under this lock");
    steps.lowest = offsets.chain([steps.offset(u64::MAX)]).min().expect("one at least");
}

/// The offset now, in milliseconds.
pub fn offset() -> i64 {
    STEPS.lock().expect("no panic under this lock").offset(u64::MAX)
}

/// The highest offset so far, in milliseconds.
pub fn highest_offset() -> i64 {
    let steps = STEPS.lock().expect("no panic under this lock");
    steps.all.iter().map(|step| step.offset).max().unwrap_or(0).max(0)
}

/// The clock of Redis at a time of the machine, in epoch milliseconds.
pub fn at(time: u64) -> u64 {
    add(time, STEPS.lock().expect("no panic under this lock").offset(time))
}

pub fn now() -> u64 {
    at(wall_clock())
}

/// The lowest value of the clock of Redis from this time of the machine on, in epoch milliseconds.
pub fn lowest(from: u64) -> u64 {
    let steps = STEPS.lock().expect("no panic under this lock");
    add(from, steps.lowest.min(steps.offset(from)))
}

/// The highest value of the clock of Redis between two times of the machine, in epoch milliseconds.
pub fn highest(from: u64, to: u64) -> u64 {
    STEPS.lock().expect("no panic under this lock").highest(from, to)
}

/// Whether no step was made between two times of the machine.
pub fn is_steady(from: u64, to: u64) -> bool {
    let steps = STEPS.lock().expect("no panic under this lock");
    steps.all.iter().all(|step| step.to < from || step.from > to)
}

/// Whether a step back was made between two times of the machine.
pub fn steps_back(from: u64, to: u64) -> bool {
    STEPS.lock().expect("no panic under this lock").steps_back(from, to)
}

impl Steps {
    fn steps_back(&self, from: u64, to: u64) -> bool {
        let before = [0].into_iter().chain(self.all.iter().map(|step| step.offset));
        let mut pairs = before.zip(&self.all);
        pairs.any(|(before, step)| step.offset < before && step.to >= from && step.from <= to)
    }

    fn offset(&self, time: u64) -> i64 {
        self.all.iter().rfind(|step| step.from <= time).map_or(0, |step| step.offset)
    }

    fn highest(&self, from: u64, to: u64) -> u64 {
        let first = Step { from: 0, to: 0, offset: 0 };
        let offsets = [&first].into_iter().chain(&self.all);
        let ends = self.all.iter().map(|next| next.to).chain([u64::MAX]);
        let values = offsets.zip(ends).filter(|(step, end)| step.from <= to && *end >= from);
        values.map(|(step, end)| add(end.min(to), step.offset)).max().expect("an offset at each time")
    }
}

fn add(time: u64, offset: i64) -> u64 {
    time.checked_add_signed(offset).expect("a time")
}

#[test]
fn values_between_steps_are_exact() {
    let step = |from, to, offset| Step { from, to, offset };
    let steps = Steps { all: vec![step(1000, 1001, 500), step(2000, 2002, -500)], lowest: 0 };
    assert_eq!([0, 999, 1000, 1999, 2000, 9000].map(|time| steps.offset(time)), [0, 0, 500, 500, -500, -500]);
    assert_eq!(
        [(0, 999), (0, 1500), (1500, 2000), (2002, 9000), (2003, 9000)].map(|(from, to)| steps.steps_back(from, to)),
        [false, false, true, true, false]
    );
    assert_eq!(steps.highest(100, 900), 900);
    assert_eq!(steps.highest(100, 1000), 1500);
    assert_eq!(steps.highest(100, 1500), 2000);
    assert_eq!(steps.highest(100, 5000), 4500);
    // The step back was made at 2002 at the latest.
    assert_eq!(steps.highest(1500, 2100), 2502);
    assert_eq!(steps.highest(2003, 2100), 1600);
}
