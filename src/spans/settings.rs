//! The settings of the export.

use std::time::Duration;

use http::HeaderMap;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::secret::SecretUrl;

#[derive(Clone, Debug)]
pub struct ExportSettings {
    /// `http://` or `https://`, with the path of the spans.
    pub endpoint: SecretUrl,
    /// Headers of every export. The values are marked as sensitive.
    pub headers: HeaderMap,
    /// Share of the messages without a trace context that is sampled: 0 to 1.
    pub sample: f64,
    /// Maximum time of one export, with its repetitions.
    pub timeout: Duration,
    pub delivery: DeliverySpan,
}

/// The relation of the span of an attempt to the creation of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeliverySpan {
    /// A trace of its own, with a link.
    Link,
    /// A child, in the same trace.
    Parent,
}
