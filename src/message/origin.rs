//! Where a message of a source comes from, as far as no other field can tell it.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};

use super::Properties;

/// Set by sources only, so that what they took leaves as it came.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Origin {
    /// The id there, where it is not one of ours: `id` is its digest then, and sinks tell this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The key there, base64, where it is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// Headers that are no text, or whose names HTTP does not know or punctual reserves; in order. A sink of the
    /// same kind sends them as they were.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<TypedHeader>,
    /// Headers that `{header:NAME}` finds and no sink sends: they have done their work.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub selectors: BTreeMap<String, String>,
    /// AMQP's property, which need not be unique, so that no sink but RabbitMQ's tells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// To which the message was published, unless that is AMQP's default exchange: it tells where a dead letter comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exchange: Option<String>,
    /// AMQP's property.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// AMQP's property, seconds since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<u64>,
    /// AMQP's property, with control characters: else it is the message's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Those of AMQP's properties that have control characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub properties: Option<Properties>,
}

/// A header with the type that it had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypedHeader {
    pub name: String,
    #[serde(flatten)]
    pub value: TypedValue,
}

/// `bytes` (base64) from Kafka; from AMQP the names of its field types.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypedValue {
    pub r#type: String,
    pub value: serde_json::Value,
}

impl Origin {
    /// The key there, where it is text but no text of ours: with control characters.
    pub fn odd_key(&self) -> Option<String> {
        String::from_utf8(STANDARD.decode(self.key_base64.as_deref()?).ok()?).ok()
    }

    /// `None` when there is nothing to tell.
    pub fn or_none(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_takes_no_room_and_the_rest_comes_back() {
        assert_eq!(serde_json::to_string(&Origin::default()).unwrap(), "{}");
        assert_eq!(Origin::default().or_none(), None);
        let header = TypedHeader {
            name: "x-death".into(),
            value: TypedValue { r#type: "array".into(), value: serde_json::json!([1, "a"]) },
        };
        let origin = Origin { id: Some("a b".into()), headers: vec![header], ..Origin::default() };
        let json = serde_json::to_string(&origin).unwrap();
        assert_eq!(json, r#"{"id":"a b","headers":[{"name":"x-death","type":"array","value":[1,"a"]}]}"#);
        assert_eq!(serde_json::from_str::<Origin>(&json).unwrap(), origin);
    }
}
