//! Attempts that failed: the last ones are kept with their message (lua/include/failures.lua).

use std::{fmt, sync::Arc, time::Duration};

use serde::Serialize;

use crate::time::UnixMillis;

/// Maximum bytes of the error of an attempt: a cause and the beginning of an HTTP reply.
pub const MAX_ATTEMPT_ERROR_BYTES: usize = 200;

/// An attempt that failed now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    pub duration: Duration,
    /// `Outcome::kind`.
    pub outcome: &'static str,
    /// Status of an HTTP endpoint.
    pub status: Option<u16>,
    /// The instance that made the attempt; without spaces.
    pub instance: Arc<str>,
    /// Shortened to `MAX_ATTEMPT_ERROR_BYTES` when it is stored.
    pub error: String,
}

/// The stored form; the script puts the time of the end in front of it.
impl fmt::Display for FailedAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { duration, outcome, status, instance, error } = self;
        let status = status.map_or_else(|| "-".to_owned(), |status| status.to_string());
        let error = error[..error.floor_char_boundary(MAX_ATTEMPT_ERROR_BYTES)].replace('\0', " ");
        write!(f, "{} {outcome} {status} {instance} {error}", duration.as_millis())
    }
}

/// An attempt that failed earlier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PastAttempt {
    /// Its end.
    pub at: UnixMillis,
    pub duration_ms: u64,
    pub outcome: String,
    /// Status of an HTTP endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    pub instance: String,
    pub error: String,
}

impl PastAttempt {
    /// Parses a stored attempt. `None` if it was not written by punctual.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let [at, duration, outcome, status, instance, error] = text.splitn(6, ' ').collect::<Vec<_>>()[..] else {
            return None;
        };
        Some(Self {
            at: UnixMillis::new(at.parse().ok()?)?,
            duration_ms: duration.parse().ok()?,
            outcome: outcome.to_owned(),
            status: status.parse().ok(),
            instance: instance.to_owned(),
            error: error.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_stored_in_at_most_300_bytes_and_read_again() {
        let error = format!("HTTP 500: \0{}", "é".repeat(200));
        let attempt = FailedAttempt {
            duration: Duration::from_micros(12_900),
            outcome: "unavailable",
            status: Some(500),
            instance: "some-host:4711".into(),
            error,
        };
        let stored = format!("1700000000000 {attempt}");
        assert!(stored.len() <= 300 && !stored.contains('\0'), "{}", stored.len());
        let past = PastAttempt::parse(&stored).expect("it is one");
        assert_eq!((past.at.get(), past.duration_ms, &*past.outcome), (1_700_000_000_000, 12, "unavailable"));
        assert_eq!((past.status, &*past.instance), (Some(500), "some-host:4711"));
        assert_eq!(past.error, format!("HTTP 500:  {}", "é".repeat(94)));
        let unknown = FailedAttempt { status: None, error: String::new(), ..attempt };
        let past = PastAttempt::parse(&format!("1 {unknown}")).expect("it is one");
        assert_eq!((past.status, &*past.error), (None, ""));
        assert_eq!(PastAttempt::parse("1 2"), None);
    }
}
