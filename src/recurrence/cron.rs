//! Cron expressions.
//!
//! An occurrence is a time that the clock on the wall shows. If a clock change skips it, there is none. If the clock
//! shows it twice, and the field of the hours names hours, the first one counts; with `*` both count, because such an
//! expression follows elapsed time.

use croner::parser::{CronParser, Seconds, Year};
use jiff::{Timestamp, Zoned, tz::TimeZone};

/// Names in place of five fields.
const NAMES: [(&str, &str); 7] = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
];

/// Steps over times that do not count. A clock change repeats three hours at most: 10,800 seconds.
const MAX_PASSED: usize = 20_000;

#[derive(Clone, Debug)]
pub struct Cron {
    expression: croner::Cron,
    zone: TimeZone,
    /// Whether the hours are named.
    fixed_hours: bool,
}

impl Cron {
    /// Parses five fields (minute, hour, day of month, month, day of week), six with seconds first, or a name.
    pub fn parse(text: &str, zone: TimeZone) -> Result<Self, String> {
        let text = text.trim();
        let fields = NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map_or(text, |(_, fields)| fields);
        let shown = text.escape_debug();
        if fields.starts_with('@') {
            let names: Vec<_> = NAMES.iter().map(|(name, _)| *name).collect();
            return Err(format!("`{shown}` is none of {}", names.join(", ")));
        }
        let parts: Vec<&str> = fields.split_whitespace().collect();
        if !matches!(parts.len(), 5 | 6) {
            return Err(format!("`{shown}` has {} fields: five, or six with seconds first", parts.len()));
        }
        let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
        let expression = parser.parse(fields).map_err(|error| format!("`{shown}` is no cron expression: {error}"))?;
        Ok(Self { expression, zone, fixed_hours: !parts[parts.len() - 4].contains('*') })
    }

    /// The first occurrence after `after`, in milliseconds since the epoch.
    pub fn next(&self, after: u64) -> Option<u64> {
        self.search(after, |from| self.expression.find_next_occurrence(from, false).ok())
    }

    /// The last occurrence before `before`.
    pub fn previous(&self, before: u64) -> Option<u64> {
        self.search(before, |from| self.expression.find_previous_occurrence(from, false).ok())
    }

    fn search(&self, from: u64, step: impl Fn(&Zoned) -> Option<Zoned>) -> Option<u64> {
        let mut at = Timestamp::from_millisecond(i64::try_from(from).ok()?).ok()?.to_zoned(self.zone.clone());
        for _ in 0..MAX_PASSED {
            at = step(&at)?;
            if self.counts(&at) {
                return u64::try_from(at.timestamp().as_millisecond()).ok();
            }
        }
        None
    }

    fn counts(&self, at: &Zoned) -> bool {
        let is_shown = self.expression.is_time_matching(at).unwrap_or(false);
        let is_second = || {
            let both = self.zone.to_ambiguous_timestamp(at.datetime());
            both.is_ambiguous() && both.earlier().is_ok_and(|first| first < at.timestamp())
        };
        is_shown && !(self.fixed_hours && is_second())
    }

    pub fn words(&self) -> String {
        self.expression.describe().trim_end_matches('.').to_owned()
    }
}
