//! How long tests run: a short form by default, the long one with `tests/run.sh --full`.

use std::{env, time::Duration};

/// Set to 1 by `tests/run.sh --full`.
const FULL: &str = "PUNCTUAL_TEST_FULL";

pub fn full() -> bool {
    env::var(FULL).is_ok_and(|value| value == "1")
}

/// The first value in the plain run, the second with `--full`.
pub fn rounds<T>(plain: T, full: T) -> T {
    if self::full() { full } else { plain }
}

/// As `rounds`, in seconds.
pub fn seconds(plain: u64, full: u64) -> Duration {
    Duration::from_secs(rounds(plain, full))
}
