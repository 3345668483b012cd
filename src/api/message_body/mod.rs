//! From the JSON of a request to messages: every invalid field is found and named by its JSON pointer.
//!
//! A field stays the text that was sent until it is read here. So numbers are never rounded, a payload is passed
//! on as it was written, and nothing that is nested deep is walked recursively.

use std::{collections::BTreeMap, fmt};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

pub use self::selection::{PurgeRequest, parse_ids, parse_purge};
use super::problem::{FieldError, Problem};
use crate::{
    message::{MessageId, Metadata, NewMessage, OnConflict, Properties},
    time::{Due, UnixMillis, parse_instant},
};

mod selection;

/// Most messages of one request: as many as the store takes in one step.
pub const MAX_MESSAGES: usize = 1000;

/// What a payload is when its message does not say.
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// What a request brings along with its messages.
pub struct Rules<'a> {
    /// Bytes.
    pub max_payload: usize,
    /// For a single message without an id.
    pub idempotency_key: Option<MessageId>,
    pub new_id: &'a (dyn Fn() -> MessageId + Send + Sync),
}

/// The messages of one request.
#[derive(Debug)]
pub enum Batch {
    One(Box<NewMessage>),
    Many(Vec<NewMessage>),
}

/// # Errors
/// 400 for what is not JSON; 422 for an invalid message, or 413 when only sizes are wrong.
pub fn parse(body: &[u8], rules: &Rules) -> Result<Batch, Problem> {
    let whole = json(body)?;
    if whole.get().starts_with('[') {
        if rules.idempotency_key.is_some() {
            let text = "`Idempotency-Key` is for one message: give each message of an array its `id`";
            return Err(Problem::bad_request(text));
        }
        let Items(items) = read(whole, "").map_err(|error| Problem::invalid(vec![error]))?;
        let mut errors = Vec::new();
        let mut messages = Vec::with_capacity(items.len());
        for (index, item) in items.into_iter().enumerate() {
            messages.extend(message(item, &format!("/{index}"), rules, &mut errors));
        }
        if errors.is_empty() { Ok(Batch::Many(messages)) } else { Err(Problem::invalid(errors)) }
    } else {
        let mut errors = Vec::new();
        match message(whole, "", rules, &mut errors) {
            Some(message) => Ok(Batch::One(Box::new(message))),
            None => Err(Problem::invalid(errors)),
        }
    }
}

/// The due time of a PATCH: exactly one of `delay` and `deliver_at`.
///
/// # Errors
/// As `parse`.
pub fn parse_due(body: &[u8]) -> Result<Due, Problem> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Patch<'a> {
        #[serde(borrow)]
        delay: Option<&'a RawValue>,
        #[serde(borrow)]
        deliver_at: Option<&'a RawValue>,
    }
    let patch: Patch = object(json(body)?, "").map_err(|error| Problem::invalid(vec![error]))?;
    let mut errors = Vec::new();
    let due = due(patch.delay, patch.deliver_at, "", &mut errors);
    if patch.delay.is_none() && patch.deliver_at.is_none() {
        errors.push(FieldError::new("", "one of `delay` and `deliver_at` is needed"));
    }
    if errors.is_empty() { Ok(due) } else { Err(Problem::invalid(errors)) }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    delay: Option<&'a RawValue>,
    #[serde(borrow)]
    deliver_at: Option<&'a RawValue>,
    // `null` is a payload like any other.
    #[serde(borrow, default, deserialize_with = "present")]
    payload: Option<&'a RawValue>,
    #[serde(borrow)]
    payload_base64: Option<&'a RawValue>,
    #[serde(borrow)]
    content_type: Option<&'a RawValue>,
    #[serde(borrow)]
    headers: Option<&'a RawValue>,
    #[serde(borrow)]
    key: Option<&'a RawValue>,
    #[serde(borrow)]
    properties: Option<&'a RawValue>,
    #[serde(borrow)]
    max_attempts: Option<&'a RawValue>,
    #[serde(borrow)]
    expires_at: Option<&'a RawValue>,
    #[serde(borrow)]
    on_conflict: Option<&'a RawValue>,
}

/// `None` when something was added to `errors`.
fn message(item: &RawValue, at: &str, rules: &Rules, errors: &mut Vec<FieldError>) -> Option<NewMessage> {
    let before = errors.len();
    let fields: Fields = match object(item, at) {
        Ok(fields) => fields,
        Err(error) => {
            errors.push(error);
            return None;
        }
    };
    let given_id = keep(fields.id.map(|raw| id(raw, &format!("{at}/id"))), errors);
    let due = due(fields.delay, fields.deliver_at, at, errors);
    let (payload, default_type) = keep(Some(payload(&fields, at, rules.max_payload)), errors).unwrap_or_default();
    let content_type = field(fields.content_type, at, "content_type", errors);
    let metadata = Metadata {
        headers: field(fields.headers, at, "headers", errors).map(|Headers(headers)| headers).unwrap_or_default(),
        key: field(fields.key, at, "key", errors),
        content_type: content_type.or_else(|| default_type.map(str::to_owned)),
        properties: keep(fields.properties.map(|raw| properties(raw, &format!("{at}/properties"))), errors)
            .and_then(Properties::or_none)
            .map(Box::new),
        origin: None,
        max_attempts: field(fields.max_attempts, at, "max_attempts", errors),
        expires_at: keep(fields.expires_at.map(|raw| instant(raw, &format!("{at}/expires_at"))), errors)
            .map(UnixMillis::get),
    };
    let on_conflict: Option<OnConflict> = field(fields.on_conflict, at, "on_conflict", errors);
    if let Err((name, text)) = metadata.validate() {
        errors.push(FieldError::new(format!("{at}/{name}"), text));
    }
    // Here only: from a source both may go on to RabbitMQ, where they are two things.
    if let Err(text) = metadata.property_encoding() {
        errors.push(FieldError::new(format!("{at}/properties"), text));
    }
    (errors.len() == before).then(|| NewMessage {
        id: given_id.or_else(|| rules.idempotency_key.clone()).unwrap_or_else(rules.new_id),
        due,
        payload,
        metadata,
        on_conflict: on_conflict.unwrap_or_default(),
        record: None,
    })
}

fn payload(fields: &Fields, at: &str, max: usize) -> Result<(Bytes, Option<&'static str>), FieldError> {
    let (name, payload, content_type) = match (fields.payload, fields.payload_base64) {
        (Some(raw), None) if raw.get().starts_with('"') => {
            ("payload", Bytes::from(read::<String>(raw, &format!("{at}/payload"))?), Some(TEXT))
        }
        (Some(raw), None) => ("payload", Bytes::copy_from_slice(raw.get().as_bytes()), Some(JSON)),
        (None, Some(raw)) => {
            let pointer = format!("{at}/payload_base64");
            let text: String = read(raw, &pointer)?;
            let payload = BASE64_STANDARD
                .decode(text)
                .map_err(|error| FieldError::new(pointer, format!("not standard base64: {error}")))?;
            ("payload_base64", Bytes::from(payload), None)
        }
        _ => return Err(FieldError::new(at, "exactly one of `payload` and `payload_base64` is needed")),
    };
    if payload.len() > max {
        let text = format!("the payload has {} bytes, at most {max}", payload.len());
        return Err(FieldError { too_large: true, ..FieldError::new(format!("{at}/{name}"), text) });
    }
    Ok((payload, content_type))
}

fn due(delay: Option<&RawValue>, deliver_at: Option<&RawValue>, at: &str, errors: &mut Vec<FieldError>) -> Due {
    let read = |raw: &RawValue, name: &str, parse: fn(&str) -> Result<Due, String>| {
        let pointer = format!("{at}/{name}");
        let text = text_or_number(raw, &pointer)?;
        parse(&text).map_err(|error| FieldError::new(pointer, error))
    };
    let due = match (delay, deliver_at) {
        (None, None) => Ok(Due::NOW),
        (Some(raw), None) => read(raw, "delay", Due::parse_delay),
        (None, Some(raw)) => read(raw, "deliver_at", Due::parse_deliver_at),
        (Some(_), Some(_)) => Err(FieldError::new(at, "`delay` and `deliver_at` exclude each other")),
    };
    keep(Some(due), errors).unwrap_or(Due::NOW)
}

fn id(raw: &RawValue, pointer: &str) -> Result<MessageId, FieldError> {
    let text: String = read(raw, pointer)?;
    MessageId::parse(&text).map_err(|error| FieldError::new(pointer, error))
}

fn properties(raw: &RawValue, pointer: &str) -> Result<Properties, FieldError> {
    // What is stored is read leniently, for the sake of newer releases; what is sent is not.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Given {
        content_encoding: Option<String>,
        correlation_id: Option<String>,
        reply_to: Option<String>,
        r#type: Option<String>,
        priority: Option<u8>,
        app_id: Option<String>,
    }
    let Given { content_encoding, correlation_id, reply_to, r#type, priority, app_id } = object(raw, pointer)?;
    Ok(Properties { content_encoding, correlation_id, reply_to, r#type, priority, app_id })
}

fn instant(raw: &RawValue, pointer: &str) -> Result<UnixMillis, FieldError> {
    parse_instant(&text_or_number(raw, pointer)?).map_err(|error| FieldError::new(pointer, error))
}

/// A string's text, or a number as it was written: `1e3` and `1.5` are refused by whoever parses it.
fn text_or_number(raw: &RawValue, pointer: &str) -> Result<String, FieldError> {
    match raw.get().as_bytes().first() {
        Some(b'"') => read(raw, pointer),
        Some(b'-' | b'0'..=b'9') => Ok(raw.get().to_owned()),
        _ => Err(FieldError::new(pointer, "must be a string or a number of milliseconds")),
    }
}

fn field<T: DeserializeOwned>(raw: Option<&RawValue>, at: &str, name: &str, errors: &mut Vec<FieldError>) -> Option<T> {
    keep(raw.map(|raw| read(raw, &format!("{at}/{name}"))), errors)
}

fn keep<T>(result: Option<Result<T, FieldError>>, errors: &mut Vec<FieldError>) -> Option<T> {
    result?.map_err(|error| errors.push(error)).ok()
}

/// One JSON value and nothing behind it, otherwise unread.
fn json(body: &[u8]) -> Result<&RawValue, Problem> {
    serde_json::from_slice(body).map_err(|error| Problem::bad_request(format!("the body is not JSON: {error}")))
}

/// A derived struct would also take an array of its fields in their order.
fn object<'a, T: Deserialize<'a>>(raw: &'a RawValue, pointer: &str) -> Result<T, FieldError> {
    if raw.get().starts_with('{') { read(raw, pointer) } else { Err(FieldError::new(pointer, "must be an object")) }
}

fn read<'a, T: Deserialize<'a>>(raw: &'a RawValue, pointer: &str) -> Result<T, FieldError> {
    serde_json::from_str(raw.get()).map_err(|error| {
        // The position counts within the field, where the pointer already leads.
        let text = error.to_string();
        let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
        FieldError::new(pointer, text)
    })
}

/// Tells `null` from an absent field.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// An array of at most `MAX_MESSAGES` values: millions of tiny ones are refused before they are collected.
struct Items<'a>(Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Items<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Vec<&'de RawValue>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    if items.len() == MAX_MESSAGES {
                        return Err(serde::de::Error::custom(format!("more than {MAX_MESSAGES} in one request")));
                    }
                    items.push(item);
                }
                Ok(items)
            }
        }
        deserializer.deserialize_seq(Collect).map(Items)
    }
}

/// A map of strings in which no name comes twice.
struct Headers(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Headers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = BTreeMap<String, String>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut headers = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, String>()? {
                    if headers.contains_key(&name) {
                        return Err(serde::de::Error::custom(format!("duplicate header `{name}`")));
                    }
                    headers.insert(name, value);
                }
                Ok(headers)
            }
        }
        deserializer.deserialize_map(Collect).map(Headers)
    }
}

#[cfg(test)]
mod tests;
