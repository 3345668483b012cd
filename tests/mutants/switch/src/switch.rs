//! Which of the mutants in this program acts, and which of them a process has reached.

use std::{
    env,
    fs::OpenOptions,
    io::Write,
    sync::{
        LazyLock,
        atomic::{AtomicBool, Ordering},
    },
};

/// The number of the mutant that acts.
static ACTIVE: LazyLock<Option<usize>> =
    LazyLock::new(|| env::var("PUNCTUAL_MUTANT").ok().map(|number| number.parse().expect("a number")));
/// A file for the numbers of the mutants that are reached.
static REPORT: LazyLock<Option<String>> = LazyLock::new(|| env::var("PUNCTUAL_MUTANTS_REACHED").ok());
static REACHED: LazyLock<Vec<AtomicBool>> = LazyLock::new(|| (0..100_000).map(|_| AtomicBool::new(false)).collect());

pub fn on(mutant: usize) -> bool {
    if let Some(path) = &*REPORT
        && !REACHED[mutant].swap(true, Ordering::Relaxed)
    {
        // One write, so that lines of several processes do not mix.
        let mut file = OpenOptions::new().append(true).create(true).open(path).expect("a file");
        file.write_all(format!("{mutant}\n").as_bytes()).expect("written");
    }
    *ACTIVE == Some(mutant)
}
