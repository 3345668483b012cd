use std::collections::BTreeSet;

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

use super::*;

const DAY: u64 = 86_400_000;
/// 2026-01-01T00:00:00Z.
const START: u64 = 1_767_225_600_000;

fn millis(text: &str) -> u64 {
    text.parse::<Timestamp>().expect("RFC 3339").as_millisecond().try_into().expect("after 1970")
}

fn cron(text: &str, zone: &str) -> Rule {
    Rule { cron: Some(text.into()), time_zone: Some(zone.into()), ..Rule::default() }
}

fn every(every: u64, missed: Missed) -> Timetable {
    Rule { every: Some(every), missed, ..Rule::default() }.timetable().expect("valid")
}

/// The local times that an expression names, by other means than the crate: each field as a set.
struct Named {
    text: &'static str,
    minutes: &'static [i8],
    hours: &'static [i8],
    fixed_hours: bool,
    days: fn(DateTime) -> bool,
}

const ANY_HOUR: &[i8] = &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23];

const NAMED: [Named; 10] = [
    Named { text: "0 3 * * *", minutes: &[0], hours: &[3], fixed_hours: true, days: |_| true },
    Named { text: "30 2 * * *", minutes: &[30], hours: &[2], fixed_hours: true, days: |_| true },
    Named { text: "15 1 * * *", minutes: &[15], hours: &[1], fixed_hours: true, days: |_| true },
    Named { text: "*/15 * * * *", minutes: &[0, 15, 30, 45], hours: ANY_HOUR, fixed_hours: false, days: |_| true },
    Named { text: "30 1,2 * * *", minutes: &[30], hours: &[1, 2], fixed_hours: true, days: |_| true },
    Named { text: "*/20 2 * * *", minutes: &[0, 20, 40], hours: &[2], fixed_hours: true, days: |_| true },
    Named {
        text: "10 */2 * * *",
        minutes: &[10],
        hours: &[0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22],
        fixed_hours: false,
        days: |_| true,
    },
    Named {
        text: "@weekly",
        minutes: &[0],
        hours: &[0],
        fixed_hours: true,
        days: |at| at.weekday().to_sunday_zero_offset() == 0,
    },
    Named {
        text: "0 9 * * 1-5",
        minutes: &[0],
        hours: &[9],
        fixed_hours: true,
        days: |at| at.weekday().to_monday_zero_offset() < 5,
    },
    Named { text: "0 12 31 * *", minutes: &[0], hours: &[12], fixed_hours: true, days: |at| at.day() == 31 },
];

#[test]
fn four_hundred_days_in_six_zones_are_those_of_a_table() {
    let zones = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "America/Santiago"];
    for name in zones {
        let zone = TimeZone::get(name).expect("bundled");
        // Each five minutes: its time, and whether the clock showed it before.
        let mut shown = BTreeSet::new();
        let steps: Vec<(u64, DateTime, bool)> = (START..START + 400 * DAY)
            .step_by(300_000)
            .map(|at| {
                let local = zone.to_datetime(Timestamp::from_millisecond(i64::try_from(at).unwrap()).unwrap());
                (at, local, !shown.insert(local))
            })
            .collect();
        for named in &NAMED {
            let fits = |(at, local, is_second): &(u64, DateTime, bool)| {
                let fits = named.minutes.contains(&local.minute())
                    && named.hours.contains(&local.hour())
                    && (named.days)(*local)
                    && !(named.fixed_hours && *is_second);
                fits.then_some(*at)
            };
            let table: Vec<u64> = steps.iter().filter_map(fits).collect();
            let timetable = cron(named.text, name).timetable().expect("valid");
            let found: Vec<u64> = timetable.following(START - 1).take_while(|at| *at < START + 400 * DAY).collect();
            assert!(!table.is_empty());
            assert_eq!(found, table, "{} in {name}", named.text);
        }
    }
}

#[test]
fn on_the_days_of_a_clock_change_a_fixed_time_is_skipped_or_fires_once() {
    for (text, zone, after, expected) in [
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-30T00:30:00Z"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:29:59Z", "2026-10-25T00:30:00Z"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"),
        ("30 2 * * *", "America/New_York", "2026-03-07T12:00:00Z", "2026-03-09T06:30:00Z"),
        ("30 1 * * *", "America/New_York", "2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"),
        ("30 * * * *", "America/New_York", "2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z"),
    ] {
        let timetable = cron(text, zone).timetable().unwrap();
        assert_eq!(timetable.next(millis(after)), Some(millis(expected)), "{text} in {zone} after {after}");
    }
}

#[test]
fn an_interval_counts_from_its_start_so_that_instances_agree() {
    let plain = every(300_000, Missed::Last);
    assert_eq!(plain.next(START + 1), Some(START + 300_000));
    let rule =
        Rule { every: Some(300_000), starts_at: Some(START + 7), ends_at: Some(START + 600_007), ..Rule::default() };
    let times: Vec<_> = rule.timetable().unwrap().following(0).collect();
    assert_eq!(times, [START + 7, START + 300_007]);
}

#[test]
fn missed_occurrences_are_skipped_collapsed_or_caught_up() {
    let (minute, now) = (60_000, START + 3_600_000 + 20_000);
    let plan = |missed| every(minute, missed).plan(START, now);
    assert_eq!(plan(Missed::Skip), Plan { occurrence: Some(START + 61 * minute), missed: 60 });
    assert_eq!(plan(Missed::Last), Plan { occurrence: Some(START + 60 * minute), missed: 59 });
    assert_eq!(plan(Missed::All(10)), Plan { occurrence: Some(START + 51 * minute), missed: 50 });
    assert_eq!(plan(Missed::All(1000)), Plan { occurrence: Some(START + minute), missed: 0 });
    // Nothing was missed.
    assert_eq!(
        every(minute, Missed::Last).plan(START, START + 1),
        Plan { occurrence: Some(START + minute), missed: 0 }
    );
    // Years of seconds.
    let year = 365 * DAY;
    assert_eq!(every(1000, Missed::Last).plan(START, START + year).missed, year / 1000 - 1);
    let seconds = Rule { missed: Missed::All(2), ..cron("* * * * * *", "UTC") }.timetable().unwrap();
    let long = seconds.plan(START, START + DAY);
    assert_eq!(long, Plan { occurrence: Some(START + DAY - 1000), missed: 9998 });
}

#[test]
fn an_occurrence_is_sent_in_time_or_by_the_rule_for_missed_ones() {
    let minute = 60_000;
    let turn = |missed, planned, tried, late| every(minute, missed).turn("s", START, planned, tried, START + late);
    let next = |occurrence, missed| Turn::Plan(Plan { occurrence: Some(START + occurrence), missed });
    for missed in [Missed::Skip, Missed::Last, Missed::All(3)] {
        assert_eq!(turn(missed, START - minute, false, 10_000), Turn::Send, "{missed:?}");
        // Sent before, or chosen although it was late.
        assert_eq!(turn(missed, START - minute, true, 3_600_000), Turn::Send);
        assert_eq!(turn(missed, START + 1, false, 3_600_000), Turn::Send);
    }
    assert_eq!(turn(Missed::Skip, START - minute, false, 10_001), next(minute, 1));
    assert_eq!(turn(Missed::Last, START - minute, false, 10_001), Turn::Send);
    assert_eq!(turn(Missed::Last, START - minute, false, minute), next(minute, 1));
    assert_eq!(turn(Missed::All(3), START - minute, false, 2 * minute), Turn::Send);
    assert_eq!(turn(Missed::All(3), START - minute, false, 3 * minute), next(minute, 1));
    // Done: what follows is planned.
    assert_eq!(turn(Missed::Last, 0, false, 5), next(minute, 0));
}

#[test]
fn jitter_delays_by_less_than_it_says_and_equally_on_all_instances() {
    let rule = Rule { every: Some(60_000), jitter: 30_000, ..Rule::default() };
    let timetable = rule.check(START).unwrap();
    let delays: BTreeSet<u64> = timetable.following(START).take(100).map(|at| timetable.fires("s", at) - at).collect();
    assert!(delays.len() > 50 && *delays.last().unwrap() <= 30_000, "{delays:?}");
    let least = Rule { jitter: 1, ..rule.clone() }.check(START).unwrap();
    let delays: BTreeSet<u64> = least.following(START).take(100).map(|at| least.fires("s", at) - at).collect();
    assert_eq!(delays, BTreeSet::from([0, 1]));
    let at = timetable.next(START).unwrap();
    assert_eq!(timetable.fires("s", at), timetable.fires("s", at));
    assert_eq!(
        timetable.turn("s", at, START, false, at),
        if timetable.fires("s", at) == at { Turn::Send } else { Turn::Plan(Plan { occurrence: Some(at), missed: 0 }) }
    );
}

#[test]
fn mistakes_name_their_field() {
    let rule = |json: &str| serde_json::from_str::<Rule>(json).expect("a rule").check(START);
    for (json, field, text) in [
        ("{}", "cron", "is missing"),
        (r#"{"cron":"* * * * *","every":1000}"#, "every", "is a second rule"),
        (r#"{"every":999}"#, "every", "is not within 1s"),
        (r#"{"cron":"0 0 30 2 *"}"#, "cron", "never fires"),
        (r#"{"cron":"0 0 30 2"}"#, "cron", "has 4 fields"),
        (r#"{"cron":"0 0 30 2 * * *"}"#, "cron", "has 7 fields"),
        (r#"{"cron":"@reboot"}"#, "cron", "none of @hourly"),
        (r#"{"cron":"61 * * * *"}"#, "cron", "no cron expression"),
        (r#"{"cron":"* * * * *","time_zone":"Europe/Berlim"}"#, "time_zone", "did you mean `Europe/Berlin`"),
        (r#"{"every":1000,"time_zone":"Asia/Tokyo"}"#, "time_zone", "is of no use with `every`"),
        (r#"{"cron":"* * * * *","jitter":60000}"#, "jitter", "is not below 1m"),
        (r#"{"every":60000,"jitter":60000}"#, "jitter", "is not below 1m"),
        (r#"{"every":1000,"starts_at":10,"ends_at":10}"#, "ends_at", "is not after"),
        (r#"{"every":1000,"ends_at":1767225600000}"#, "ends_at", "has passed"),
        (r#"{"cron":"@yearly","ends_at":1767225700000}"#, "ends_at", "is before the first occurrence"),
        (r#"{"every":1000,"missed":{"all":0}}"#, "missed", "is not within 1"),
        (r#"{"every":1000,"missed":{"all":1001}}"#, "missed", "is not within 1"),
    ] {
        let error = rule(json).expect_err(json);
        assert!(error.field == field && error.text.contains(text), "{json}: {error:?}");
    }
    for json in [
        r#"{"cron":"*/5 * * * * *"}"#,
        r#"{"cron":"@hourly","jitter":3599999}"#,
        r#"{"cron":"@Daily","time_zone":"Asia/Tokyo"}"#,
        r#"{"every":1000}"#,
    ] {
        assert!(rule(json).is_ok(), "{json}");
    }
}

#[test]
fn missed_occurrences_end_where_the_schedule_ends_and_none_is_sent_if_they_are_skipped() {
    let minute = 60_000;
    let ended = Rule { every: Some(minute), ends_at: Some(START + 3 * minute), ..Rule::default() };
    let plan = Rule { missed: Missed::Skip, ..ended.clone() }.timetable().unwrap().plan(START, START + DAY);
    assert_eq!(plan, Plan { occurrence: None, missed: 2 });
    let plan = Rule { missed: Missed::All(5), ..ended }.timetable().unwrap().plan(START, START + DAY);
    assert_eq!(plan, Plan { occurrence: Some(START + minute), missed: 0 });
    let skipped = Rule { missed: Missed::Skip, ..cron("* * * * *", "UTC") }.timetable().unwrap();
    let now = START + 3 * minute + 1;
    assert_eq!(skipped.plan(START, now), Plan { occurrence: Some(START + 4 * minute), missed: 3 });
}

#[test]
fn an_occurrence_is_not_in_time_once_the_next_one_has_come() {
    let skipped = every(5000, Missed::Skip);
    assert_eq!(skipped.turn("s", START, START - 5000, false, START + 4999), Turn::Send);
    let plan = Plan { occurrence: Some(START + 10_000), missed: 2 };
    assert_eq!(skipped.turn("s", START, START - 5000, false, START + 5000), Turn::Plan(plan));
}

#[test]
fn each_of_two_equal_hours_has_its_occurrences_if_the_expression_names_no_hour() {
    let (begin, end) = (millis("2026-10-24T23:00:00Z"), millis("2026-10-25T03:00:00Z"));
    for (text, count) in [("0 30 * * * *", 4), ("30 * * * *", 4), ("0 30 1-3 * * *", 3), ("30 1-3 * * *", 3)] {
        let timetable = cron(text, "Europe/Berlin").timetable().unwrap();
        assert_eq!(timetable.following(begin).take_while(|at| *at < end).count(), count, "{text}");
    }
}

#[test]
fn a_rule_is_told_in_words_and_local_times() {
    let every = |every| Rule { every: Some(every), ..Rule::default() };
    assert_eq!((every(90_000).words(), Rule::default().words()), ("Every 1m 30s".to_owned(), String::new()));
    assert_eq!(cron("30 9 * * *", "UTC").words(), "At 09:30");
    assert_eq!(cron("no times", "UTC").words(), "no times");
    let shown = |rule: &Rule| rule.next_local(START, 2).iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        shown(&cron("30 9 * * *", "Asia/Tokyo")),
        ["2026-01-01T09:30:00+09:00[Asia/Tokyo]", "2026-01-02T09:30:00+09:00[Asia/Tokyo]"]
    );
    assert_eq!(shown(&every(60_000)), ["2026-01-01T00:01:00+00:00[UTC]", "2026-01-01T00:02:00+00:00[UTC]"]);
    assert!(shown(&Rule::default()).is_empty());
}

#[test]
fn an_interval_can_be_longer_than_the_time_since_1970() {
    let plan = every(MAX_EVERY, Missed::Last).plan(0, START);
    assert_eq!((plan.occurrence, plan.missed), (Some(MAX_EVERY), 0));
}
