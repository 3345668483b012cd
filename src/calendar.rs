//! Weekly windows of a route, in time zones.
//!
//! A window is open while the clock on the wall of its zone shows a time in it. So on the day of a clock change, an hour
//! that does not exist is missing, and an hour that exists twice is open twice.

use std::collections::BTreeSet;

use jiff::{
    Timestamp, ToSpan, Zoned,
    civil::{Date, DateTime},
    tz::{TimeZone, db},
};

/// Minutes of a day.
pub const DAY: u16 = 24 * 60;

/// Days before a moment in which the start of its span is searched.
const BEFORE: i64 = 8;

/// Days after a moment in which the end of its span is searched: a clock change can skip the only window of a week.
const AFTER: i64 = 15;

/// An open time of a week.
#[derive(Clone, Debug)]
pub struct Window {
    /// Whether it begins on the day, from Monday on.
    pub days: [bool; 7],
    /// First minute of the day.
    pub from: u16,
    /// First minute of the day after it, at most `DAY`. If it is not after `from`, it is of the next day.
    pub to: u16,
    pub zone: TimeZone,
}

/// The windows of a route: it is open while one of them is.
#[derive(Clone, Debug)]
pub struct Calendar(Vec<Window>);

/// A time in which a route is open or closed throughout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub open: bool,
    /// The opening or closing, in milliseconds since the epoch. `None`: more than a week ago, if ever.
    pub since: Option<u64>,
    /// The next closing or opening, in milliseconds since the epoch. `None`: not within two weeks, if ever.
    pub until: Option<u64>,
}

/// The time zone of an IANA name, from the bundled database.
///
/// # Errors
/// The error text, with a similar name if there is one.
pub fn zone(text: &str) -> Result<TimeZone, String> {
    // `Factory` is the zone of a computer that was not set up.
    if let Ok(zone) = TimeZone::get(text)
        && !zone.is_unknown()
        && !text.eq_ignore_ascii_case("Factory")
    {
        return Ok(zone);
    }
    let near = db().available().map(|name| (strsim::osa_distance(text, name.as_str()), name.to_string()));
    let hint = match near.min() {
        Some((slips, name)) if slips * 3 <= text.len() => format!(": did you mean `{name}`?"),
        _ => ", such as Europe/Berlin".to_owned(),
    };
    Err(format!("`{}` is not the IANA name of a time zone{hint}", text.escape_debug()))
}

impl Window {
    fn is_open(&self, at: DateTime) -> bool {
        let minute = u16::try_from(i32::from(at.hour()) * 60 + i32::from(at.minute())).expect("below a day");
        let today = usize::try_from(at.weekday().to_monday_zero_offset()).expect("below 7");
        let begins = |day: usize| self.days[day % 7];
        if self.from < self.to {
            begins(today) && (self.from..self.to).contains(&minute)
        } else {
            (begins(today) && minute >= self.from) || (begins(today + 6) && minute < self.to)
        }
    }

    /// Every moment within some days of `date` at which the window can open or close.
    fn bounds(&self, date: Date) -> impl Iterator<Item = Timestamp> {
        let days = (-BEFORE..=AFTER).filter_map(move |day| date.checked_add(day.days()).ok());
        let times = days.flat_map(|day| {
            [self.from, self.to].map(|minute| day.at(0, 0, 0, 0).checked_add(i64::from(minute).minutes()).ok())
        });
        // Both times of an hour that exists twice.
        times.flatten().flat_map(|time| {
            let found = self.zone.to_ambiguous_timestamp(time);
            [found.earlier(), found.later()].into_iter().flatten()
        })
    }
}

impl Calendar {
    /// `None` without windows.
    pub fn new(windows: Vec<Window>) -> Option<Self> {
        (!windows.is_empty()).then_some(Self(windows))
    }

    /// The span at `millis` since the epoch.
    pub fn at(&self, millis: u64) -> Span {
        let now = timestamp(millis);
        let open = self.is_open(now);
        let (first, last) = (now.saturating_sub_days(BEFORE), now.saturating_sub_days(-AFTER));
        let mut bounds = BTreeSet::new();
        for window in &self.0 {
            bounds.extend(window.bounds(now.to_zoned(window.zone.clone()).date()));
            // A clock change can open or close a window, too.
            let changes = window.zone.following(first).map(|change| change.timestamp());
            bounds.extend(changes.take_while(|change| *change <= last));
        }
        let mut before = bounds.range(..=now).rev();
        let mut since = None;
        let reached = before.find(|bound| {
            let same = self.is_open(**bound) == open;
            since = if same { Some(**bound) } else { since };
            !same
        });
        let until = bounds.range(now..).find(|bound| self.is_open(**bound) != open);
        Span { open, since: since.filter(|_| reached.is_some()).map(millis_of), until: until.copied().map(millis_of) }
    }

    /// The next openings after `millis` since the epoch, each with its closing, in the zone of the first window. The first
    /// one is in the past if the route is open. Empty if nothing opens or closes.
    pub fn next_openings(&self, millis: u64, count: usize) -> Vec<[Zoned; 2]> {
        let mut found = Vec::new();
        let mut span = self.at(millis);
        while found.len() < count
            && let Some(until) = span.until
        {
            if span.open {
                let opened = span.since.unwrap_or(millis);
                found.push([opened, until].map(|at| timestamp(at).to_zoned(self.0[0].zone.clone())));
            }
            span = self.at(until);
        }
        found
    }

    fn is_open(&self, at: Timestamp) -> bool {
        self.0.iter().any(|window| window.is_open(window.zone.to_datetime(at)))
    }
}

/// Times beyond jiff's range, after the year 9999, are its last one.
fn timestamp(millis: u64) -> Timestamp {
    i64::try_from(millis).ok().and_then(|millis| Timestamp::from_millisecond(millis).ok()).unwrap_or(Timestamp::MAX)
}

fn millis_of(at: Timestamp) -> u64 {
    u64::try_from(at.as_millisecond()).unwrap_or(0)
}

trait Days {
    fn saturating_sub_days(self, days: i64) -> Self;
}

impl Days for Timestamp {
    fn saturating_sub_days(self, days: i64) -> Self {
        self.checked_sub((days * 24).hours()).unwrap_or(if days > 0 { Self::MIN } else { Self::MAX })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEEKDAYS: [bool; 7] = [true, true, true, true, true, false, false];

    fn calendar(days: [bool; 7], from: u16, to: u16, zone: &str) -> Calendar {
        let zone = TimeZone::get(zone).expect("a zone");
        Calendar::new(vec![Window { days, from, to, zone }]).expect("a window")
    }

    fn millis(text: &str) -> u64 {
        millis_of(text.parse::<Timestamp>().expect("a time"))
    }

    /// Whether it is open, since when and until when.
    fn at(calendar: &Calendar, text: &str) -> (bool, String, String) {
        let Span { open, since, until } = calendar.at(millis(text));
        let text = |at: Option<u64>| at.map_or_else(|| "never".to_owned(), |at| timestamp(at).to_string());
        (open, text(since), text(until))
    }

    fn span(open: bool, since: &str, until: &str) -> (bool, String, String) {
        (open, since.to_owned(), until.to_owned())
    }

    #[test]
    fn a_working_day_opens_and_closes_in_its_zone() {
        let berlin = calendar(WEEKDAYS, 8 * 60, 20 * 60, "Europe/Berlin");
        let monday = span(true, "2026-11-23T07:00:00Z", "2026-11-23T19:00:00Z");
        assert_eq!(at(&berlin, "2026-11-23T07:00:00Z"), monday);
        assert_eq!(at(&berlin, "2026-11-23T18:59:59.999Z"), monday);
        let night = span(false, "2026-11-23T19:00:00Z", "2026-11-24T07:00:00Z");
        assert_eq!(at(&berlin, "2026-11-23T19:00:00Z"), night);
        let weekend = span(false, "2026-11-27T19:00:00Z", "2026-11-30T07:00:00Z");
        assert_eq!(at(&berlin, "2026-11-29T12:00:00Z"), weekend);
    }

    #[test]
    fn a_window_across_midnight_is_of_the_day_on_which_it_begins() {
        let friday = [false, false, false, false, true, false, false];
        let night = calendar(friday, 22 * 60, 6 * 60, "UTC");
        let open = span(true, "2026-11-27T22:00:00Z", "2026-11-28T06:00:00Z");
        assert_eq!(at(&night, "2026-11-28T05:59:00Z"), open);
        assert!(!at(&night, "2026-11-27T05:00:00Z").0);
        let until_midnight = calendar([true; 7], 22 * 60, DAY, "UTC");
        assert_eq!(at(&until_midnight, "2026-11-27T23:00:00Z").2, "2026-11-28T00:00:00Z");
    }

    #[test]
    fn a_clock_change_skips_and_repeats_hours() {
        // 29 March 2026: 02:00 is 03:00. 25 October: 03:00 is 02:00.
        let early = calendar([true; 7], 150, 210, "Europe/Berlin");
        assert_eq!(at(&early, "2026-03-29T01:10:00Z"), span(true, "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"));
        assert_eq!(at(&early, "2026-10-25T00:40:00Z"), span(true, "2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z"));
        assert_eq!(at(&early, "2026-10-25T01:10:00Z"), span(false, "2026-10-25T01:00:00Z", "2026-10-25T01:30:00Z"));
        assert_eq!(at(&early, "2026-10-25T01:40:00Z"), span(true, "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"));
        let sunday = [false, false, false, false, false, false, true];
        let skipped = calendar(sunday, 120, 180, "Europe/Berlin");
        assert_eq!(at(&skipped, "2026-03-25T00:00:00Z").2, "2026-04-05T00:00:00Z", "a week is left out");
    }

    #[test]
    fn one_of_several_windows_is_enough_and_all_of_the_time_is_a_window() {
        let zone = TimeZone::UTC;
        let window = |from, to| Window { days: [true; 7], from, to, zone: zone.clone() };
        let both = Calendar::new(vec![window(480, 720), window(720, 1080)]).expect("windows");
        assert_eq!(at(&both, "2026-11-23T12:00:00Z"), span(true, "2026-11-23T08:00:00Z", "2026-11-23T18:00:00Z"));
        let always = Calendar::new(vec![window(0, DAY)]).expect("a window");
        assert_eq!(at(&always, "2026-11-23T12:00:00Z"), span(true, "never", "never"));
        assert!(always.at(crate::time::LAST_MILLIS).open);
    }

    /// tests/data/windows.txt was made by Python, minute by minute.
    #[test]
    fn openings_over_400_days_are_those_of_another_program() {
        let table =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/windows.txt")).expect("the table");
        let mut changes = 0;
        for line in table.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split(' ');
            let zone = words.next().expect("a zone");
            let mut days = [false; 7];
            for day in words.next().expect("days").split(',') {
                days[day.parse::<usize>().expect("a day")] = true;
            }
            let mut number = || words.next().map(|word| word.parse::<u64>().expect("a number"));
            let [from, to] =
                [number(), number()].map(|minute| u16::try_from(minute.expect("a time")).expect("a minute"));
            let mut open = number() == Some(1);
            let calendar = calendar(days, from, to, zone);
            let mut at = millis("2026-01-01T00:00:00Z");
            while let Some(minutes) = number() {
                let until = at + minutes * 60_000;
                for moment in [at, at + minutes * 30_000, until - 1] {
                    let span = calendar.at(moment);
                    assert_eq!((span.open, span.until), (open, Some(until)), "{zone} at {}", timestamp(moment));
                }
                (at, open) = (until, !open);
                changes += 1;
            }
        }
        assert!(changes > 2000, "{changes}");
    }
}
