//! `tracing`: the export of spans.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use url::Url;

use super::{
    connectors::non_empty,
    problem::{Path, Problems},
    value::{Period, Real},
};
use crate::{
    secret::{Secret, SecretUrl},
    spans::{DeliverySpan, ExportSettings},
};

/// The path of spans below the address of a collector, of the OTLP specification.
const SPANS_PATH: &str = "/v1/traces";

/// Spans of messages.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tracing {
    otlp: Otlp,
    /// The span of an attempt: `link`, a trace of its own with a link to the creation of the message, or `parent`, a
    /// child of the creation.
    delivery: DeliverySpan,
}

/// The export to a collector.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Otlp {
    /// Address of a collector, which takes OTLP over HTTP: `http://127.0.0.1:4318`. A path replaces `/v1/traces`.
    /// Without it there are no spans.
    #[serde(default, deserialize_with = "endpoint")]
    #[schemars(with = "Option<Secret>")]
    endpoint: Option<SecretUrl>,
    /// Headers of every export request.
    headers: BTreeMap<String, Secret>,
    /// Share of the messages without a trace context that get spans: 0 to 1. A message with a trace context gets spans
    /// if its trace is sampled.
    sample: Real,
    /// Maximum time of one export, repetitions included: 100ms to 60s.
    timeout: Period<100, 60_000>,
}

fn endpoint<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SecretUrl>, D::Error> {
    let given = non_empty::<D, Secret>(deserializer)?;
    given.map(|given| parse_endpoint(given.expose())).transpose().map_err(serde::de::Error::custom)
}

fn parse_endpoint(text: &str) -> Result<SecretUrl, String> {
    let wrong = |why: &dyn std::fmt::Display| format!("is not a URL such as http://127.0.0.1:4318: {why}");
    let mut url = Url::parse(text).map_err(|error| wrong(&error))?;
    match url.scheme() {
        "http" | "https" => {}
        other => return Err(format!("has the scheme `{other}`; known: http, https")),
    }
    if url.fragment().is_some() {
        return Err(wrong(&"it has a `#` part"));
    }
    if url.path() == "/" {
        url.set_path(SPANS_PATH);
    }
    Ok(String::from(url).into())
}

impl Tracing {
    /// `None` without an endpoint.
    pub fn check(self, problems: &mut Problems) -> Option<ExportSettings> {
        let at = Path::of("tracing.otlp");
        let Otlp { endpoint, headers, sample, timeout } = self.otlp;
        if !(0.0..=1.0).contains(&sample.0) {
            problems.add(&at.key("sample"), format!("`{}` is not within 0 .. 1", sample.0));
        }
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let at = at.key("headers").key(&name);
            let known = problems.check(&at, header_name(&name));
            if let (Some(name), Some(value)) = (known, problems.check(&at, header_value(&value)))
                && map.insert(name, value).is_some()
            {
                problems.add(&at, "comes twice: header names have no case");
            }
        }
        let endpoint = endpoint?;
        if cfg!(not(feature = "otlp")) {
            problems.add(&at.key("endpoint"), "this build has no otlp: build with `--features otlp`");
        }
        Some(ExportSettings { endpoint, headers: map, sample: sample.0, timeout: timeout.0, delivery: self.delivery })
    }
}

fn header_name(text: &str) -> Result<HeaderName, String> {
    let name = HeaderName::try_from(text).map_err(|_| format!("`{}` is not a header name", text.escape_debug()))?;
    match name.as_str() {
        "content-type" | "content-length" | "host" | "transfer-encoding" | "connection" => {
            Err("is a header that the export itself sets".into())
        }
        _ => Ok(name),
    }
}

fn header_value(text: &Secret) -> Result<HeaderValue, String> {
    let value = HeaderValue::from_bytes(text.expose().as_bytes());
    let mut value = value.map_err(|_| "has a value with control characters")?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_without_a_path_gets_that_of_spans() {
        for (given, expected) in [
            ("http://c:4318", "http://c:4318/v1/traces"),
            ("https://c/", "https://c/v1/traces"),
            ("https://c/spans?key=1", "https://c/spans?key=1"),
        ] {
            assert_eq!(parse_endpoint(given).unwrap().expose(), expected);
        }
    }
}
