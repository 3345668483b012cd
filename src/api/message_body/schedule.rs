//! From the JSON of a request to a recurring schedule.

use serde_json::value::RawValue;

use super::{
    fields::{Faults, filled, given, integer, json, moment, read},
    headers::headers,
    payload::payload,
};
use crate::{
    api::problem::{FieldError, Problem},
    message::{MessageId, Metadata},
    queue::NewSchedule,
    recurrence::{Missed, Rule},
    store::ScheduleOwner,
    time::{Due, UnixMillis, parse_instant},
};

raw_object!(
    ScheduleFields: route, cron, every, time_zone, starts_at, ends_at, jitter, missed, payload, payload_base64,
    content_type, headers, key, flow, max_attempts, expires_after
);
raw_object!(Preview: cron, every, time_zone, starts_at, ends_at, jitter, missed, count);

/// # Errors
/// 400 for text that is not JSON; 422 for invalid fields. `now`: milliseconds.
pub fn parse_schedule(body: &[u8], id: MessageId, max_payload: usize, now: u64) -> Result<NewSchedule, Problem> {
    let mut faults = Faults::default();
    let fields: Option<ScheduleFields> = faults.object(json(body)?, "");
    let new = fields.and_then(|fields| schedule(&fields, id, max_payload, now, &mut faults));
    faults.end(new)
}

/// The rule and the number of occurrences to show, if given.
///
/// # Errors
/// Those of `parse_schedule`.
pub fn parse_preview(body: &[u8], now: u64) -> Result<(Rule, Option<usize>), Problem> {
    let mut faults = Faults::default();
    let fields: Option<Preview> = faults.object(json(body)?, "");
    let parsed = fields.map(|fields| {
        let Preview { cron, every, time_zone, starts_at, ends_at, jitter, missed, count } = fields;
        let rule = rule([cron, every, time_zone, starts_at, ends_at, jitter, missed], now, &mut faults);
        (rule, faults.field("count", given(count), integer::<u32>).map(|count| count as usize))
    });
    faults.end(parsed)
}

fn schedule(
    fields: &ScheduleFields,
    id: MessageId,
    max_payload: usize,
    now: u64,
    faults: &mut Faults,
) -> Option<NewSchedule> {
    let route: Option<String> = faults.field("route", given(fields.route), read);
    if given(fields.route).is_none() {
        faults.add("/route", "is missing: the name of a route");
    }
    let ScheduleFields { cron, every, time_zone, starts_at, ends_at, jitter, missed, .. } = *fields;
    let rule = rule([cron, every, time_zone, starts_at, ends_at, jitter, missed], now, faults);
    let (payload, default_type) =
        payload(fields.payload, fields.payload_base64, max_payload, faults).unwrap_or_default();
    let content_type = faults.field("content_type", filled(fields.content_type), read);
    let metadata = Metadata {
        headers: faults.part("headers", given(fields.headers), headers).unwrap_or_default(),
        key: faults.field("key", filled(fields.key), read),
        flow: faults.field("flow", filled(fields.flow), read),
        content_type: content_type.or_else(|| default_type.map(str::to_owned)),
        max_attempts: faults.field("max_attempts", given(fields.max_attempts), integer),
        ..Metadata::default()
    };
    for (name, text) in metadata.mistakes() {
        faults.add(&format!("/{name}"), text);
    }
    let expires_after = faults.field("expires_after", given(fields.expires_after), duration);
    let owner = ScheduleOwner::Api;
    Some(NewSchedule { id, route: route?.into(), owner, rule, expires_after, metadata, payload })
}

/// The fields `cron`, `every`, `time_zone`, `starts_at`, `ends_at`, `jitter` and `missed`.
fn rule(fields: [Option<&RawValue>; 7], now: u64, faults: &mut Faults) -> Rule {
    let [cron, every, time_zone, starts_at, ends_at, jitter, missed] = fields.map(given);
    let at = |raw, pointer: &str| moment(raw, pointer, parse_instant).map(UnixMillis::get);
    let rule = Rule {
        cron: faults.field("cron", cron, read),
        every: faults.field("every", every, duration),
        time_zone: faults.field("time_zone", time_zone, read),
        starts_at: faults.field("starts_at", starts_at, at),
        ends_at: faults.field("ends_at", ends_at, at),
        jitter: faults.field("jitter", jitter, duration).unwrap_or(0),
        missed: faults.field("missed", missed, self::missed).unwrap_or_default(),
    };
    // A field that cannot be read would be missing here.
    if faults.is_empty()
        && let Err(error) = rule.check(now)
    {
        faults.add(&format!("/{}", error.field), error.text);
    }
    rule
}

fn missed(raw: &RawValue, pointer: &str) -> Result<Missed, FieldError> {
    let expected = r#"must be "skip", "last" or {"all": 1 to 1000}"#;
    read(raw, pointer).map_err(|_| FieldError::new(pointer, expected))
}

fn duration(raw: &RawValue, pointer: &str) -> Result<u64, FieldError> {
    match moment(raw, pointer, Due::parse_delay)? {
        Due::After(millis) => Ok(millis),
        Due::At(at) => Ok(at.get()),
    }
}
