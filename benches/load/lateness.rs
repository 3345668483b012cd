//! Lateness of messages.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// Microseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "Redis is on this machine and has the same clock")]
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Percentiles in ms of lateness in us, which is negative for messages that came early.
pub fn summary(mut micros: Vec<i64>) -> Value {
    micros.sort_unstable();
    let at = |percent: usize| {
        let place = (micros.len() * percent / 100).min(micros.len().saturating_sub(1));
        micros.get(place).map(|late| *late as f64 / 1000.0)
    };
    let early = micros.iter().filter(|late| **late < 0).count();
    json!({ "measured": micros.len(), "early": early, "p50_ms": at(50), "p90_ms": at(90), "p99_ms": at(99), "max_ms": at(100) })
}
