//! A PATCH of a message: another due time of a pending one, or new parts of a dead letter.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::{
    due::due,
    fields::{Faults, given, integer, json, moment, read},
    headers::headers,
    origin,
    payload::payload,
};
use crate::{
    api::problem::{FieldError, Problem},
    message::{Headers, MAX_METADATA_BYTES},
    store::{Edit, FieldChange, NewKey},
    time::{Due, UnixMillis, parse_instant},
};

raw_object!(
    Patch: delay, deliver_at, payload, payload_base64, content_type, headers, key, key_base64, max_attempts, expires_at,
    revision
);

#[derive(Debug, PartialEq, Eq)]
pub enum PatchRequest {
    Move(Due),
    /// `revision`: that which the dead letter must have.
    Edit {
        edit: Box<Edit>,
        revision: Option<String>,
    },
}

/// # Errors
/// 400 for text that is not JSON; 422 for an invalid field, or 413 when only sizes are wrong.
pub fn parse_patch(body: &[u8], max_payload: usize) -> Result<PatchRequest, Problem> {
    let mut faults = Faults::default();
    let patch: Patch = faults.object(json(body)?, "").unwrap_or_default();
    let due = due(patch.delay, patch.deliver_at, &mut faults);
    let moves = given(patch.delay).is_some() || given(patch.deliver_at).is_some();
    let edit = edit(&patch, max_payload, &mut faults);
    let revision: Option<String> = faults.field("revision", given(patch.revision), read);
    let request = match (due, edit.is_empty() && revision.is_none()) {
        (Some(due), true) => Some(PatchRequest::Move(due)),
        (None, _) if !moves && !edit.is_empty() => Some(PatchRequest::Edit { edit: edit.into(), revision }),
        _ => None,
    };
    if request.is_none() && faults.is_empty() {
        faults.add("", if moves { EXCLUSIVE } else { NOTHING });
    }
    faults.end(request)
}

const EXCLUSIVE: &str =
    "`delay` and `deliver_at` move a pending message, the other fields change a dead letter: one of both";
const NOTHING: &str = "changes nothing: `delay` or `deliver_at` of a pending message; or `payload`, `payload_base64`, \
                       `content_type`, `headers`, `key`, `key_base64`, `max_attempts`, `expires_at` of a dead letter";

fn edit(patch: &Patch, max_payload: usize, faults: &mut Faults) -> Edit {
    let has_payload = patch.payload.is_some() || given(patch.payload_base64).is_some();
    let payload: Option<(Bytes, _)> =
        has_payload.then(|| payload(patch.payload, patch.payload_base64, max_payload, faults)).flatten();
    let headers = patch.headers.map(|raw| {
        let found = given(Some(raw)).and_then(|raw| faults.part("headers", Some(raw), headers));
        found.unwrap_or_default()
    });
    check_size(headers.as_ref(), faults);
    let key = field("key", patch.key, faults, |raw, at| Ok(NewKey::Text(read(raw, at)?)));
    let key_base64 = field("key_base64", patch.key_base64, faults, |raw, at| {
        Ok(origin::key(raw, at)?.map_or_else(NewKey::Base64, NewKey::Text))
    });
    // An export shows an empty key as both.
    let key = match (key, key_base64) {
        (key, FieldChange::Keep) => key,
        (FieldChange::Keep | FieldChange::Remove, bytes) => bytes,
        (FieldChange::Set(_), _) => {
            faults.add("", "`key` and `key_base64` exclude each other");
            FieldChange::Keep
        }
    };
    let max_attempts = field("max_attempts", patch.max_attempts, faults, |raw, at| match integer(raw, at)? {
        0 => Err(FieldError::new(at, "must be at least 1")),
        number => Ok(number),
    });
    Edit {
        payload: payload.map(|(payload, _)| payload),
        content_type: field("content_type", patch.content_type, faults, read),
        headers,
        key,
        max_attempts,
        expires_at: field("expires_at", patch.expires_at, faults, |raw, at| {
            moment(raw, at, parse_instant).map(UnixMillis::get)
        }),
    }
}

/// A field that is absent, removed by `null` or an empty text, or set.
fn field<'a, T>(
    name: &str,
    raw: Option<&'a RawValue>,
    faults: &mut Faults,
    parse: impl FnOnce(&'a RawValue, &str) -> Result<T, FieldError>,
) -> FieldChange<T> {
    match raw.map(RawValue::get) {
        None => FieldChange::Keep,
        Some("null") => FieldChange::Remove,
        Some(r#""""#) if name == "key" || name == "content_type" => FieldChange::Remove,
        Some(_) => faults.field(name, raw, parse).map_or(FieldChange::Keep, FieldChange::Set),
    }
}

/// Before the message is read: together with its other metadata the headers can be too large, too.
fn check_size(headers: Option<&Headers>, faults: &mut Faults) {
    let size = headers.and_then(|headers| serde_json::to_vec(headers).ok()).map_or(0, |json| json.len());
    if size > MAX_METADATA_BYTES {
        faults.add("/headers", format!("take {size} bytes, at most {MAX_METADATA_BYTES}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(body: &str) -> Result<PatchRequest, String> {
        parse_patch(body.as_bytes(), 10).map_err(|problem| problem.parts().0)
    }

    fn edited(body: &str) -> Edit {
        match parsed(body) {
            Ok(PatchRequest::Edit { edit, revision: None }) => *edit,
            other => panic!("{body}: {other:?}"),
        }
    }

    #[test]
    fn a_patch_moves_or_edits_but_not_both() {
        assert_eq!(parsed(r#"{"delay":"5s"}"#), Ok(PatchRequest::Move(Due::After(5000))));
        assert_eq!(edited(r#"{"payload":{"a":1}}"#).payload.as_deref(), Some(&br#"{"a":1}"#[..]));
        for both in [r#"{"delay":"5s","key":null}"#, r#"{"deliver_at":7000000000000,"revision":"x"}"#] {
            assert_eq!(parsed(both), Err(EXCLUSIVE.into()), "{both}");
        }
        for nothing in ["{}", r#"{"delay":null}"#, r#"{"revision":"x"}"#] {
            assert_eq!(parsed(nothing), Err(NOTHING.into()), "{nothing}");
        }
        for unknown in [r#"{"flow":"f","payload":1}"#, r#"{"group":"g"}"#, r#"{"id":"b","payload":1}"#] {
            assert!(parsed(unknown).unwrap_err().contains("unknown field"), "{unknown}");
        }
    }

    #[test]
    fn null_removes_and_an_absent_field_stays() {
        let edit = edited(r#"{"headers":null,"key":null,"content_type":"","max_attempts":null,"expires_at":null}"#);
        let removed = Edit {
            headers: Some(Headers::default()),
            key: FieldChange::Remove,
            content_type: FieldChange::Remove,
            max_attempts: FieldChange::Remove,
            expires_at: FieldChange::Remove,
            ..Edit::default()
        };
        assert_eq!(edit, removed);
        assert_eq!(edited(r#"{"payload":null}"#).payload.as_deref(), Some(&b"null"[..]), "as in a new message");
        let key = |body: &str| edited(body).key;
        assert_eq!(key(r#"{"key":"k"}"#), FieldChange::Set(NewKey::Text("k".into())));
        assert_eq!(key(r#"{"key_base64":"/wA="}"#), FieldChange::Set(NewKey::Base64("/wA=".into())));
        assert_eq!(key(r#"{"key":null,"key_base64":""}"#), FieldChange::Set(NewKey::Text(String::new())));
        assert_eq!(key(r#"{"key":null,"key_base64":"aw=="}"#), FieldChange::Set(NewKey::Text("k".into())));
    }

    #[test]
    fn the_bounds_of_new_messages_hold() {
        for (body, part) in [
            (r#"{"payload":"12345678901"}"#.to_owned(), "at most 10"),
            (r#"{"payload":1,"payload_base64":"AA=="}"#.into(), "exactly one"),
            (r#"{"headers":{"Punctual-Id":1}}"#.into(), "/headers"),
            (r#"{"key":"a","key_base64":"AA=="}"#.into(), "exclude each other"),
            (r#"{"max_attempts":0}"#.into(), "at least 1"),
            (r#"{"expires_at":"soon"}"#.into(), "/expires_at"),
            (format!(r#"{{"headers":{{"X":"{}"}}}}"#, "v".repeat(MAX_METADATA_BYTES)), "at most"),
        ] {
            let error = parsed(&body).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
