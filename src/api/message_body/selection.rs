//! The selection of messages in a bulk call.

use std::collections::{BTreeMap, HashSet};

use serde_json::value::RawValue;

use super::{
    due::new_due,
    fields::{Faults, id, integer, items, json, moment, read, whole},
};
use crate::{
    api::{
        filter,
        problem::{FieldError, Problem},
    },
    message::{DeadReason, MAX_PARTITIONS, MessageId, Rate, check_group, parse_flow},
    store::{DeadAction, Expiry, FieldChange, Filter, FlowChange, PendingAction, Selection, Spread},
    time::{self, Due, UnixMillis, parse_instant},
};

// `all` must be `true`: a `null` does not select all, because an unset variable may have produced it.
raw_object!(
    Dead: all, ids, reason, contains, since, until, flow, group, key, header, payload_contains, limit, dry_run, cursor,
    expiry, start, rate, to
);
raw_object!(
    Pending: all, ids, contains, since, until, flow, group, key, header, payload_contains, limit, dry_run, cursor,
    before, shift, delay, deliver_at
);
raw_object!(Change: rate, burst, parallel);
raw_object!(Pause: note);
raw_object!(Repartition: partitions);

/// A bulk call on dead messages.
#[derive(Debug, PartialEq, Eq)]
pub struct DeadRequest {
    /// With the requested expiry.
    pub action: DeadAction,
    /// The route of a redrive on which the messages are scheduled, instead of their own.
    pub to: Option<String>,
    pub spread: Spread,
    pub selection: Selection,
    /// At least 1.
    pub limit: u64,
    pub dry_run: bool,
    /// The cursor that the previous call returned.
    pub cursor: Option<String>,
}

/// The filter that an object with these fields has, and whether it has one.
macro_rules! filter_of {
    ($given:ident, $faults:ident) => {{
        let filter = Filter {
            reason: None,
            contains: $faults.field("contains", $given.contains, contains),
            since: $faults.field("since", $given.since, |raw, at| moment(raw, at, parse_instant)),
            until: $faults.field("until", $given.until, |raw, at| moment(raw, at, parse_instant)),
            retried: false,
            flow: $faults.field("flow", $given.flow, flow),
            group: $faults.field("group", $given.group, group),
            key: $faults.field("key", $given.key, |raw, at| checked(raw, at, filter::check_key)),
            headers: $faults.field("header", $given.header, headers).unwrap_or_default(),
            payload: $faults
                .field("payload_contains", $given.payload_contains, |raw, at| checked(raw, at, filter::check_payload)),
        };
        // `until` bounds ids of dead messages, too.
        let until = $given.until.filter(|_| $given.ids.is_none());
        let fields = [
            $given.contains,
            $given.since,
            until,
            $given.flow,
            $given.group,
            $given.key,
            $given.header,
            $given.payload_contains,
        ];
        (filter, fields.iter().any(Option::is_some))
    }};
}

/// # Errors
/// 400 for invalid JSON or unknown fields; 422 when nothing is selected, or a field is invalid.
pub fn parse_dead(body: &[u8], action: DeadAction) -> Result<DeadRequest, Problem> {
    if body.is_empty() {
        return Err(Problem::invalid(vec![FieldError::new("", NOTHING_SELECTED)]));
    }
    let given: Dead = whole(body)?;
    let mut faults = Faults::default();
    let of_redrive = [("expiry", given.expiry), ("start", given.start), ("rate", given.rate), ("to", given.to)];
    if let (DeadAction::Purge | DeadAction::Forward, Some((name, _))) =
        (action, of_redrive.iter().find(|(_, raw)| raw.is_some()))
    {
        return Err(Problem::bad_request(format!("`{name}` is for a redrive")));
    }
    let action = match (action, faults.field("expiry", given.expiry, expiry)) {
        (DeadAction::Redrive(_), Some(expiry)) => DeadAction::Redrive(expiry),
        _ => action,
    };
    let spread = Spread {
        start: faults.field("start", given.start, |raw, at| moment(raw, at, parse_instant)),
        rate: faults.field("rate", given.rate, rate),
    };
    let to = faults.field("to", given.to, read);
    let limit = faults.field("limit", given.limit, integer).unwrap_or(u64::MAX);
    if limit == 0 {
        faults.add("/limit", "is at least 1");
    }
    let (mut filter, has_filter) = filter_of!(given, faults);
    filter.reason = faults.field("reason", given.reason, reason);
    let all = faults.field("all", given.all, read).unwrap_or(false);
    let ids = given.ids.map(|raw| ids(raw, &mut faults));
    let has_filter = has_filter || given.reason.is_some();
    let exclusive = "`all`, `ids` and a filter exclude each other, except that `ids` can have an `until`";
    check_selected(all, ids.as_deref(), has_filter, (exclusive, NOTHING_SELECTED), &mut faults);
    let (dry_run, cursor) = given_again(given.dry_run, given.cursor, ids.is_some(), &mut faults);
    let selection = match ids {
        Some(ids) => Selection::Ids { ids, until: filter.until },
        None => Selection::Where(filter),
    };
    faults.end(Some(DeadRequest { action, to, spread, selection, limit, dry_run, cursor }))
}

const NOTHING_SELECTED: &str = "selects nothing: one of `ids`, `\"all\": true` and a filter (`reason`, `contains`, `since`, \
                                `until`, `flow`, `group`, `key`, `header`, `payload_contains`) is needed";

/// Checks that exactly one of `all`, `ids` and a filter is given. `texts`: the errors for more, and for none.
fn check_selected(
    all: bool,
    ids: Option<&[MessageId]>,
    has_filter: bool,
    (exclusive, nothing): (&str, &str),
    faults: &mut Faults,
) {
    if u8::from(all) + u8::from(ids.is_some()) + u8::from(has_filter) > 1 {
        faults.add("", exclusive);
    } else if ids.is_some_and(<[_]>::is_empty) && faults.is_empty() {
        faults.add("/ids", "selects nothing");
    } else if !all && ids.is_none() && !has_filter && faults.is_empty() {
        faults.add("", nothing);
    }
}

fn given_again(
    dry_run: Option<&RawValue>,
    cursor: Option<&RawValue>,
    has_ids: bool,
    faults: &mut Faults,
) -> (bool, Option<String>) {
    let dry_run = faults.field("dry_run", dry_run, read).unwrap_or(false);
    let cursor = faults.field("cursor", cursor, read);
    if cursor.is_some() && has_ids {
        faults.add("/cursor", "is not for `ids`");
    }
    (dry_run, cursor)
}

fn rate(raw: &RawValue, pointer: &str) -> Result<Rate, FieldError> {
    Rate::parse(&read::<String>(raw, pointer)?).map_err(|error| FieldError::new(pointer, error))
}

fn checked(raw: &RawValue, pointer: &str, check: fn(&str) -> Result<(), String>) -> Result<String, FieldError> {
    let text: String = read(raw, pointer)?;
    check(&text).map(|()| text).map_err(|error| FieldError::new(pointer, error))
}

/// An object with a text for each header, at least one: without any, the filter would match all messages.
fn headers(raw: &RawValue, pointer: &str) -> Result<Vec<(String, String)>, FieldError> {
    let given: BTreeMap<String, String> = read(raw, pointer)?;
    let given: Vec<_> = given.into_iter().collect();
    if given.is_empty() {
        return Err(FieldError::new(pointer, "names no header"));
    }
    filter::check_headers(&given).map_err(|error| FieldError::new(pointer, error))?;
    Ok(given)
}

fn contains(raw: &RawValue, pointer: &str) -> Result<String, FieldError> {
    checked(raw, pointer, filter::check_contains)
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

/// Maximum and default number of pending messages that one call purges or moves.
pub const MAX_CHANGED: u64 = 100_000;
const DEFAULT_CHANGED: u64 = 10_000;

/// A bulk call on pending messages.
#[derive(Debug, PartialEq, Eq)]
pub struct PendingRequest {
    pub action: PendingAction,
    pub selection: Selection,
    /// Only messages that were accepted or moved last before this time.
    pub before: Option<UnixMillis>,
    /// 1 to `MAX_CHANGED`.
    pub limit: u64,
    pub dry_run: bool,
    /// The cursor that the previous call returned.
    pub cursor: Option<String>,
}

/// `moves`: the call moves messages, and has a due time. Otherwise it cancels them.
///
/// # Errors
/// 400 for invalid JSON or unknown fields; 422 when nothing is selected, or a field is invalid.
pub fn parse_pending(body: &[u8], moves: bool) -> Result<PendingRequest, Problem> {
    let given: Pending = whole(body)?;
    let mut faults = Faults::default();
    let of_move = [("shift", given.shift), ("delay", given.delay), ("deliver_at", given.deliver_at)];
    let action = if moves {
        new_due(given.shift, given.delay, given.deliver_at, &mut faults).map(PendingAction::Move)
    } else if let Some((name, _)) = of_move.iter().find(|(_, raw)| raw.is_some()) {
        return Err(Problem::bad_request(format!("`{name}` is for a move")));
    } else {
        Some(PendingAction::Cancel)
    };
    let limit = faults.field("limit", given.limit, integer).unwrap_or(DEFAULT_CHANGED);
    if !(1..=MAX_CHANGED).contains(&limit) {
        faults.add("/limit", format!("is 1 to {MAX_CHANGED}"));
    }
    let (filter, has_filter) = filter_of!(given, faults);
    let has_filter = has_filter || given.until.is_some();
    let all = faults.field("all", given.all, read).unwrap_or(false);
    let ids = given.ids.map(|raw| ids(raw, &mut faults));
    let exclusive = "`all`, `ids` and a filter exclude each other";
    check_selected(all, ids.as_deref(), has_filter, (exclusive, NOTHING_PENDING), &mut faults);
    let (dry_run, cursor) = given_again(given.dry_run, given.cursor, ids.is_some(), &mut faults);
    let before = faults.field("before", given.before, |raw, at| moment(raw, at, parse_instant));
    let selection = match ids {
        Some(ids) => Selection::Ids { ids, until: None },
        None => Selection::Where(filter),
    };
    faults.end(action.map(|action| PendingRequest { action, selection, before, limit, dry_run, cursor }))
}

const NOTHING_PENDING: &str = "selects nothing: one of `ids`, `\"all\": true` and a filter (`contains`, `since`, `until`, \
                               `flow`, `group`, `key`, `header`, `payload_contains`) is needed";

/// The ids without repetitions.
fn ids(raw: &RawValue, faults: &mut Faults) -> Vec<MessageId> {
    let items = faults.keep(items(raw, "/ids")).unwrap_or_default();
    let parsed = items.into_iter().enumerate().map(|(index, item)| id(item, &format!("/ids/{index}")));
    let mut seen = HashSet::new();
    parsed.filter_map(|id| faults.keep(id)).filter(|id| seen.insert(id.clone())).collect()
}
