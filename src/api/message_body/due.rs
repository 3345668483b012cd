//! The due time in a request.

use serde_json::value::RawValue;

use super::fields::{Faults, given, json, moment};
use crate::{
    api::problem::Problem,
    store::NewDue,
    time::{Due, UnixMillis, parse_instant},
};

raw_object!(PatchGroup: shift, delay, deliver_at, before);

/// Where the messages of a group are moved.
#[derive(Debug, PartialEq, Eq)]
pub struct GroupMove {
    pub due: NewDue,
    /// Only messages that were accepted or moved before this time.
    pub before: Option<UnixMillis>,
}

/// The due time of a PATCH of a group: exactly one of `shift`, `delay` and `deliver_at`.
///
/// # Errors
/// Those of `parse`.
pub fn parse_group_move(body: &[u8]) -> Result<GroupMove, Problem> {
    let mut faults = Faults::default();
    let patch: Option<PatchGroup> = faults.object(json(body)?, "");
    let patch = patch.unwrap_or_default();
    let due = new_due(patch.shift, patch.delay, patch.deliver_at, &mut faults);
    let before = faults.field("before", given(patch.before), |raw, at| moment(raw, at, parse_instant));
    faults.end(due.map(|due| GroupMove { due, before }))
}

/// Exactly one of `shift`, `delay` and `deliver_at`.
pub fn new_due<'a>(
    shift: Option<&'a RawValue>,
    delay: Option<&'a RawValue>,
    deliver_at: Option<&'a RawValue>,
    faults: &mut Faults,
) -> Option<NewDue> {
    let by = faults.field("shift", given(shift), |raw, at| moment(raw, at, parse_shift));
    let due = due(delay, deliver_at, faults);
    if given(shift).is_some() && (given(delay).is_some() || given(deliver_at).is_some()) {
        faults.add("", "`shift`, `delay` and `deliver_at` exclude each other");
    }
    let due = by.map(NewDue::By).or(due.map(NewDue::At));
    if due.is_none() && faults.is_empty() {
        faults.add("", "one of `shift`, `delay` and `deliver_at` is needed");
    }
    due
}

/// A duration or a number of milliseconds with a sign, such as `+2h` and `-30m`.
///
/// # Errors
/// Those of `Due::parse_delay`.
fn parse_shift(text: &str) -> Result<i64, String> {
    let (sign, duration) = match text.strip_prefix('-') {
        Some(duration) => (-1, duration),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    match Due::parse_delay(duration)? {
        Due::After(millis) => i64::try_from(millis).map(|millis| sign * millis).map_err(|error| error.to_string()),
        Due::At(_) => Err(format!("`{text}` is not a duration")),
    }
}

/// `None` when neither is given, and for an invalid one.
pub fn due(delay: Option<&RawValue>, deliver_at: Option<&RawValue>, faults: &mut Faults) -> Option<Due> {
    let (delay, deliver_at) = (given(delay), given(deliver_at));
    if delay.is_some() && deliver_at.is_some() {
        faults.add("", "`delay` and `deliver_at` exclude each other");
    }
    let delay = faults.field("delay", delay, |raw, at| moment(raw, at, Due::parse_delay));
    let deliver_at = faults.field("deliver_at", deliver_at, |raw, at| moment(raw, at, Due::parse_deliver_at));
    delay.or(deliver_at)
}
