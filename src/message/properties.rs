//! Properties of AMQP 0-9-1 in addition to headers. A RabbitMQ sink sends them.

use serde::{Deserialize, Serialize};

use super::check_text;

/// Maximum length of a value in bytes: AMQP's short string.
const MAX_PROPERTY_BYTES: usize = 255;

/// All properties except `content_type`, which every sink sends. Names as in AMQP 0-9-1, class `basic`, section 1.8.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Properties {
    /// Sent by HTTP sinks too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_encoding: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#type: Option<String>,
    /// 0 to 255. A queue uses the priority up to its own `x-max-priority`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_id: Option<String>,
}

impl Properties {
    /// `None` if no property is set, so that the stored form has no properties.
    pub fn or_none(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }

    /// The error texts, with the names of the invalid properties.
    pub fn mistakes(&self) -> impl Iterator<Item = String> {
        let texts = [
            ("content_encoding", &self.content_encoding),
            ("correlation_id", &self.correlation_id),
            ("reply_to", &self.reply_to),
            ("type", &self.r#type),
            ("app_id", &self.app_id),
        ];
        texts.into_iter().filter_map(|(name, value)| {
            let value = value.as_deref()?;
            if let Err(text) = check_text(value) {
                return Some(format!("`{name}`: {text}"));
            }
            let is_long = value.len() > MAX_PROPERTY_BYTES;
            is_long.then(|| format!("`{name}` has {} bytes, at most {MAX_PROPERTY_BYTES}", value.len()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_property_is_a_short_text_without_control_characters() {
        let with = |app_id: &str| Properties { app_id: Some(app_id.into()), ..Properties::default() };
        let mistake = |app_id: &str| with(app_id).mistakes().next();
        assert_eq!(mistake(&"é".repeat(127)), None);
        assert_eq!(mistake(&"x".repeat(256)), Some("`app_id` has 256 bytes, at most 255".into()));
        assert!(mistake("a\nb").unwrap().starts_with("`app_id`: control character"));
    }

    #[test]
    fn without_any_value_there_are_no_properties() {
        assert_eq!(Properties::default().or_none(), None);
        let priority = Properties { priority: Some(0), ..Properties::default() };
        assert_eq!(priority.clone().or_none(), Some(priority));
    }
}
