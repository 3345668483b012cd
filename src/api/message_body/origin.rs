//! The notes of a source about a message, as an export shows them.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    fields::{given, object, read},
    headers::properties,
};
use crate::{
    api::problem::FieldError,
    message::{Origin, Properties, check_text},
};

/// Maximum length of an AMQP property, in bytes.
const MAX_PROPERTY_BYTES: usize = 255;

raw_object!(Given: id, selectors, message_id, exchange, cluster_id, timestamp, content_type, properties, tombstone);

pub fn origin(raw: &RawValue, pointer: &str) -> Result<Origin, FieldError> {
    let all: Given = object(raw, pointer)?;
    Ok(Origin {
        id: optional(all.id, pointer, "id")?,
        key_base64: None,
        selectors: optional::<BTreeMap<_, _>>(all.selectors, pointer, "selectors")?.unwrap_or_default(),
        message_id: short(all.message_id, pointer, "message_id")?,
        exchange: short(all.exchange, pointer, "exchange")?,
        cluster_id: short(all.cluster_id, pointer, "cluster_id")?,
        timestamp: optional(all.timestamp, pointer, "timestamp")?,
        tombstone: optional(all.tombstone, pointer, "tombstone")?.unwrap_or_default(),
        content_type: short(all.content_type, pointer, "content_type")?,
        properties: match given(all.properties) {
            Some(raw) => {
                properties(raw, &format!("{pointer}/properties"))?.map(|properties: Box<Properties>| *properties)
            }
            None => None,
        },
    })
}

/// A key in base64: its text, or its base64 if the bytes are not text.
pub fn key(raw: &RawValue, pointer: &str) -> Result<Result<String, String>, FieldError> {
    let bytes = BASE64_STANDARD.decode(read::<String>(raw, pointer)?);
    let bytes = bytes.map_err(|error| FieldError::new(pointer, format!("not standard base64: {error}")))?;
    Ok(match String::from_utf8(bytes) {
        Ok(text) if check_text(&text).is_ok() => Ok(text),
        Ok(text) => Err(BASE64_STANDARD.encode(text)),
        Err(error) => Err(BASE64_STANDARD.encode(error.as_bytes())),
    })
}

fn optional<'a, T: Deserialize<'a>>(
    raw: Option<&'a RawValue>,
    pointer: &str,
    name: &str,
) -> Result<Option<T>, FieldError> {
    given(raw).map(|raw| read(raw, &format!("{pointer}/{name}"))).transpose()
}

fn short(raw: Option<&RawValue>, pointer: &str, name: &str) -> Result<Option<String>, FieldError> {
    let text: Option<String> = optional(raw, pointer, name)?;
    match text {
        Some(text) if text.len() > MAX_PROPERTY_BYTES => {
            let problem = format!("has {} bytes, at most {MAX_PROPERTY_BYTES}", text.len());
            Err(FieldError::new(format!("{pointer}/{name}"), problem))
        }
        text => Ok(text),
    }
}
