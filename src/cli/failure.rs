//! The reasons why a command fails, and their exit codes.

use std::{io, process::ExitCode};

use serde_json::Value;

use crate::{api::PROBLEM_TYPE as TYPE, app::serve::ServeError};

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Failed(String),
    #[error("{0}")]
    Usage(String),
    #[error("the configuration is invalid\n{0}")]
    Configuration(String),
    #[error("{0}")]
    NotFound(String),
    /// The reader of the output, such as `head`, has closed it. This is not an error, and nothing is shown.
    #[error("the output was closed")]
    Closed,
}

impl Failure {
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Closed => 0,
            Failure::Failed(_) => 1,
            Failure::Usage(_) | Failure::Configuration(_) => 2,
            Failure::NotFound(_) => 3,
        })
    }

    /// Keeps the kind of the failure and changes its text.
    #[must_use]
    pub fn map(self, text: impl FnOnce(String) -> String) -> Self {
        match self {
            Failure::Failed(old) => Failure::Failed(text(old)),
            Failure::Usage(old) => Failure::Usage(text(old)),
            Failure::Configuration(old) => Failure::Configuration(text(old)),
            Failure::NotFound(old) => Failure::NotFound(text(old)),
            Failure::Closed => Failure::Closed,
        }
    }

    /// The failure of writing to `place`.
    pub fn of_output(place: &str, error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::Closed } else { Self::Failed(format!("{place}: {error}")) }
    }
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Configuration(text) => Failure::Configuration(text),
            ServeError::Failed(text) => Failure::Failed(text),
        }
    }
}

/// A reply other than 2xx.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    /// The last part of the problem's `type`.
    pub kind: String,
    detail: String,
    /// JSON pointer and text of each invalid field.
    pub fields: Vec<(String, String)>,
    /// In seconds.
    pub retry_after: Option<u64>,
}

impl Refusal {
    /// `None` for a reply that does not come from punctual.
    pub fn parse(status: u16, body: &[u8], retry_after: Option<u64>) -> Option<Self> {
        let document: Value = serde_json::from_slice(body).ok()?;
        let kind = document["type"].as_str()?.strip_prefix(TYPE)?.to_owned();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let fields = document["errors"].as_array().into_iter().flatten();
        Some(Self {
            status,
            kind,
            detail: text(&document["detail"]),
            fields: fields.map(|field| (text(&field["pointer"]), text(&field["detail"]))).collect(),
            retry_after,
        })
    }

    /// The detail, and each field that the detail does not name.
    pub fn text(&self) -> String {
        let mut text = self.detail.clone();
        if let [(_, only)] = self.fields.as_slice()
            && text.ends_with(only)
        {
            return text;
        }
        for (pointer, detail) in &self.fields {
            text = format!("{text}\n  {}: {detail}", pointer.trim_start_matches('/'));
        }
        text
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let text = refusal.text();
        match refusal.status {
            400 | 413 | 422 => Failure::Usage(text),
            404 => Failure::NotFound(text),
            401 => Failure::Failed(format!("{text} (--token, --token-file or PUNCTUAL_TOKEN)")),
            _ => Failure::Failed(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(rest: &str) -> String {
        let body = format!("{{\"type\":\"{TYPE}invalid\",{rest}}}");
        Refusal::parse(422, body.as_bytes(), None).expect("a problem").text()
    }

    #[test]
    fn every_field_is_named_once() {
        let one = r#""detail":"/delay: wrong","errors":[{"pointer":"/delay","detail":"wrong"}]"#;
        assert_eq!(text(one), "/delay: wrong");
        let two = r#""detail":"2 fields are invalid","errors":[{"pointer":"/a","detail":"x"},{"pointer":"/b/0","detail":"y"}]"#;
        assert_eq!(text(two), "2 fields are invalid\n  a: x\n  b/0: y");
    }

    #[test]
    fn problems_of_others_are_no_refusals() {
        for other in ["no JSON", "{}", r#"{"type":"about:blank","detail":"x"}"#] {
            assert_eq!(Refusal::parse(404, other.as_bytes(), None), None, "{other}");
        }
    }
}
