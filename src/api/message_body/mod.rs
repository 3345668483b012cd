//! From the JSON of a request to messages. Every invalid field is found and named by its JSON pointer.
//!
//! A field stays raw JSON until it is read here, so numbers are never rounded, a payload is stored as it was written,
//! and nothing is parsed recursively.

use serde_json::value::RawValue;

pub use self::advance::{Advance, Target, is_past, is_too_far, parse_advance};
pub use self::due::{GroupMove, parse_group_move};
pub use self::edit::{PatchRequest, parse_patch};
#[cfg(test)]
pub use self::fields::MAX_MESSAGES;
pub use self::payload::{JSON, TEXT};
pub use self::schedule::{parse_preview, parse_schedule};
pub use self::selection::{
    DeadRequest, PendingRequest, parse_dead, parse_flow_change, parse_note, parse_nothing, parse_partitions,
    parse_pending,
};
use self::{
    due::due,
    fields::{Faults, filled, given, integer, items, json, moment, read},
    headers::{headers, properties},
    payload::payload,
};
use super::problem::{FieldError, Problem};
use crate::{
    message::{MessageId, Metadata, NewMessage, OnConflict, TraceHeaders},
    time::{Due, UnixMillis, parse_instant},
};

#[macro_use]
mod fields;
mod advance;
mod due;
mod edit;
mod headers;
mod origin;
mod payload;
mod schedule;
mod selection;

/// Defaults and bounds for the messages of a request.
pub struct Rules<'a> {
    /// In bytes.
    pub max_payload: usize,
    /// Id of a single message that has none in its JSON.
    pub idempotency_key: Option<MessageId>,
    /// The trace context of messages without one.
    pub trace: Option<TraceHeaders>,
    pub new_id: &'a (dyn Fn() -> MessageId + Send + Sync),
}

/// The messages of one request.
#[derive(Debug)]
pub enum Batch {
    One(Box<NewMessage>),
    Many(Vec<NewMessage>),
}

/// # Errors
/// 400 for text that is not JSON; 422 for an invalid message, or 413 when only sizes are wrong.
pub fn parse(body: &[u8], rules: &Rules) -> Result<Batch, Problem> {
    let whole = json(body)?;
    let mut faults = Faults::default();
    if !whole.get().starts_with('[') {
        let message = message(whole, rules, &mut faults);
        return faults.end(message.map(|message| Batch::One(Box::new(message))));
    }
    if rules.idempotency_key.is_some() {
        let text = "`Idempotency-Key` is for one message: give each message of an array its `id`";
        return Err(Problem::bad_request(text));
    }
    let items = faults.keep(items(whole, "")).unwrap_or_default();
    let mut messages = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        faults.begin(format!("/{index}"));
        messages.extend(message(item, rules, &mut faults));
    }
    faults.end(Some(Batch::Many(messages)))
}

raw_object!(
    Fields: id, delay, deliver_at, payload, payload_base64, content_type, headers, key, key_base64, flow, group,
    properties, origin, max_attempts, expires_at, on_conflict, debounce
);

/// The message must be discarded if `faults` has errors in the end.
fn message(item: &RawValue, rules: &Rules, faults: &mut Faults) -> Option<NewMessage> {
    let at = faults.pointer("");
    let fields: Fields = faults.object(item, &at)?;
    let given_id = faults.field("id", given(fields.id), new_id);
    let due = due(fields.delay, fields.deliver_at, faults).unwrap_or(Due::NOW);
    let (payload, default_type) =
        payload(fields.payload, fields.payload_base64, rules.max_payload, faults).unwrap_or_default();
    let content_type = faults.field("content_type", filled(fields.content_type), read);
    let mut origin = faults.part("origin", given(fields.origin), origin::origin).unwrap_or_default();
    let mut key = faults.field("key", filled(fields.key), read);
    if let Some(given) = faults.field("key_base64", given(fields.key_base64), origin::key) {
        if key.is_some() {
            faults.add("", "`key` and `key_base64` exclude each other");
        }
        match given {
            Ok(text) => key = Some(text),
            Err(bytes) => origin.key_base64 = Some(bytes),
        }
    }
    let mut metadata = Metadata {
        headers: faults.part("headers", given(fields.headers), headers).unwrap_or_default(),
        key,
        flow: faults.field("flow", filled(fields.flow), read),
        group: faults.field("group", filled(fields.group), read),
        content_type: content_type.or_else(|| default_type.map(str::to_owned)),
        properties: faults.part("properties", given(fields.properties), properties).flatten(),
        origin: origin.or_none(),
        max_attempts: faults.field("max_attempts", given(fields.max_attempts), integer),
        recurring: None,
        scheduled_by: None,
        expires_at: faults
            .field("expires_at", given(fields.expires_at), |raw, at| moment(raw, at, parse_instant))
            .map(UnixMillis::get),
    };
    metadata.keep_trace(rules.trace.as_ref());
    let on_conflict: Option<OnConflict> = faults.field("on_conflict", given(fields.on_conflict), read);
    let debounce = faults.part("debounce", given(fields.debounce), debounce).flatten();
    if debounce.is_some() && on_conflict != Some(OnConflict::Replace) {
        faults.add("/debounce", DEBOUNCE_REPLACES);
    }
    for (name, text) in metadata.mistakes() {
        faults.add(&format!("/{name}"), text);
    }
    // Not for messages of a source: they may have both encodings, which are distinct in RabbitMQ.
    if let Err(text) = metadata.property_encoding() {
        faults.add("/properties", text);
    }
    Some(NewMessage {
        id: given_id.or_else(|| rules.idempotency_key.clone()).unwrap_or_else(rules.new_id),
        due,
        payload,
        metadata,
        on_conflict: on_conflict.unwrap_or_default(),
        debounce,
        record: None,
    })
}

raw_object!(Debounce: max);

/// Why `debounce` is refused.
pub const DEBOUNCE_REPLACES: &str = "needs `on_conflict: replace`";

/// The maximum time from the first acceptance of a message that is replaced again and again, in milliseconds.
fn debounce(raw: &RawValue, pointer: &str, faults: &mut Faults) -> Option<u64> {
    if !raw.get().starts_with('{') {
        faults.push(FieldError::new(pointer, r#"must be an object such as `{"max": "10m"}`"#));
        return None;
    }
    let Debounce { max } = faults.object(raw, pointer)?;
    let Some(max) = given(max) else {
        faults.push(FieldError::new(pointer, "has no `max`"));
        return None;
    };
    let max = parse_max(max, &format!("{pointer}/max"));
    faults.keep(max)
}

fn parse_max(raw: &RawValue, pointer: &str) -> Result<u64, FieldError> {
    moment(raw, pointer, debounce_max)
}

/// # Errors
/// For a text that is not a duration of at least a millisecond.
pub fn debounce_max(text: &str) -> Result<u64, String> {
    match Due::parse_delay(text)? {
        Due::After(millis @ 1..) => Ok(millis),
        _ => Err("is at least 1 ms".to_owned()),
    }
}

fn new_id(raw: &RawValue, pointer: &str) -> Result<MessageId, FieldError> {
    MessageId::parse_new(&read::<String>(raw, pointer)?).map_err(|error| FieldError::new(pointer, error))
}

#[cfg(test)]
mod tests;
