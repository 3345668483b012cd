//! The times of a schedule: a cron expression or an interval, and what happens to occurrences that were missed.

mod cron;
mod plan;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::{Timestamp, Zoned, tz::TimeZone};
use serde::{Deserialize, Serialize};

use self::cron::Cron;
pub use self::plan::{Plan, Turn};
use crate::calendar::zone;

/// Minimum `every`, in milliseconds: a cron expression has no shorter interval either.
const MIN_EVERY: u64 = 1000;

/// Maximum `every`, in milliseconds: 100 years.
const MAX_EVERY: u64 = 100 * 8766 * 3_600_000;

/// Maximum `missed: { all: n }`: a schedule has one message at a time, so that more would delay the present.
const MAX_CAUGHT_UP: u16 = 1000;

/// Occurrences between which the shortest interval of a cron expression is searched.
const COMPARED: usize = 400;

/// The rule for occurrences that could not be sent in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// None of them is sent.
    Skip,
    /// The last one is sent.
    #[default]
    Last,
    /// The last ones are sent, this many at most.
    All(u16),
}

/// The times of a schedule as they are stored. Times and durations are milliseconds; times since the epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
    /// IANA name; `None`: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// No occurrence is before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<u64>,
    /// All occurrences are before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<u64>,
    /// Each occurrence is sent up to this much after its time.
    #[serde(default)]
    pub jitter: u64,
    #[serde(default)]
    pub missed: Missed,
}

/// Why a rule is refused: the name of the field, and the error text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    pub field: &'static str,
    pub text: String,
}

#[derive(Clone, Debug)]
enum Times {
    Cron(Box<Cron>),
    Every(u64),
}

/// A checked rule.
#[derive(Clone, Debug)]
pub struct Timetable {
    times: Times,
    starts_at: u64,
    ends_at: u64,
    jitter: u64,
    missed: Missed,
}

impl Rule {
    /// The timetable of a rule that was checked when it was set.
    ///
    /// # Errors
    /// The first mistake.
    pub fn timetable(&self) -> Result<Timetable, RuleError> {
        let refuse = |field, text: String| Err(RuleError { field, text });
        let (starts_at, ends_at) = (self.starts_at.unwrap_or(0), self.ends_at.unwrap_or(u64::MAX));
        let zone = match &self.time_zone {
            None => TimeZone::UTC,
            Some(name) => match zone(name) {
                Ok(zone) => zone,
                Err(text) => return refuse("time_zone", text),
            },
        };
        let times = match (&self.cron, self.every) {
            (Some(_), Some(_)) => return refuse("every", "is a second rule: set `cron` or `every`".into()),
            (None, None) => return refuse("cron", "is missing: set `cron` or `every`".into()),
            (Some(text), None) => match Cron::parse(text, zone) {
                Ok(cron) => Times::Cron(Box::new(cron)),
                Err(text) => return refuse("cron", text),
            },
            (None, Some(every)) if !(MIN_EVERY..=MAX_EVERY).contains(&every) => {
                return refuse("every", "is not within 1s .. 100years".into());
            }
            (None, Some(_)) if self.time_zone.is_some() => {
                return refuse("time_zone", "is of no use with `every`, which counts elapsed time".into());
            }
            (None, Some(every)) => Times::Every(every),
        };
        if ends_at <= starts_at {
            return refuse("ends_at", "is not after `starts_at`".into());
        }
        if let Missed::All(most) = self.missed
            && !(1..=MAX_CAUGHT_UP).contains(&most)
        {
            return refuse("missed", format!("`all` is not within 1 .. {MAX_CAUGHT_UP}"));
        }
        Ok(Timetable { times, starts_at, ends_at, jitter: self.jitter, missed: self.missed })
    }

    /// The timetable of a new rule. `now`: milliseconds since the epoch.
    ///
    /// # Errors
    /// The first mistake, also those that only a look at the occurrences shows.
    pub fn check(&self, now: u64) -> Result<Timetable, RuleError> {
        let timetable = self.timetable()?;
        if timetable.next(now).is_none() {
            let (field, text) = match self.ends_at {
                Some(ends_at) if ends_at <= now => ("ends_at", "has passed"),
                Some(_) => ("ends_at", "is before the first occurrence"),
                None => ("cron", "never fires"),
            };
            return Err(RuleError { field, text: text.into() });
        }
        let shortest = timetable.shortest(now);
        if self.jitter > 0 && self.jitter >= shortest {
            let shown = humantime::format_duration(Duration::from_millis(shortest));
            return Err(RuleError {
                field: "jitter",
                text: format!("is not below {shown}, the shortest time between two occurrences"),
            });
        }
        Ok(timetable)
    }

    /// The next occurrences after `now`, in the zone of the rule.
    pub fn next_local(&self, now: u64, count: usize) -> Vec<Zoned> {
        let Ok(timetable) = self.timetable() else { return Vec::new() };
        let zone = self.time_zone.as_deref().map_or(Ok(TimeZone::UTC), zone).unwrap_or(TimeZone::UTC);
        let local = |at| Some(Timestamp::from_millisecond(i64::try_from(at).ok()?).ok()?.to_zoned(zone.clone()));
        timetable.following(now).take(count).filter_map(local).collect()
    }

    /// The times in words.
    pub fn words(&self) -> String {
        match (&self.cron, self.every) {
            (Some(text), _) => Cron::parse(text, TimeZone::UTC).map_or_else(|_| text.clone(), |cron| cron.words()),
            (None, Some(every)) => format!("Every {}", humantime::format_duration(Duration::from_millis(every))),
            (None, None) => String::new(),
        }
    }
}

impl Timetable {
    /// The first occurrence after `after`.
    pub fn next(&self, after: u64) -> Option<u64> {
        let next = match &self.times {
            Times::Every(every) => match after.checked_sub(self.starts_at) {
                None => self.starts_at,
                Some(since) => self.starts_at + (since / every + 1) * every,
            },
            Times::Cron(cron) => cron.next(after.max(self.starts_at.saturating_sub(1)))?,
        };
        (next < self.ends_at).then_some(next)
    }

    /// The next occurrences after `after`.
    pub fn following(&self, after: u64) -> impl Iterator<Item = u64> {
        std::iter::successors(self.next(after), |last| self.next(*last))
    }

    /// When an occurrence is sent. Each instance computes the same time.
    pub fn fires(&self, schedule: &str, occurrence: u64) -> u64 {
        if self.jitter == 0 {
            return occurrence;
        }
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(schedule.as_bytes());
        hasher.update(&occurrence.to_be_bytes());
        occurrence + u64::from(hasher.finalize()) % (self.jitter + 1)
    }

    fn shortest(&self, now: u64) -> u64 {
        let Times::Cron(_) = &self.times else {
            let Times::Every(every) = self.times else { return u64::MAX };
            return every;
        };
        let times: Vec<u64> = self.following(now).take(COMPARED).collect();
        times.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap_or(u64::MAX)
    }
}
