//! Key and headers of a record as metadata of a message.

use base64::{Engine, engine::general_purpose::STANDARD};

use super::record::ConsumedRecord;
use crate::{
    message::{Headers, Metadata, Origin, TypedValue, check_flow, check_group, check_text, folded_header},
    sink::headers,
};

/// The header that becomes the content type of a message, if it occurs once and is text.
const CONTENT_TYPE: &str = "content-type";

/// The header with the key of the message's flow. It is dropped from the message.
pub const FLOW: &str = "punctual-flow";

/// The header with the message's group. It is dropped from the message.
pub const GROUP: &str = "punctual-group";

/// The key of the message's flow. An empty one is absent.
///
/// # Errors
/// The header, and what is wrong with it.
pub fn flow(record: &ConsumedRecord) -> Result<Option<String>, String> {
    checked(record, FLOW, check_flow)
}

/// The message's group. An empty one is absent.
///
/// # Errors
/// Those of `flow`.
pub fn group(record: &ConsumedRecord) -> Result<Option<String>, String> {
    checked(record, GROUP, check_group)
}

fn checked(
    record: &ConsumedRecord,
    header: &str,
    check: impl Fn(&str) -> Result<(), String>,
) -> Result<Option<String>, String> {
    let Some(text) = record.only(header)?.filter(|text| !text.is_empty()) else { return Ok(None) };
    check(text).map(|()| Some(text.to_owned())).map_err(|error| format!("{header}: {error}"))
}

/// Headers stay in their order. A key that is not text goes to the `Origin`, which only a Kafka sink restores.
pub fn metadata(key: Option<&[u8]>, given: &[(String, Option<Vec<u8>>)], dropped: &[&str]) -> Metadata {
    let (mut metadata, mut origin) = (Metadata::default(), Origin::default());
    match (key, key.and_then(text)) {
        (_, Some(text)) => metadata.key = Some(text.to_owned()),
        (Some(key), None) => origin.key_base64 = Some(STANDARD.encode(key)),
        (None, None) => {}
    }
    let mut content_types = given.iter().filter(|(name, _)| folded_header(name) == CONTENT_TYPE);
    if let (Some((name, Some(value))), None) = (content_types.next(), content_types.next())
        && name == CONTENT_TYPE
    {
        metadata.content_type = text(value).map(str::to_owned);
    }
    let is_dropped = |name: &str| {
        dropped.contains(&name)
            || headers::ALL.contains(&name)
            || (name == CONTENT_TYPE && metadata.content_type.is_some())
    };
    let given = given.iter().map(|(name, value)| (name.clone(), typed(value.as_deref())));
    metadata.headers = Headers::classify(given.collect(), is_dropped);
    metadata.origin = origin.or_none();
    metadata
}

fn typed(value: Option<&[u8]>) -> TypedValue {
    match value {
        None => TypedValue::Null,
        Some(value) => match str::from_utf8(value) {
            Ok(text) => TypedValue::String(text.to_owned()),
            Err(_) => TypedValue::Bytes(value.to_vec()),
        },
    }
}

/// `None` if the value is not UTF-8 or has control characters.
pub fn text(value: &[u8]) -> Option<&str> {
    str::from_utf8(value).ok().filter(|text| check_text(text).is_ok())
}

#[cfg(test)]
mod tests {
    use super::{super::record::test_record as record, *};

    #[test]
    fn a_flow_is_a_text_that_occurs_once_and_has_the_characters_of_an_id() {
        assert_eq!(flow(&record(&[])), Ok(None));
        assert_eq!(flow(&record(&[(FLOW, b"")])), Ok(None));
        assert_eq!(flow(&record(&[(FLOW, b"tenant:7")])), Ok(Some("tenant:7".into())));
        for (headers, text) in [
            (&[(FLOW, &b"a b"[..])][..], "punctual-flow: a flow is 1 to 128 of A-Za-z0-9._:~-"),
            (&[(FLOW, b"\xff")], "punctual-flow: is no text"),
            (&[(FLOW, b"a"), (FLOW, b"a")], "punctual-flow: is there more than once"),
        ] {
            assert_eq!(flow(&record(headers)), Err(text.into()));
        }
    }

    #[test]
    fn text_becomes_headers_of_every_sink_and_other_values_keep_their_place() {
        let headers = [
            ("X-Trace", Some(&b"a"[..])),
            ("content-type", Some(b"text/plain")),
            ("twice", Some(b"1")),
            ("twice", Some(b"2")),
            ("X-Case", Some(b"1")),
            ("x-case", Some(b"2")),
            ("a b", Some(b"1")),
            ("Host", Some(b"1")),
            ("bytes", Some(b"\xff")),
            ("null", None),
            ("punctual-delay", Some(b"1")),
            ("punctual-id", Some(b"1")),
        ];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.map(<[u8]>::to_vec)));
        let metadata = metadata(Some(b"\xff"), &headers, &["punctual-delay"]);
        assert_eq!(metadata.headers.texts().collect::<Vec<_>>(), [("X-Trace", "a")]);
        assert_eq!(metadata.content_type.as_deref(), Some("text/plain"));
        assert_eq!(metadata.key, None);
        let origin = metadata.origin.as_ref().unwrap();
        assert_eq!(origin.key_base64.as_deref(), Some("/w=="));
        let names: Vec<&str> = metadata.headers.typed().map(|(name, _)| name).collect();
        assert_eq!(names, ["twice", "twice", "X-Case", "x-case", "a b", "Host", "bytes", "null"]);
        assert_eq!(metadata.validate(), Ok(()));
    }
}
