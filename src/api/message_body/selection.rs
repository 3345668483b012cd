//! The selection of messages in a bulk call.

use std::collections::HashSet;

use serde_json::value::RawValue;

use super::fields::{Faults, id, integer, items, json, moment, read, whole};
use crate::{
    api::problem::{FieldError, Problem},
    message::{DeadReason, MAX_PARTITIONS, MessageId, Rate, check_group, parse_flow},
    store::{DeadAction, Expiry, FieldChange, Filter, FlowChange, Selection},
    time::{self, Due, parse_instant},
};

// `all` must be `true`: a `null` does not select all, because an unset variable may have produced it.
raw_object!(Dead: all, ids, reason, contains, since, until, flow, group, limit, dry_run, cursor, expiry);
raw_object!(Change: rate, burst, parallel);
raw_object!(Pause: note);
raw_object!(Purge: all, ids, limit, dry_run);
raw_object!(Repartition: partitions);

/// A bulk call on dead messages.
#[derive(Debug, PartialEq, Eq)]
pub struct DeadRequest {
    /// With the requested expiry.
    pub action: DeadAction,
    pub selection: Selection,
    /// At least 1.
    pub limit: u64,
    pub dry_run: bool,
    /// The cursor that the previous call returned.
    pub cursor: Option<String>,
}

/// # Errors
/// 400 for invalid JSON or unknown fields; 422 when nothing is selected, or a field is invalid.
pub fn parse_dead(body: &[u8], action: DeadAction) -> Result<DeadRequest, Problem> {
    if body.is_empty() {
        return Err(Problem::invalid(vec![FieldError::new("", NOTHING_SELECTED)]));
    }
    let given: Dead = whole(body)?;
    let mut faults = Faults::default();
    let action = match (action, faults.field("expiry", given.expiry, expiry)) {
        (DeadAction::Redrive(_), Some(expiry)) => DeadAction::Redrive(expiry),
        (DeadAction::Purge | DeadAction::Forward, _) if given.expiry.is_some() => {
            return Err(Problem::bad_request("`expiry` is for a redrive"));
        }
        _ => action,
    };
    let all = faults.field("all", given.all, read).unwrap_or(false);
    let limit = faults.field("limit", given.limit, integer).unwrap_or(u64::MAX);
    if limit == 0 {
        faults.add("/limit", "is at least 1");
    }
    let dry_run = faults.field("dry_run", given.dry_run, read).unwrap_or(false);
    let ids = given.ids.map(|raw| ids(raw, &mut faults));
    let filter = Filter {
        reason: faults.field("reason", given.reason, reason),
        contains: faults.field("contains", given.contains, contains),
        since: faults.field("since", given.since, |raw, at| moment(raw, at, parse_instant)),
        until: faults.field("until", given.until, |raw, at| moment(raw, at, parse_instant)),
        retried: false,
        flow: faults.field("flow", given.flow, flow),
        group: faults.field("group", given.group, group),
    };
    // `until` bounds ids, too.
    let until = given.until.filter(|_| ids.is_none());
    let filters = [given.reason, given.contains, given.since, until, given.flow, given.group];
    let filters = filters.iter().flatten().count() > 0;
    if u8::from(all) + u8::from(ids.is_some()) + u8::from(filters) > 1 {
        faults.add("", "`all`, `ids` and a filter exclude each other, except that `ids` can have an `until`");
    } else if ids.as_ref().is_some_and(Vec::is_empty) && faults.is_empty() {
        faults.add("/ids", "selects nothing");
    } else if !all && ids.is_none() && !filters && faults.is_empty() {
        faults.add("", NOTHING_SELECTED);
    }
    let cursor = faults.field("cursor", given.cursor, read);
    if cursor.is_some() && ids.is_some() {
        faults.add("/cursor", "is not for `ids`");
    }
    let selection = match ids {
        Some(ids) => Selection::Ids { ids, until: filter.until },
        None => Selection::Where(filter),
    };
    faults.end(Some(DeadRequest { action, selection, limit, dry_run, cursor }))
}

const NOTHING_SELECTED: &str = "selects nothing: one of `ids`, `\"all\": true` and a filter (`reason`, `contains`, `since`, \
                                `until`, `flow`, `group`) is needed";

/// Maximum length of `contains`, in bytes: that of a stored error.
pub const MAX_CONTAINS: usize = 512;

fn contains(raw: &RawValue, pointer: &str) -> Result<String, FieldError> {
    let text: String = read(raw, pointer)?;
    if text.is_empty() || text.len() > MAX_CONTAINS {
        return Err(FieldError::new(pointer, format!("has 1 to {MAX_CONTAINS} bytes")));
    }
    Ok(text)
}

/// `keep`, `drop`, or a duration from now: a number of milliseconds, or a text with its unit. A text without a unit is
/// refused, because the operator may have meant minutes.
fn expiry(raw: &RawValue, pointer: &str) -> Result<Expiry, FieldError> {
    if raw.get().starts_with('"') {
        match &*read::<String>(raw, pointer)? {
            "keep" => return Ok(Expiry::Keep),
            "drop" => return Ok(Expiry::Drop),
            bare if time::number(bare).is_some() => {
                let text = format!("`{bare}` has no unit: write a duration such as `5s` or `5m`");
                return Err(FieldError::new(pointer, text));
            }
            _ => {}
        }
    }
    match moment(raw, pointer, Due::parse_delay) {
        Ok(Due::After(millis @ 1..)) => Ok(Expiry::After(millis)),
        _ => Err(FieldError::new(pointer, "is `keep`, `drop`, or a duration from now such as `5m`")),
    }
}

fn flow(raw: &RawValue, pointer: &str) -> Result<String, FieldError> {
    let text: String = read(raw, pointer)?;
    parse_flow(&text).map(str::to_owned).map_err(|error| FieldError::new(pointer, error))
}

fn group(raw: &RawValue, pointer: &str) -> Result<String, FieldError> {
    let text: String = read(raw, pointer)?;
    check_group(&text).map(|()| text).map_err(|error| FieldError::new(pointer, error))
}

fn reason(raw: &RawValue, pointer: &str) -> Result<DeadReason, FieldError> {
    let text: String = read(raw, pointer)?;
    DeadReason::parse(&text).ok_or_else(|| FieldError::new(pointer, DeadReason::unknown(&text)))
}

/// Maximum length of the note of a pause, in characters.
const MAX_NOTE_CHARS: usize = 500;

/// The reason for a pause: `note`, or an empty text.
///
/// # Errors
/// Those of `parse_dead`.
pub fn parse_note(body: &[u8]) -> Result<String, Problem> {
    if body.is_empty() {
        return Ok(String::new());
    }
    let given: Pause = whole(body)?;
    let mut faults = Faults::default();
    let note = faults.field("note", given.note, read).unwrap_or_else(String::new);
    if note.chars().count() > MAX_NOTE_CHARS {
        faults.add("/note", format!("has more than {MAX_NOTE_CHARS} characters"));
    }
    faults.end(Some(note))
}

/// The change of the limits of one flow: an absent field is kept, `null` removes it. `ordered`: whether the flows of the
/// route are.
///
/// # Errors
/// Those of `parse_dead`.
pub fn parse_flow_change(body: &[u8], ordered: bool) -> Result<FlowChange, Problem> {
    let given: Change = whole(body)?;
    let mut faults = Faults::default();
    let number = |raw: &RawValue, pointer: &str| match integer(raw, pointer)? {
        0 => Err(FieldError::new(pointer, "is at least 1")),
        number => u32::try_from(number).map_err(|_| FieldError::new(pointer, format!("is at most {}", u32::MAX))),
    };
    let rate = |raw: &RawValue, pointer: &str| {
        Rate::parse(&read::<String>(raw, pointer)?).map_err(|error| FieldError::new(pointer, error))
    };
    let change = FlowChange {
        rate: faults.field("rate", given.rate, |raw, at| unless_null(raw, at, rate)).unwrap_or_default(),
        burst: faults.field("burst", given.burst, |raw, at| unless_null(raw, at, number)).unwrap_or_default(),
        parallel: faults.field("parallel", given.parallel, |raw, at| unless_null(raw, at, number)).unwrap_or_default(),
    };
    if ordered && matches!(change.parallel, FieldChange::Set(2..)) {
        faults.add("/parallel", "is at most 1, because the flows of the route are ordered");
    }
    if faults.is_empty() && change == FlowChange::default() {
        faults.add("", "changes nothing: one of `rate`, `burst` and `parallel` is needed");
    }
    faults.end(Some(change))
}

/// A value, or `null`, which removes it.
fn unless_null<T>(
    raw: &RawValue,
    pointer: &str,
    parse: impl FnOnce(&RawValue, &str) -> Result<T, FieldError>,
) -> Result<FieldChange<T>, FieldError> {
    if raw.get() == "null" { Ok(FieldChange::Remove) } else { parse(raw, pointer).map(FieldChange::Set) }
}

/// # Errors
/// 400 for a body that is neither empty nor an empty object.
pub fn parse_nothing(body: &[u8]) -> Result<(), Problem> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}
    if body.is_empty() {
        return Ok(());
    }
    let raw = json(body)?;
    // A derived struct alone would also accept an array.
    if !raw.get().starts_with('{') {
        return Err(Problem::bad_request("must be an object"));
    }
    read(raw, "").map(|Nothing {}| ()).map_err(|error| Problem::bad_request(error.detail))
}

/// The requested number of partitions of a route.
///
/// # Errors
/// Those of `parse_dead`.
pub fn parse_partitions(body: &[u8]) -> Result<u16, Problem> {
    let given: Repartition = whole(body)?;
    let mut faults = Faults::default();
    let partitions: u64 = faults.field("partitions", given.partitions, read).unwrap_or(0);
    let number = u16::try_from(partitions).ok().filter(|number| (1..=MAX_PARTITIONS).contains(number));
    if number.is_none() && faults.is_empty() {
        faults.add("/partitions", format!("is from 1 to {MAX_PARTITIONS}"));
    }
    faults.end(number)
}

/// Maximum and default number of pending messages that one call purges.
pub const MAX_PURGED: u64 = 100_000;
const DEFAULT_PURGED: u64 = 10_000;

/// The pending messages to purge.
#[derive(Debug, PartialEq, Eq)]
pub struct PurgeRequest {
    /// `None`: all messages.
    pub ids: Option<Vec<MessageId>>,
    /// 1 to `MAX_PURGED`.
    pub limit: u64,
    pub dry_run: bool,
}

/// # Errors
/// 400 for invalid JSON or unknown fields; 422 when nothing is selected, or a field is invalid.
pub fn parse_purge(body: &[u8]) -> Result<PurgeRequest, Problem> {
    let given: Purge = whole(body)?;
    let mut faults = Faults::default();
    let all = faults.field("all", given.all, read).unwrap_or(false);
    let limit = faults.field("limit", given.limit, integer).unwrap_or(DEFAULT_PURGED);
    if !(1..=MAX_PURGED).contains(&limit) {
        faults.add("/limit", format!("is 1 to {MAX_PURGED}"));
    }
    let dry_run = faults.field("dry_run", given.dry_run, read).unwrap_or(false);
    let ids = given.ids.map(|raw| ids(raw, &mut faults));
    match &ids {
        Some(_) if all => faults.add("", "`all` and `ids` exclude each other"),
        Some(ids) if ids.is_empty() && faults.is_empty() => faults.add("/ids", "selects nothing"),
        None if !all && faults.is_empty() => {
            faults.add("", "selects nothing: one of `ids` and `\"all\": true` is needed");
        }
        _ => {}
    }
    faults.end(Some(PurgeRequest { ids, limit, dry_run }))
}

/// The ids without repetitions.
fn ids(raw: &RawValue, faults: &mut Faults) -> Vec<MessageId> {
    let items = faults.keep(items(raw, "/ids")).unwrap_or_default();
    let parsed = items.into_iter().enumerate().map(|(index, item)| id(item, &format!("/ids/{index}")));
    let mut seen = HashSet::new();
    parsed.filter_map(|id| faults.keep(id)).filter(|id| seen.insert(id.clone())).collect()
}
