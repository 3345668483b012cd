//! Flows: rate, parallelism and order of the messages of a route that have the same key.

use std::{fmt, time::Duration};

use super::MessageId;

/// Units of time: name, and seconds.
const UNITS: [(&str, u64); 4] = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];

/// Maximum number of messages of a rate per unit of time.
const MAX_MESSAGES: u32 = 1_000_000;

/// Checks the key of a flow: 1 to 128 characters of `A-Za-z0-9._:~-`, as an id.
///
/// # Errors
/// When `text` is empty, too long or has another character.
pub fn check_flow(text: &str) -> Result<(), String> {
    MessageId::parse(text).map(drop).map_err(|error| error.replacen("an id", "a flow", 1))
}

/// The empty flow in a path, a query, an option and an argument of a script.
pub const EMPTY_FLOW: &str = "@";

/// Reads the key of a flow, or `EMPTY_FLOW`.
///
/// # Errors
/// Those of `check_flow`.
pub fn parse_flow(text: &str) -> Result<&str, String> {
    if text == EMPTY_FLOW {
        return Ok("");
    }
    check_flow(text).map_err(|error| format!("{error}; `{EMPTY_FLOW}` is the empty flow"))?;
    Ok(text)
}

/// The text that `parse_flow` reads.
pub fn shown_flow(flow: &str) -> &str {
    if flow.is_empty() { EMPTY_FLOW } else { flow }
}

/// How the messages of each key of a route leave. Exact over all instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLimits {
    /// `None`: any number.
    pub rate: Option<Rate>,
    /// How many leave at once after a pause; at least 1. Without a rate it has no effect.
    pub burst: u32,
    /// Maximum number in flight; at least 1. `None`: any number.
    pub parallel: Option<u32>,
    /// One after another: by due time, then by acceptance. With it `parallel` is 1.
    pub ordered: bool,
}

/// A number of messages per unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    messages: u32,
    /// Index in `UNITS`.
    unit: usize,
}

impl Rate {
    /// Reads `N/s`, `N/m`, `N/h` or `N/d`.
    ///
    /// # Errors
    /// For any other text, and for a number that is not within 1 and 1,000,000.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{}` is not a rate such as 100/s, with s, m, h or d", text.escape_debug());
        let (number, unit) = text.split_once('/').ok_or_else(wrong)?;
        let unit = UNITS.iter().position(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.then_some(number).ok_or_else(wrong)?;
        let messages = number.parse().ok().filter(|messages| (1..=MAX_MESSAGES).contains(messages));
        let messages = messages.ok_or_else(|| format!("`{number}` messages are not within 1 .. {MAX_MESSAGES}"))?;
        Ok(Self { messages, unit })
    }

    /// Time between two messages, in microseconds.
    pub fn interval(self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "at most 86,400,000,000")]
        let micros = (UNITS[self.unit].1 * 1_000_000) as f64;
        micros / f64::from(self.messages)
    }

    /// The messages of one second, at least 1: the burst unless one is set.
    pub fn burst(self) -> u32 {
        let second = u64::from(self.messages) / UNITS[self.unit].1;
        u32::try_from(second).unwrap_or(u32::MAX).max(1)
    }

    /// Time that `messages` take.
    pub fn time_of(self, messages: u64) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        Duration::try_from_secs_f64(self.interval() / 1e6 * messages as f64).unwrap_or(Duration::MAX)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.messages, UNITS[self.unit].0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_a_number_and_a_unit() {
        for (text, interval, burst) in [
            ("100/s", 1e4, 100),
            ("3/m", 2e7, 1),
            ("7200/h", 5e5, 2),
            ("1/d", 8.64e10, 1),
            ("1000000/s", 1.0, 1_000_000),
        ] {
            let rate = Rate::parse(text).unwrap();
            assert!((rate.interval() - interval).abs() < 1e-6 && rate.burst() == burst, "{text}");
            assert_eq!(rate.to_string(), text);
        }
        for text in ["", "100", "0/s", "1.5/s", "-1/s", "1/w", "1000001/s", "/s", "1/", "1 /s", "+1/s"] {
            assert!(Rate::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_flow_has_the_characters_of_an_id() {
        assert_eq!(check_flow("tenant:a~1"), Ok(()));
        assert!(check_flow("a b").unwrap_err().starts_with("a flow is 1 to 128"), "{:?}", check_flow("a b"));
    }

    #[test]
    fn the_empty_flow_has_a_name_and_others_are_shown_as_they_are() {
        for (flow, shown) in [("", "@"), ("tenant-7", "tenant-7")] {
            assert_eq!((shown_flow(flow), parse_flow(shown)), (shown, Ok(flow)));
        }
    }

    #[test]
    fn a_rate_says_how_long_messages_take() {
        let seconds = |rate: &str, messages| Rate::parse(rate).unwrap().time_of(messages).as_secs_f64();
        assert!((seconds("100/s", 250) - 2.5).abs() < 1e-9 && (seconds("2/m", 3) - 90.0).abs() < 1e-9);
        assert_eq!(Rate::parse("1/d").unwrap().time_of(u64::MAX), Duration::MAX);
    }
}
