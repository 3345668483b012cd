//! The notes of a source about a message, as an export shows them.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    fields::{Faults, given, read},
    headers::properties,
};
use crate::{
    api::problem::FieldError,
    message::{Origin, check_text},
};

/// Maximum length of an AMQP property, in bytes.
const MAX_PROPERTY_BYTES: usize = 255;

raw_object!(Given: id, selectors, message_id, exchange, cluster_id, timestamp, content_type, properties, tombstone);

pub fn origin(raw: &RawValue, pointer: &str, faults: &mut Faults) -> Origin {
    let Some(all): Option<Given> = faults.object(raw, pointer) else { return Origin::default() };
    let properties = given(all.properties).and_then(|raw| properties(raw, &format!("{pointer}/properties"), faults));
    let mut part = Part { pointer, faults };
    Origin {
        id: part.read("id", all.id),
        key_base64: None,
        selectors: part.read::<BTreeMap<_, _>>("selectors", all.selectors).unwrap_or_default(),
        message_id: part.short("message_id", all.message_id),
        exchange: part.short("exchange", all.exchange),
        cluster_id: part.short("cluster_id", all.cluster_id),
        timestamp: part.read("timestamp", all.timestamp),
        tombstone: part.read("tombstone", all.tombstone).unwrap_or_default(),
        content_type: part.short("content_type", all.content_type),
        properties: properties.map(|properties| *properties),
    }
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

/// The fields of an origin at `pointer`.
struct Part<'a> {
    pointer: &'a str,
    faults: &'a mut Faults,
}

impl Part<'_> {
    fn read<'a, T: Deserialize<'a>>(&mut self, name: &str, raw: Option<&'a RawValue>) -> Option<T> {
        self.faults.keep(read(given(raw)?, &format!("{}/{name}", self.pointer)))
    }

    fn short(&mut self, name: &str, raw: Option<&RawValue>) -> Option<String> {
        let text: String = self.read(name, raw)?;
        if text.len() > MAX_PROPERTY_BYTES {
            let problem = format!("has {} bytes, at most {MAX_PROPERTY_BYTES}", text.len());
            self.faults.push(FieldError::new(format!("{}/{name}", self.pointer), problem));
        }
        Some(text)
    }
}
