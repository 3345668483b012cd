//! The payload of a message or schedule.

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde_json::value::RawValue;

use super::fields::{Faults, given, read};
use crate::api::problem::FieldError;

/// The content type of a message without one.
pub const TEXT: &str = "text/plain; charset=utf-8";
pub const JSON: &str = "application/json";

/// The payload, with its default content type.
pub fn payload(
    payload: Option<&RawValue>,
    payload_base64: Option<&RawValue>,
    max: usize,
    faults: &mut Faults,
) -> Option<(Bytes, Option<&'static str>)> {
    // `null` is a payload like any other.
    let (name, raw) = match (payload, given(payload_base64)) {
        (Some(raw), None) => ("payload", raw),
        (None, Some(raw)) => ("payload_base64", raw),
        _ => {
            faults.add("", "exactly one of `payload` and `payload_base64` is needed");
            return None;
        }
    };
    faults.field(name, Some(raw), |raw, pointer| {
        let (payload, content_type): (Bytes, _) = if name == "payload_base64" {
            let decoded = BASE64_STANDARD.decode(read::<String>(raw, pointer)?);
            let decoded = decoded.map_err(|error| FieldError::new(pointer, format!("not standard base64: {error}")))?;
            (decoded.into(), None)
        } else if raw.get().starts_with('"') {
            (read::<String>(raw, pointer)?.into(), Some(TEXT))
        } else {
            (Bytes::copy_from_slice(raw.get().as_bytes()), Some(JSON))
        };
        if payload.len() > max {
            let text = format!("the payload has {} bytes, at most {max}", payload.len());
            return Err(FieldError { too_large: true, ..FieldError::new(pointer, text) });
        }
        Ok((payload, content_type))
    })
}
