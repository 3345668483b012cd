//! The valid names of each kind of target.

use std::sync::Arc;

use super::allow::shown;

/// Maximum length of the name of a topic, in characters (Kafka, `Topic.MAX_NAME_LENGTH`).
const MAX_TOPIC: usize = 249;

/// Maximum length of an exchange name and of a routing key, in bytes: AMQP 0-9-1 stores the length in one byte.
const MAX_SHORT_STRING_BYTES: usize = 255;

/// Maximum length of the key of a list, in bytes. Redis allows more, but every command carries the key.
const MAX_LIST_KEY_BYTES: usize = 1024;

/// The kind of a name.
#[derive(Clone, Debug)]
pub enum Place {
    /// A Kafka topic.
    Topic,
    /// An AMQP exchange; the empty name is the default exchange.
    Exchange,
    RoutingKey,
    /// A Redis list, except keys with punctual's own prefix. The prefix is empty while it is unknown.
    ListKey {
        key_prefix: Arc<str>,
    },
}

impl Place {
    /// The name of the setting.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Topic => "topic",
            Self::Exchange => "exchange",
            Self::RoutingKey => "routing_key",
            Self::ListKey { .. } => "key",
        }
    }

    /// # Errors
    /// The error text, to be read after the name of the setting.
    pub fn check(&self, text: &str) -> Result<(), String> {
        match self {
            Self::Topic => {
                let legal = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
                let good = (1..=MAX_TOPIC).contains(&text.len()) && text.bytes().all(legal);
                if !good || matches!(text, "." | "..") {
                    return Err(format!("`{}` is not 1 to {MAX_TOPIC} of A-Za-z0-9._-", shown(text)));
                }
                Ok(())
            }
            Self::Exchange | Self::RoutingKey => check_text(text, MAX_SHORT_STRING_BYTES),
            Self::ListKey { .. } if text.is_empty() => Err("is empty".into()),
            Self::ListKey { key_prefix } if key_prefix.is_empty() => check_text(text, MAX_LIST_KEY_BYTES),
            Self::ListKey { key_prefix } => {
                let of_partition = text.strip_prefix('{').and_then(|text| text.strip_prefix(&**key_prefix));
                let of_all = text.strip_prefix(&**key_prefix);
                if of_partition.is_some_and(|rest| rest.starts_with(':')) || of_all == Some(":routes") {
                    return Err(format!("`{}` is among punctual's own keys", shown(text)));
                }
                check_text(text, MAX_LIST_KEY_BYTES)
            }
        }
    }
}

fn check_text(text: &str, max_bytes: usize) -> Result<(), String> {
    if text.contains(char::is_control) {
        return Err(format!("`{}` has a control character", shown(text)));
    }
    if text.len() > max_bytes {
        return Err(format!("`{}` has {} bytes, at most {max_bytes}", shown(text), text.len()));
    }
    Ok(())
}
