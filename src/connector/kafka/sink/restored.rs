//! Key and headers of a record. A message that came from Kafka gets back its original ones.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};
use rdkafka::message::{Header, OwnedHeaders};

use crate::message::{HeaderValue, Headers, Metadata, TypedValue};

pub fn key(metadata: &Metadata) -> Option<Cow<'_, [u8]>> {
    let bytes = metadata.origin.as_ref().and_then(|origin| STANDARD.decode(origin.key_base64.as_ref()?).ok());
    bytes.map(Cow::Owned).or_else(|| metadata.key.as_ref().map(|key| Cow::Borrowed(key.as_bytes())))
}

/// Adds `given` in its order. Leaves out values other than text, bytes and null, which Kafka cannot carry.
pub fn headers(given: &Headers, to: OwnedHeaders) -> OwnedHeaders {
    given.iter().fold(to, |headers, header| {
        let value = match &header.value {
            HeaderValue::Text(text) | HeaderValue::Typed(TypedValue::String(text)) => Some(text.as_bytes()),
            HeaderValue::Typed(TypedValue::Bytes(bytes) | TypedValue::StringBytes(bytes)) => Some(&bytes[..]),
            HeaderValue::Typed(TypedValue::Null) => None,
            HeaderValue::Typed(_) => return headers,
        };
        // librdkafka passes names as C strings. Names from a Kafka source have no NUL.
        if header.name.contains('\0') { headers } else { headers.insert(Header { key: &header.name, value }) }
    })
}

#[cfg(test)]
mod tests {
    use rdkafka::message::Headers as _;

    use super::*;
    use crate::message::Origin;

    #[test]
    fn a_record_has_the_headers_in_their_order_except_for_types_of_other_systems() {
        let string = |text: &str| TypedValue::String(text.to_owned());
        let given = [
            ("z", string("1")),
            ("a", string("2")),
            ("z", TypedValue::Bytes(vec![255])),
            ("x-death", TypedValue::Array(vec![])),
            ("a b", TypedValue::Null),
        ];
        let given = given.map(|(name, value)| (name.to_owned(), value)).into();
        let headers = headers(&Headers::classify(given, |_| false), OwnedHeaders::new());
        let seen: Vec<_> = headers.iter().map(|header| (header.key, header.value.map(<[u8]>::to_vec))).collect();
        assert_eq!(seen, [("z", Some(b"1".into())), ("a", Some(b"2".into())), ("z", Some(vec![255])), ("a b", None)]);
    }

    #[test]
    fn the_key_of_the_origin_is_restored() {
        let origin = Origin { key_base64: Some("/wA=".into()), ..Origin::default() };
        let metadata = Metadata { key: Some("k".into()), origin: origin.or_none(), ..Metadata::default() };
        assert_eq!(key(&metadata).as_deref(), Some(&[255, 0][..]));
        assert_eq!(key(&Metadata { key: Some("k".into()), ..Metadata::default() }).as_deref(), Some(&b"k"[..]));
    }
}
