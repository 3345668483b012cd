//! Points in time on Redis' clock, and the forms in which callers write them.

use jiff::{
    SignedDuration,
    civil::DateTime,
    fmt::temporal::{Pieces, PiecesOffset},
};
use serde::{Serialize, Serializer};
use tokio::time::Instant;

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// Largest number of milliseconds that a Lua number holds exactly: 2^53 - 1.
pub const MAX_MILLIS: u64 = (1 << 53) - 1;

/// The first time that a number of milliseconds may name, but for 0: a smaller one can only be seconds. March 1973.
pub const MIN_MILLIS: u64 = 100_000_000_000;

/// Longest delay in milliseconds, 142,000 years: added to any clock it stays within `MAX_MILLIS`.
pub const MAX_DELAY_MILLIS: u64 = 1 << 52;

/// Milliseconds since the Unix epoch on Redis' clock, within `0..2^53`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct UnixMillis(u64);

impl UnixMillis {
    /// `None` when `millis` is 2^53 or more, which a Lua number cannot hold exactly.
    pub fn new(millis: u64) -> Option<Self> {
        (millis <= MAX_MILLIS).then_some(Self(millis))
    }

    pub fn get(self) -> u64 {
        self.0
    }

    /// RFC 3339 in UTC with milliseconds, as replies show it.
    pub fn to_rfc3339(self) -> String {
        let since = SignedDuration::from_millis(i64::try_from(self.0).expect("below 2^53"));
        match EPOCH.checked_add(since) {
            Ok(at) => format!("{at:.3}Z"),
            // Years past 9999 have no RFC 3339 form.
            Err(_) => self.0.to_string(),
        }
    }
}

/// The form in replies.
impl Serialize for UnixMillis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_rfc3339())
    }
}

/// When a message is due, in the producer's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Milliseconds after Redis accepts it, at most `MAX_DELAY_MILLIS`.
    After(u64),
    At(UnixMillis),
}

impl Due {
    pub const NOW: Due = Due::After(0);

    /// A delay: whole milliseconds (`"1500"`) or humantime (`"5m"`, `"1h 30m"`).
    ///
    /// # Errors
    /// When it is neither, or more than `MAX_DELAY_MILLIS`.
    pub fn parse_delay(text: &str) -> Result<Self, String> {
        let millis = match text.parse::<u64>() {
            Ok(millis) => u128::from(millis),
            Err(_) => humantime::parse_duration(text)
                .map_err(|error| format!("`{text}` is neither milliseconds nor a duration such as `5m`: {error}"))?
                .as_millis(),
        };
        match u64::try_from(millis) {
            Ok(millis) if millis <= MAX_DELAY_MILLIS => Ok(Due::After(millis)),
            _ => Err(format!("`{text}` is too long: at most {MAX_DELAY_MILLIS} ms")),
        }
    }

    /// A due time: whole milliseconds since the epoch, or RFC 3339 with an offset.
    ///
    /// # Errors
    /// See `parse_instant`.
    pub fn parse_deliver_at(text: &str) -> Result<Self, String> {
        parse_instant(text).map(Due::At)
    }
}

/// Whole milliseconds since the epoch, or RFC 3339 with an offset.
///
/// # Errors
/// When it is neither, before 1970, 2^53 ms or more, or a number that can only be seconds.
pub fn parse_instant(text: &str) -> Result<UnixMillis, String> {
    let millis = if let Ok(millis) = text.parse::<u64>() {
        if is_seconds(millis) {
            return Err(format!("`{text}` is in the year 1970 to 1973: seconds? use milliseconds"));
        }
        Some(millis)
    } else {
        let since = since_epoch(text).ok_or_else(|| {
            format!("`{text}` is neither epoch milliseconds nor an RFC 3339 time such as `2026-11-21T09:30:00Z`")
        })?;
        // Rounded up: never early.
        u64::try_from((since.as_nanos() + 999_999).div_euclid(1_000_000)).ok()
    };
    millis.and_then(UnixMillis::new).ok_or_else(|| format!("`{text}` lies outside 1970 .. 2^53 ms"))
}

/// Of an RFC 3339 time with an offset. Not by `jiff::Timestamp`, which ends a day before the year 9999 does.
fn since_epoch(text: &str) -> Option<SignedDuration> {
    let pieces = Pieces::parse(text).ok()?;
    let offset = match pieces.offset()? {
        PiecesOffset::Numeric(numeric) => numeric.offset().seconds(),
        _ => 0,
    };
    let local = pieces.date().to_datetime(pieces.time()?).duration_since(EPOCH);
    Some(local - SignedDuration::from_secs(offset.into()))
}

/// Whether a number that should be milliseconds since the epoch can only be seconds.
pub fn is_seconds(millis: u64) -> bool {
    (1..MIN_MILLIS).contains(&millis)
}

/// Redis' clock of one reply, extrapolated by this machine's monotonic clock.
///
/// `taken` is when the command was sent. So the extrapolated clock is at most one round trip ahead of Redis, and lateness
/// is never underestimated.
#[derive(Clone, Copy, Debug)]
pub struct ServerClock {
    /// Microseconds since the Unix epoch.
    pub micros: u64,
    pub taken: Instant,
}

impl ServerClock {
    /// Microseconds since the Unix epoch at `instant`.
    pub fn at(&self, instant: Instant) -> u64 {
        let elapsed = instant.saturating_duration_since(self.taken).as_micros();
        self.micros + u64::try_from(elapsed).unwrap_or(u64::MAX - self.micros)
    }

    /// The same in milliseconds, also for what was before the reading.
    pub fn millis_at(&self, instant: Instant) -> UnixMillis {
        let before = u64::try_from(self.taken.saturating_duration_since(instant).as_micros()).unwrap_or(u64::MAX);
        let micros = if before > 0 { self.micros.saturating_sub(before) } else { self.at(instant) };
        UnixMillis((micros / 1000).min(MAX_MILLIS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reading_dates_what_was_before_and_after_it() {
        let clock = ServerClock { micros: 10_000_000, taken: Instant::now() };
        let second = std::time::Duration::from_secs(1);
        assert_eq!(clock.millis_at(clock.taken + second).get(), 11_000);
        assert_eq!(clock.millis_at(clock.taken - second).get(), 9_000);
        assert_eq!(clock.millis_at(clock.taken).get(), 10_000);
    }

    #[test]
    fn delays_are_milliseconds_or_humantime() {
        assert_eq!(Due::parse_delay("1500"), Ok(Due::After(1500)));
        assert_eq!(Due::parse_delay("5m"), Ok(Due::After(300_000)));
        assert_eq!(Due::parse_delay("1h 30m"), Ok(Due::After(5_400_000)));
        for bad in ["", "-1", "nan", "1e400", "4503599627370497", "soon", "0x10", "inf"] {
            assert!(Due::parse_delay(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn replies_show_times_up_to_the_year_9999() {
        let shown = |millis| UnixMillis::new(millis).unwrap().to_rfc3339();
        assert_eq!(shown(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(shown(253_402_300_799_999), "9999-12-31T23:59:59.999Z");
        assert_eq!(shown(253_402_300_800_000), "253402300800000");
    }

    #[test]
    fn due_times_are_epoch_milliseconds_or_rfc_3339_with_an_offset() {
        let at = |millis| Ok(Due::At(UnixMillis::new(millis).unwrap()));
        assert_eq!(Due::parse_deliver_at("1700000000000"), at(1_700_000_000_000));
        assert_eq!(Due::parse_deliver_at("1970-01-01T01:00:00.5+01:00"), at(500));
        assert_eq!(Due::parse_deliver_at("1970-01-01T00:00:00.0000001Z"), at(1), "rounded up");
        assert_eq!(Due::parse_deliver_at("9999-12-31T23:59:59Z"), at(253_402_300_799_000));
        assert_eq!(Due::parse_deliver_at("9999-12-31T23:59:59-01:00"), at(253_402_304_399_000));
        for bad in [
            "",
            "-1",
            "nan",
            "1e400",
            "9223372036854775808",
            "1969-12-31T23:59:59Z",
            "2026-11-21",
            "1700000000",
            "1",
            "2026-11-21T09:30:00",
            "10000-01-01T00:00:00Z",
        ] {
            assert!(Due::parse_deliver_at(bad).is_err(), "{bad}");
        }
    }
}
