//! The options that select messages.

use std::time::{Duration, SystemTime};

use clap::Args;
use serde_json::{Map, Value};

use crate::time::UnixMillis;

#[derive(Args, Clone, Default)]
pub struct Filter {
    /// Why they are dead: rejected, attempts, expired, crash, orphan, undecodable or invalid
    #[arg(long)]
    reason: Option<String>,
    /// A part of the last error; case matters
    #[arg(long, value_name = "TEXT")]
    contains: Option<String>,
    /// From this time on: RFC 3339, milliseconds since 1970, or a duration before now such as `2h`
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Before this time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
}

impl Filter {
    /// Names and values as the API has them.
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        #[expect(clippy::disallowed_methods, reason = "`2h` is before the time of the operator's own clock")]
        let now = SystemTime::now();
        let at = |text: &String| time(text, now);
        let fields = [
            ("reason", self.reason.clone()),
            ("contains", self.contains.clone()),
            ("since", self.since.as_ref().map(at)),
            ("until", self.until.as_ref().map(at)),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// As the body of a bulk call; empty for a filter that selects nothing.
    pub fn body(&self) -> Map<String, Value> {
        self.fields().into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect()
    }
}

/// A duration becomes the time so long before `now`; the API reads all else.
fn time(text: &str, now: SystemTime) -> String {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let ago = humantime::parse_duration(text).ok().filter(|_| !is_number);
    let at = ago.and_then(|ago: Duration| now.checked_sub(ago)?.duration_since(SystemTime::UNIX_EPOCH).ok());
    let at = at.and_then(|at| UnixMillis::new(u64::try_from(at.as_millis()).ok()?));
    at.map_or_else(|| text.to_owned(), UnixMillis::to_rfc3339)
}

#[test]
fn a_duration_is_before_now() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_hours(500_000);
    assert_eq!(time("2h", now), "2027-01-15T06:00:00.000Z");
    assert_eq!(time("1799999999000", now), "1799999999000");
    assert_eq!(time("2026-01-01T00:00:00Z", now), "2026-01-01T00:00:00Z");
    assert_eq!(time("yesterday", now), "yesterday");
}
