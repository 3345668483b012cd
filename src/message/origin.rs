//! Data of a source about a message, in addition to the fields of every message.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};

use super::Properties;

/// Set by sources, and by the API for exported messages. A sink of the same system restores these properties.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Origin {
    /// The original id, if it is not a valid `MessageId`. The message's id is then a digest of the original id, and
    /// sinks send the original id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The original key in base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// Headers that `{header:NAME}` finds but no sink sends, such as the delay.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub selectors: BTreeMap<String, String>,
    /// The AMQP property. Not necessarily unique: only the RabbitMQ sink sends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// The exchange that the message was published to, unless that is AMQP's default exchange. Shown with dead letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exchange: Option<String>,
    /// The AMQP property.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// The AMQP property, in seconds since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<u64>,
    /// The AMQP property, if it has control characters. Without them it is the message's `content_type`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Other AMQP properties that have control characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub properties: Option<Properties>,
    /// Whether the message is a Kafka record without a value. The payload is empty.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tombstone: bool,
}

impl Origin {
    /// The original key, if it is UTF-8 with control characters.
    pub fn odd_key(&self) -> Option<String> {
        String::from_utf8(STANDARD.decode(self.key_base64.as_deref()?).ok()?).ok()
    }

    /// `None` if all fields are empty.
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
        let origin = Origin { id: Some("a b".into()), timestamp: Some(7), ..Origin::default() };
        let json = serde_json::to_string(&origin).unwrap();
        assert_eq!(json, r#"{"id":"a b","timestamp":7}"#);
        assert_eq!(serde_json::from_str::<Origin>(&json).unwrap(), origin);
    }
}
