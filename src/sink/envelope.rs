//! The format of list elements: the payload alone, or the payload with its metadata.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use super::Delivery;
use crate::message::{Headers, Properties};

/// The format of list elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ListFormat {
    Payload,
    Envelope,
}

/// The list element of one attempt.
pub fn render(format: ListFormat, delivery: &Delivery) -> Bytes {
    match format {
        ListFormat::Payload => delivery.payload.clone(),
        ListFormat::Envelope => envelope(delivery),
    }
}

/// A JSON object. `key`, `flow`, `group`, `content_type` and `properties` are left out if the message has none; `headers` is
/// always present. A UTF-8 payload is the string `payload`, any other is `payload_base64` (standard, padded).
fn envelope(delivery: &Delivery) -> Bytes {
    serde_json::to_vec(&Envelope::new(delivery, delivery.due.get()))
        .expect("strings and integers always serialize")
        .into()
}

/// The headers that every sink sends, as an object.
struct Texts<'a>(&'a Headers);

impl Serialize for Texts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.texts())
    }
}

/// A delivery as JSON. `due`: the form of its due time.
#[derive(Serialize)]
pub struct Envelope<'a, D> {
    id: &'a str,
    route: &'a str,
    /// Counts from 1.
    attempt: u32,
    /// The original due time.
    due: D,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flow: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
    headers: Texts<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    properties: Option<&'a Properties>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

impl<'a, D> Envelope<'a, D> {
    pub fn new(delivery: &'a Delivery, due: D) -> Self {
        let text = std::str::from_utf8(&delivery.payload).ok();
        Self {
            id: delivery.shown_id(),
            route: &delivery.route,
            attempt: delivery.attempt,
            due,
            key: delivery.metadata.key.as_deref(),
            flow: delivery.metadata.flow.as_deref(),
            group: delivery.metadata.group.as_deref(),
            content_type: delivery.metadata.content_type.as_deref(),
            headers: Texts(&delivery.metadata.headers),
            properties: delivery.metadata.properties.as_deref(),
            payload: text,
            payload_base64: text.is_none().then(|| STANDARD.encode(&delivery.payload)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        message::{MessageId, Metadata},
        time::UnixMillis,
    };

    fn delivery(payload: &'static [u8], metadata: Metadata) -> Delivery {
        Delivery {
            id: MessageId::parse("m1").unwrap(),
            route: "r".into(),
            attempt: 2,
            due: UnixMillis::new(1_700_000_000_123).unwrap(),
            metadata,
            payload: Bytes::from_static(payload),
            send_until: None,
        }
    }

    fn rendered(payload: &'static [u8], metadata: Metadata) -> String {
        String::from_utf8(render(ListFormat::Envelope, &delivery(payload, metadata)).to_vec()).unwrap()
    }

    #[test]
    fn a_payload_is_rendered_as_it_is() {
        let payload = b"\0\xff{}";
        assert_eq!(render(ListFormat::Payload, &delivery(payload, Metadata::default())), Bytes::from_static(payload));
    }

    #[test]
    fn an_envelope_holds_all_that_is_known() {
        let metadata = Metadata {
            headers: [("X".to_owned(), "é".to_owned())].into(),
            key: Some("k".into()),
            flow: Some("f".into()),
            group: Some("g".into()),
            content_type: Some("text/plain".into()),
            properties: Some(Box::new(Properties {
                r#type: Some("t".into()),
                priority: Some(4),
                ..Properties::default()
            })),
            max_attempts: Some(3),
            ..Metadata::default()
        };
        assert_eq!(
            rendered(b"a\"b", metadata),
            r#"{"id":"m1","route":"r","attempt":2,"due":1700000000123,"key":"k","flow":"f","group":"g","content_type":"text/plain","headers":{"X":"é"},"properties":{"type":"t","priority":4},"payload":"a\"b"}"#
        );
    }

    #[test]
    fn bytes_that_are_no_text_are_base64_and_what_is_absent_is_left_out() {
        assert_eq!(
            rendered(b"\0\xff", Metadata::default()),
            r#"{"id":"m1","route":"r","attempt":2,"due":1700000000123,"headers":{},"payload_base64":"AP8="}"#
        );
    }
}
