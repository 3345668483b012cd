//! The key and the binary headers of a message that came from Kafka, restored from its origin.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};
use rdkafka::message::{Header, OwnedHeaders};

use crate::message::{Metadata, TypedHeader};

pub fn key(metadata: &Metadata) -> Option<Cow<'_, [u8]>> {
    let bytes = metadata.origin.as_ref().and_then(|origin| STANDARD.decode(origin.key_base64.as_ref()?).ok());
    bytes.map(Cow::Owned).or_else(|| metadata.key.as_ref().map(|key| Cow::Borrowed(key.as_bytes())))
}

/// Adds the headers of the origin, in their order. Leaves out those of other systems than Kafka.
pub fn headers(metadata: &Metadata, headers: OwnedHeaders) -> OwnedHeaders {
    let typed = metadata.origin.iter().flat_map(|origin| &origin.headers);
    // Names from a Kafka source have no NUL: librdkafka passes them as C strings.
    typed.filter(|header| !header.name.contains('\0')).fold(
        headers,
        |headers, TypedHeader { name: key, value }| match (value.r#type.as_str(), value.value.as_str()) {
            ("bytes", Some(text)) => match STANDARD.decode(text) {
                Ok(bytes) => headers.insert(Header { key, value: Some(&bytes) }),
                Err(_) => headers,
            },
            ("null", None) => headers.insert(Header { key, value: None::<&[u8]> }),
            _ => headers,
        },
    )
}

#[cfg(test)]
mod tests {
    use rdkafka::message::Headers;
    use serde_json::{Value, json};

    use super::*;
    use crate::message::{Origin, TypedValue};

    #[test]
    fn bytes_and_nulls_are_restored_and_headers_of_other_systems_are_not() {
        let header = |name: &str, r#type: &str, value: Value| TypedHeader {
            name: name.into(),
            value: TypedValue { r#type: r#type.into(), value },
        };
        let origin = Origin {
            key_base64: Some("/wA=".into()),
            headers: vec![
                header("a b", "bytes", json!("/w==")),
                header("a b", "null", Value::Null),
                header("x-death", "array", json!([])),
                header("broken", "bytes", json!("?")),
            ],
            ..Origin::default()
        };
        let metadata = Metadata { key: Some("k".into()), origin: origin.or_none(), ..Metadata::default() };
        assert_eq!(key(&metadata).as_deref(), Some(&[255, 0][..]));
        let headers = headers(&metadata, OwnedHeaders::new());
        let seen: Vec<_> = headers.iter().map(|header| (header.key, header.value.map(<[u8]>::to_vec))).collect();
        assert_eq!(seen, [("a b", Some(vec![255])), ("a b", None)]);
        assert_eq!(key(&Metadata { key: Some("k".into()), ..Metadata::default() }).as_deref(), Some(&b"k"[..]));
    }
}
