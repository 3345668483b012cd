//! Key and headers of a record as metadata of a message.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;

use crate::{
    message::{Metadata, Origin, TypedHeader, TypedValue, check_header_name, check_text, folded_header},
    sink::headers,
};

/// Text becomes key and headers for every sink. Other bytes go to the `Origin`, which only a Kafka sink sends on.
pub fn metadata(key: Option<&[u8]>, given: &[(String, Option<Vec<u8>>)], dropped: &[&str]) -> Metadata {
    let mut counts = BTreeMap::new();
    for (name, _) in given {
        *counts.entry(folded_header(name)).or_insert(0) += 1;
    }
    let (mut metadata, mut origin) = (Metadata::default(), Origin::default());
    match (key, key.and_then(text)) {
        (_, Some(text)) => metadata.key = Some(text.to_owned()),
        (Some(key), None) => origin.key_base64 = Some(STANDARD.encode(key)),
        (None, None) => {}
    }
    for (name, value) in given {
        if dropped.contains(&name.as_str()) || headers::ALL.contains(&name.as_str()) {
            continue;
        }
        let is_unique = counts[&folded_header(name)] == 1;
        match value.as_deref().and_then(text) {
            Some(text) if is_unique && name == "content-type" => metadata.content_type = Some(text.to_owned()),
            Some(text) if is_unique && check_header_name(name).is_ok() => {
                metadata.headers.insert(name.clone(), text.to_owned());
            }
            _ => origin.headers.push(TypedHeader { name: name.clone(), value: typed(value.as_deref()) }),
        }
    }
    metadata.origin = origin.or_none();
    metadata
}

fn typed(value: Option<&[u8]>) -> TypedValue {
    match value {
        Some(value) => TypedValue { r#type: "bytes".into(), value: STANDARD.encode(value).into() },
        None => TypedValue { r#type: "null".into(), value: Value::Null },
    }
}

/// `None` if the value is not UTF-8 or has control characters.
pub fn text(value: &[u8]) -> Option<&str> {
    str::from_utf8(value).ok().filter(|text| check_text(text).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_becomes_headers_and_other_values_go_to_the_origin() {
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
        assert_eq!(metadata.headers, [("X-Trace".to_owned(), "a".to_owned())].into());
        assert_eq!(metadata.content_type.as_deref(), Some("text/plain"));
        assert_eq!(metadata.key, None);
        let origin = metadata.origin.as_ref().unwrap();
        assert_eq!(origin.key_base64.as_deref(), Some("/w=="));
        let names: Vec<&str> = origin.headers.iter().map(|header| header.name.as_str()).collect();
        assert_eq!(names, ["twice", "twice", "X-Case", "x-case", "a b", "Host", "bytes", "null"]);
        assert_eq!(metadata.validate(), Ok(()));
    }
}
