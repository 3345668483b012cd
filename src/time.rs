//! Times on the clock of Redis, and their forms in requests.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jiff::{
    SignedDuration,
    civil::DateTime,
    fmt::temporal::{Pieces, PiecesOffset},
};
use serde::{Serialize, Serializer};
use tokio::time::Instant;

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// Maximum number of milliseconds that a Lua number holds exactly: 2^53 - 1.
pub const MAX_MILLIS: u64 = (1 << 53) - 1;

/// Minimum valid time in milliseconds, except 0: March 1973. A smaller number can only be seconds.
pub const MIN_MILLIS: u64 = 100_000_000_000;

/// Maximum valid time in milliseconds: the end of the year 9999 at any offset. A larger number has another unit.
pub const LAST_MILLIS: u64 = 253_402_387_199_999;

/// Maximum delay in milliseconds: 7,900 years, so that no due time is after the year 9999. A larger number has another unit.
pub const MAX_DELAY_MILLIS: u64 = 249_305_040_000_000;

/// Maximum offset of a time in seconds, 23:59.
const MAX_OFFSET_SECONDS: i32 = (23 * 60 + 59) * 60;

/// Milliseconds since the Unix epoch on the clock of Redis, within `0..2^53`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct UnixMillis(u64);

impl UnixMillis {
    /// `None` if `millis` is 2^53 or more, which a Lua number cannot hold exactly.
    pub fn new(millis: u64) -> Option<Self> {
        (millis <= MAX_MILLIS).then_some(Self(millis))
    }

    pub fn get(self) -> u64 {
        self.0
    }

    /// RFC 3339 in UTC with milliseconds, the form of replies.
    pub fn to_rfc3339(self) -> String {
        let since = SignedDuration::from_millis(i64::try_from(self.0).expect("below 2^53"));
        match EPOCH.checked_add(since) {
            Ok(at) => format!("{at:.3}Z"),
            // Years after 9999 have no RFC 3339 form.
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

/// The time by which the development clock is ahead of this machine's clock, in microseconds; 0 in `serve`.
static AHEAD: AtomicU64 = AtomicU64::new(0);

/// Sets the time by which the development clock is ahead, in microseconds.
pub fn set_ahead(micros: u64) {
    AHEAD.store(micros, Ordering::Relaxed);
}

/// The time by which the development clock is ahead, in microseconds.
pub fn ahead() -> u64 {
    AHEAD.load(Ordering::Relaxed)
}

/// The clock of this machine, in `punctual dev` the development clock: for times that are signed, shown, or part of an
/// id. Due times are on the clock of Redis.
#[expect(clippy::disallowed_methods, reason = "the only reading of this clock")]
pub fn wall_clock() -> SystemTime {
    SystemTime::now() + Duration::from_micros(ahead())
}

/// `wall_clock` in milliseconds since the epoch.
pub fn wall_millis() -> UnixMillis {
    let since = wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMillis(u64::try_from(since.as_millis()).map_or(MAX_MILLIS, |millis| millis.min(MAX_MILLIS)))
}

/// The due time of a message, in the producer's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Milliseconds after Redis accepts it, at most `MAX_DELAY_MILLIS`.
    After(u64),
    At(UnixMillis),
}

impl Due {
    pub const NOW: Due = Due::After(0);

    /// Parses a delay: whole milliseconds (`"1500"`, also as `1500.0` or `1.5e3`) or humantime (`"5m"`, `"1h 30m"`).
    ///
    /// # Errors
    /// When the text is neither, or the delay exceeds `MAX_DELAY_MILLIS`.
    pub fn parse_delay(text: &str) -> Result<Self, String> {
        let millis = match number(text) {
            Some(number) => number.map(u128::from).map_err(|error| format!("`{text}` {error}"))?,
            None => humantime::parse_duration(text)
                .map_err(|error| format!("`{text}` is neither milliseconds nor a duration such as `5m`: {error}"))?
                .as_millis(),
        };
        match u64::try_from(millis) {
            Ok(millis) if millis <= MAX_DELAY_MILLIS => Ok(Due::After(millis)),
            _ => Err(format!("`{text}` is too long: at most 7,900 years, which are {MAX_DELAY_MILLIS} ms")),
        }
    }

    /// Parses a due time: whole milliseconds since the epoch, or RFC 3339 with an offset.
    ///
    /// # Errors
    /// Those of `parse_instant`.
    pub fn parse_deliver_at(text: &str) -> Result<Self, String> {
        parse_instant(text).map(Due::At)
    }
}

/// Parses whole milliseconds since the epoch, or RFC 3339 with an offset.
///
/// # Errors
/// When the text is neither, the time is before 1970, or `instant` refuses it.
pub fn parse_instant(text: &str) -> Result<UnixMillis, String> {
    let millis = match number(text) {
        Some(millis) => millis.and_then(instant),
        None => since_epoch(text).and_then(|since| {
            // Rounded up, so that no message is early.
            let millis = u64::try_from((since.as_nanos() + 999_999).div_euclid(1_000_000));
            millis.ok().and_then(UnixMillis::new).ok_or_else(|| "is before 1970".to_owned())
        }),
    };
    millis.map_err(|error| format!("`{text}` {error}"))
}

/// A time from a request, in milliseconds since the epoch.
///
/// # Errors
/// The error text, without the number: the time can only be in another unit.
pub fn instant(millis: u64) -> Result<UnixMillis, String> {
    if is_seconds(millis) {
        return Err("is in the year 1970 to 1973: seconds? use milliseconds".to_owned());
    }
    if millis > LAST_MILLIS {
        return Err("is beyond the year 9999: microseconds? use milliseconds".to_owned());
    }
    Ok(UnixMillis(millis))
}

/// Parses a whole number in any JSON form: `1000`, `1000.0`, `1e3`. `None` for other text.
///
/// # Errors
/// The error text, without the number: it is negative, too large, or has a fraction.
pub fn number(text: &str) -> Option<Result<u64, String>> {
    let (sign, rest) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (mantissa, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let unsigned = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    if !is_digits(whole) || !is_digits(fraction) || !is_digits(unsigned) {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(Ok(0));
    }
    if sign {
        return Some(Err("is negative".to_owned()));
    }
    let too_large = || Err("is too large".to_owned());
    // Number of zeros after the digits. An exponent that exceeds `i32` is never that of a valid number.
    let places = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    let zeros = match exponent.parse::<i32>() {
        Ok(exponent) => exponent.saturating_sub(places),
        Err(_) if exponent.starts_with('-') => i32::MIN,
        Err(_) => i32::MAX,
    };
    let bare = digits.trim_end_matches('0');
    let zeros = zeros.saturating_add(i32::try_from(digits.len() - bare.len()).unwrap_or(i32::MAX));
    if zeros < 0 {
        return Some(Err("has a fraction: use a whole number of milliseconds".to_owned()));
    }
    let power = u32::try_from(zeros).ok().and_then(|zeros| 10_u64.checked_pow(zeros));
    let value = power.and_then(|power| bare.parse::<u64>().ok()?.checked_mul(power));
    Some(value.map_or_else(too_large, Ok))
}

/// Parses an RFC 3339 time with an offset. `jiff::Timestamp` is not used, because its range ends a day before the end
/// of the year 9999.
fn since_epoch(text: &str) -> Result<SignedDuration, String> {
    let shape = "is neither epoch milliseconds nor an RFC 3339 time such as `2026-11-21T09:30:00Z`";
    let parsed = Pieces::parse(text).ok().and_then(|pieces| Some((pieces.offset()?, pieces.time()?, pieces.date())));
    let (offset, time, date) = parsed.ok_or(shape)?;
    let offset = match offset {
        PiecesOffset::Numeric(numeric) => numeric.offset().seconds(),
        _ => 0,
    };
    if offset.abs() > MAX_OFFSET_SECONDS {
        return Err("has an offset beyond 23:59".to_owned());
    }
    let local = date.to_datetime(time).duration_since(EPOCH) + SignedDuration::from_secs(i64::from(is_leap(text)));
    Ok(local - SignedDuration::from_secs(offset.into()))
}

/// Whether an RFC 3339 time has a leap second, which jiff reads as 59. The caller uses the next second, so that no
/// message is early.
fn is_leap(text: &str) -> bool {
    let time = text.split_once(['T', 't', ' ']).map_or("", |(_, time)| time);
    let digits: String = time.chars().take_while(|c| c.is_ascii_digit() || *c == ':').filter(|c| *c != ':').collect();
    digits.get(4..6) == Some("60")
}

/// Whether a number of milliseconds since the epoch can only be seconds.
pub fn is_seconds(millis: u64) -> bool {
    (1..MIN_MILLIS).contains(&millis)
}

/// The clock of Redis in one reply, extrapolated by this machine's monotonic clock.
///
/// `taken` is the time at which the command was sent. So the extrapolated clock is at most one round trip ahead of
/// Redis, and lateness is never underestimated.
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

    /// Milliseconds since the Unix epoch at `instant`, which can be before the reading.
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
        assert_eq!(Due::parse_delay("1500.0"), Ok(Due::After(1500)));
        assert_eq!(Due::parse_delay("1.5e3"), Ok(Due::After(1500)));
        assert_eq!(Due::parse_delay("249305040000000"), Ok(Due::After(MAX_DELAY_MILLIS)));
        for (bad, hint) in [
            ("", "neither"),
            ("-1", "negative"),
            ("-1.0", "negative"),
            ("1.5", "fraction"),
            ("1e-3", "fraction"),
            ("nan", "neither"),
            ("1e400", "too large"),
            ("1e99999999999", "too large"),
            ("1e-99999999999", "fraction"),
            ("249305040000001", "7,900 years"),
            ("20000y", "7,900 years"),
            ("soon", "neither"),
            ("0x10", "neither"),
            ("inf", "neither"),
            ("1.", "neither"),
            (".5", "neither"),
        ] {
            let error = Due::parse_delay(bad).expect_err(bad);
            assert!(error.contains(hint), "{bad}: {error}");
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
        assert_eq!(Due::parse_deliver_at("1.7e12"), at(1_700_000_000_000));
        assert_eq!(Due::parse_deliver_at("1700000000000.0"), at(1_700_000_000_000));
        assert_eq!(Due::parse_deliver_at("9999-12-31T23:59:59.999-23:59"), at(LAST_MILLIS - 60_000));
        assert_eq!(Due::parse_deliver_at("253402387199999"), at(LAST_MILLIS));
        for (bad, hint) in [
            ("", "neither"),
            ("-1", "negative"),
            ("nan", "neither"),
            ("1e400", "too large"),
            ("9223372036854775808", "9999"),
            ("1700000000000000", "microseconds?"),
            ("253402387200000", "9999"),
            ("1700000000000.5", "fraction"),
            ("1969-12-31T23:59:59Z", "before 1970"),
            ("2026-11-21", "neither"),
            ("1700000000", "seconds?"),
            ("1.7e9", "seconds?"),
            ("1", "seconds?"),
            ("2026-11-21T09:30:00", "neither"),
            ("10000-01-01T00:00:00Z", "neither"),
            ("2026-11-21T09:30:00+24:00", "offset"),
            ("2026-11-21T09:30:00-25:00", "offset"),
            ("2026-11-21T09:30:61Z", "neither"),
        ] {
            let error = Due::parse_deliver_at(bad).expect_err(bad);
            assert!(error.contains(hint), "{bad}: {error}");
        }
    }

    #[test]
    fn a_leap_second_is_the_next_second() {
        for (text, same) in [
            ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z"),
            ("2016-12-31T23:59:60.5Z", "2017-01-01T00:00:00.5Z"),
            ("2016-12-31t23:59:60z", "2017-01-01T00:00:00Z"),
            ("2017-01-01T00:59:60+01:00", "2017-01-01T00:00:00Z"),
            ("2016-12-31T20:59:60-03:00", "2017-01-01T00:00:00Z"),
        ] {
            assert_eq!(parse_instant(text), parse_instant(same), "{text}");
        }
    }
}
