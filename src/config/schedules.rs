//! Recurring schedules.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use figment::value::{Dict, Num, Value};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value as Json;

use super::{
    deserialize::{kind_of, read, unknown},
    problem::{Path, Problems},
    routes::RouteConfig,
    value::{Period, Whole, scalar},
};
use crate::{
    message::{Headers, MessageId, Metadata},
    queue::NewSchedule,
    recurrence::{Missed, Rule},
    store::ScheduleOwner,
    time::{UnixMillis, parse_instant},
};

/// Maximum `every`, `jitter` and `expires_after`, in milliseconds: 100 years.
const LONGEST: u64 = 100 * 8766 * 3_600_000;

/// Content types of payloads: of text, and of others, which are sent as JSON.
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// A message that is sent again and again.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleEntry {
    /// Name of a route; required.
    route: Arc<str>,
    /// Cron expression of five fields, or of six with seconds first; or `@hourly`, `@daily`, `@weekly`, `@monthly`,
    /// `@yearly`. Excludes `every`.
    cron: Option<String>,
    /// Interval between occurrences, counted from `starts_at`, otherwise from 1970: 1s to 100years. Excludes `cron`.
    every: Option<Period<1_000, LONGEST>>,
    /// IANA name of the time zone of `cron`. Unless set: UTC.
    time_zone: Option<String>,
    /// Time of the first possible occurrence, RFC 3339.
    starts_at: Option<Moment>,
    /// Time from which on no occurrence follows, RFC 3339.
    ends_at: Option<Moment>,
    /// Maximum random delay of each occurrence, shorter than the shortest interval. Unless set: 0s.
    jitter: Option<Period<0, LONGEST>>,
    /// Which missed occurrences are sent later: `skip` for none, `last` for the last one, or `{ all: N }` for the last
    /// N, 1 to 1000. Unless set: `last`.
    missed: Option<Missed>,
    /// Payload of each occurrence: text, or a value that is sent as JSON; required.
    payload: Payload,
    /// Content type of the payload. Unless set: `text/plain; charset=utf-8` for text, `application/json` for JSON.
    content_type: Option<String>,
    /// Key of each occurrence.
    key: Option<String>,
    /// [Flow](flow.md) of each occurrence.
    flow: Option<String>,
    /// Headers of each occurrence, by name.
    headers: Option<BTreeMap<String, String>>,
    /// Maximum attempts of an occurrence: at least 1. Unless set: `retry.max_attempts` of the route.
    max_attempts: Option<Whole<1, { u32::MAX as u64 }>>,
    /// Time after its due time at which an unsent occurrence becomes a dead letter. Unless set: never.
    expires_after: Option<Period<1, LONGEST>>,
}

/// A point in time.
#[derive(Clone, Copy, Debug)]
struct Moment(UnixMillis);

scalar!(Moment, |text| parse_instant(text).map(Moment), "an RFC 3339 time",
    { "type": "string", "examples": ["2026-12-01T00:00:00Z"] });

/// Text, or a value that is sent as JSON.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(transparent)]
struct Payload(Json);

/// Number from which on a float in a payload can be a rounded integer: 2^53.
const INEXACT: f64 = 9_007_199_254_740_992.0;

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = <Value as Deserialize>::deserialize(deserializer)?;
        check_numbers(&value).map_err(D::Error::custom)?;
        Json::deserialize(&value).map(Self).map_err(D::Error::custom)
    }
}

/// Refuses numbers that JSON cannot express, which the YAML reader gives as text, and those that it can have rounded.
fn check_numbers(value: &Value) -> Result<(), String> {
    match value {
        Value::Dict(_, inner) => inner.values().try_for_each(check_numbers),
        Value::Array(_, items) => items.iter().try_for_each(check_numbers),
        Value::String(_, text) if [".inf", "-.inf", ".nan"].contains(&text.as_str()) => {
            Err(format!("has the number {text}, which JSON cannot express"))
        }
        Value::Num(_, Num::F64(number)) if number.abs() >= INEXACT => {
            Err(format!("has the number {number}, which may be rounded: put it in quotes"))
        }
        _ => Ok(()),
    }
}

/// The schedules of a file. `now`: milliseconds.
pub fn all(
    entries: Dict,
    revision: u64,
    routes: &BTreeMap<String, RouteConfig>,
    route_names: &std::collections::BTreeSet<String>,
    now: u64,
    problems: &mut Problems,
) -> Vec<NewSchedule> {
    let mut schedules = Vec::new();
    for (name, entry) in entries {
        let at = Path::of("schedules").key(&name);
        let mut settings = match entry {
            Value::Dict(_, settings) => settings,
            other => {
                problems.add(&at, format!("must be a mapping, not {}", kind_of(&other.to_actual())));
                continue;
            }
        };
        let Some(entry) = read::<ScheduleEntry>(&mut settings, &at, &Dict::new(), problems) else { continue };
        if !route_names.contains(&*entry.route) {
            problems.add(&at.key("route"), format!("route {}", unknown(&entry.route, route_names)));
        } else if routes.contains_key(&*entry.route) {
            schedules.extend(entry.check(&name, revision, &at, now, problems));
        }
    }
    schedules
}

fn millis(period: Duration) -> u64 {
    u64::try_from(period.as_millis()).unwrap_or(u64::MAX)
}

impl ScheduleEntry {
    fn check(self, name: &str, revision: u64, at: &Path, now: u64, problems: &mut Problems) -> Option<NewSchedule> {
        let id = MessageId::of_schedule(name).map_err(|text| problems.add(at, text)).ok()?;
        let rule = Rule {
            cron: self.cron,
            every: self.every.map(|every| millis(every.0)),
            time_zone: self.time_zone,
            starts_at: self.starts_at.map(|at| at.0.get()),
            ends_at: self.ends_at.map(|at| at.0.get()),
            jitter: self.jitter.map_or(0, |jitter| millis(jitter.0)),
            missed: self.missed.unwrap_or_default(),
        };
        if let Err(error) = rule.check(now) {
            let refused = |field: &str| problems.is_refused(&at.key(field));
            // A file can outlive its schedules.
            if error.field == "ends_at" && rule.timetable().is_ok() {
                problems.warn(&at.key("ends_at"), "has passed, or is before the first occurrence: nothing is sent");
            // Without `cron`, and with a refused `every`, the rule is not known.
            } else if !refused(error.field) && (rule.cron.is_some() || !refused("every")) {
                problems.add(&at.key(error.field), error.text);
            }
        }
        let (payload, content_type) = match self.payload.0 {
            Json::String(text) => (text.into_bytes(), TEXT),
            other => (other.to_string().into_bytes(), JSON),
        };
        let headers = self.headers.unwrap_or_default();
        let metadata = Metadata {
            headers: headers.into_iter().collect::<Headers>(),
            key: self.key,
            flow: self.flow.filter(|flow| !flow.is_empty()),
            content_type: Some(self.content_type.unwrap_or_else(|| content_type.to_owned())),
            max_attempts: self.max_attempts.map(|most| u32::try_from(most.0).expect("within u32")),
            ..Metadata::default()
        };
        for (field, text) in metadata.mistakes() {
            problems.add(&at.key(field), text);
        }
        Some(NewSchedule {
            id,
            route: self.route,
            owner: ScheduleOwner::File { revision },
            rule,
            expires_after: self.expires_after.map(|after| millis(after.0)),
            metadata,
            payload: payload.into(),
        })
    }
}
