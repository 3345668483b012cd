//! Errors as RFC 9457 problem details.

use axum::{
    body::to_bytes,
    extract::Request,
    http::{HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde::Serialize;

use crate::{message::Limit, queue::QueueError, store::StoreError};

const CONTENT_TYPE: &str = "application/problem+json";

/// Prefix of the kind in `type`.
pub const TYPE: &str = "urn:problem-type:punctual:";

/// Maximum number of characters of a quoted text: long values are not echoed.
pub const MAX_DETAIL_CHARS: usize = 300;

/// An error reply.
#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    /// The last part of `type`, for programs.
    kind: &'static str,
    detail: String,
    errors: Vec<FieldError>,
    /// Seconds for `Retry-After`.
    retry_after: Option<u64>,
}

/// One invalid field of a request body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldError {
    /// RFC 6901; empty for the whole body.
    pub pointer: String,
    pub detail: String,
    /// Whether the only fault is the size: 413 instead of 422.
    #[serde(skip)]
    pub too_large: bool,
}

impl FieldError {
    pub fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), detail: shortened(detail.into()), too_large: false }
    }
}

impl Problem {
    /// The text of the problem and the errors of its fields.
    #[cfg(test)]
    pub fn parts(self) -> (String, Vec<FieldError>) {
        (self.detail, self.errors)
    }

    pub fn new(status: StatusCode, kind: &'static str, detail: impl Into<String>) -> Self {
        let retry_after = (status == StatusCode::SERVICE_UNAVAILABLE).then_some(1);
        Self { status, kind, detail: shortened(detail.into()), errors: Vec::new(), retry_after }
    }

    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The problem of a call that had already changed `changed` messages.
    #[must_use]
    pub fn after(self, changed: u64) -> Self {
        if changed == 0 {
            return self;
        }
        Self { detail: format!("{changed} or more messages were changed, then: {}", self.detail), ..self }
    }

    /// 400: an error outside of the JSON body.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", detail)
    }

    /// Well-formed JSON with these faults (at least one): 422, or 413 when all faults are sizes.
    pub fn invalid(errors: Vec<FieldError>) -> Self {
        let detail = match errors.as_slice() {
            [only] if only.pointer.is_empty() => only.detail.clone(),
            [only] => format!("{}: {}", only.pointer, only.detail),
            many => format!("{} fields are invalid; nothing was changed", many.len()),
        };
        let base = if errors.iter().all(|error| error.too_large) {
            Self::too_large(detail)
        } else {
            Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail)
        };
        Self { errors, ..base }
    }

    /// 400: some values outside of a JSON body (at least one) cannot be read. Pointers are names of parameters and headers.
    pub fn unreadable(errors: Vec<FieldError>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, kind: "bad-request", ..Self::invalid(errors) }
    }

    /// 422: the files of the configuration have these mistakes (at least one). Each detail is a line of `punctual check`.
    pub fn configuration(errors: Vec<FieldError>) -> Self {
        let detail = match errors.as_slice() {
            [only] => only.detail.clone(),
            many => format!("{} mistakes in the configuration; nothing was changed", many.len()),
        };
        Self { errors, ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-configuration", detail) }
    }

    /// The problem with some of this number of mistakes.
    #[must_use]
    pub fn of(self, count: usize) -> Self {
        let named = self.errors.len();
        if named == count {
            return self;
        }
        Self { detail: format!("{count} mistakes, of which {named} are named; nothing was changed"), ..self }
    }

    pub fn too_large(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail)
    }

    pub fn unknown_route(route: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "unknown-route", format!("there is no route `{}`", route.escape_debug()))
    }

    pub fn unknown_message(id: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "unknown-message", format!("`{id}` is delivered, cancelled or unknown"))
    }

    pub fn in_flight(id: &str) -> Self {
        Self::new(StatusCode::CONFLICT, "in-flight", format!("`{id}` is being delivered at this moment"))
    }

    /// 503: the caller does not know whether the request took effect, and repeats it with the same id.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
    }

    /// 429 at a limit of the route: nothing was written. Has `Retry-After`, except for a delay that is too long.
    pub fn over(limit: Limit) -> Self {
        let base = Self::new(StatusCode::TOO_MANY_REQUESTS, limit.problem(), limit.explain());
        Self { retry_after: (limit != Limit::Delay).then_some(1), ..base }
    }

    /// 429: the token's rate is exceeded. `seconds`: time until the same number is admitted, at least 1.
    pub fn too_fast(rate: u32, seconds: u64) -> Self {
        let text =
            format!("the token may send {rate} messages a second: nothing was scheduled, try again in {seconds} s");
        let base = Self::new(StatusCode::TOO_MANY_REQUESTS, "limit-rate", text);
        Self { retry_after: Some(seconds), ..base }
    }
}

impl From<QueueError> for Problem {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::UnknownRoute(route) => Self::unknown_route(&route),
            error @ QueueError::NoForwarding(_) => Self::new(StatusCode::CONFLICT, "no-forwarding", error.to_string()),
            error @ QueueError::NoFlows(_) => Self::new(StatusCode::NOT_FOUND, "no-flows", error.to_string()),
            error @ QueueError::NoHistory(_) => Self::new(StatusCode::NOT_FOUND, "no-history", error.to_string()),
            QueueError::Full(limit) => Self::over(limit),
            QueueError::Invalid(text) => Self::bad_request(text),
            QueueError::Store(error) => error.into(),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable { .. } => Self::unavailable(error.to_string()),
            StoreError::Refused { slug, text } if slug.contains("large") => Self::too_large(text),
            StoreError::Refused { text, .. } => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "refused", text),
            // No `Retry-After`, because waiting does not help: an operator must act.
            StoreError::WrongType { .. } => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "wrong-type", error.to_string())
            }
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    r#type: String,
    title: String,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: &'a [FieldError],
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let document = Document {
            r#type: format!("{TYPE}{}", self.kind),
            title: self.kind.replace('-', " "),
            status: self.status.as_u16(),
            detail: &self.detail,
            errors: &self.errors,
        };
        let json = serde_json::to_vec(&document).expect("strings and integers always serialize");
        let mut response = (self.status, [(header::CONTENT_TYPE, CONTENT_TYPE)], json).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Turns the framework's own errors (unknown path, wrong method, invalid query) into problem details.
pub async fn normalise(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let status = response.status();
    let is_problem = response.headers().get(header::CONTENT_TYPE).is_some_and(|value| value == CONTENT_TYPE);
    if is_problem || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (parts, body) = response.into_parts();
    // The framework's texts are one line. `Problem` shortens long ones.
    let text = to_bytes(body, 64 * 1024).await.unwrap_or_default();
    let (kind, fallback) = match status {
        StatusCode::NOT_FOUND => ("unknown-path", "there is nothing at this path"),
        StatusCode::METHOD_NOT_ALLOWED => ("method-not-allowed", "this path has other methods: see `Allow`"),
        _ if status.is_client_error() => ("bad-request", "the request cannot be read"),
        _ => ("internal", "the request failed"),
    };
    let text = if text.is_empty() { fallback.into() } else { String::from_utf8_lossy(&text).into_owned() };
    let mut problem = Problem::new(status, kind, text).into_response();
    if let Some(allow) = parts.headers.get(header::ALLOW) {
        problem.headers_mut().insert(header::ALLOW, allow.clone());
    }
    problem
}

fn shortened(text: String) -> String {
    match text.char_indices().nth(MAX_DETAIL_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_of_the_queue_has_its_status() {
        let status = |error: QueueError| Problem::from(error).into_response().status().as_u16();
        let store = |error: StoreError| status(QueueError::Store(error));
        let text = String::from("x");
        assert_eq!(status(QueueError::UnknownRoute(text.clone())), 404);
        assert_eq!(status(QueueError::Invalid(text.clone())), 400);
        assert_eq!(store(StoreError::Unavailable { kind: "io", text: text.clone() }), 503);
        assert_eq!(store(StoreError::WrongType { text: text.clone() }), 500);
        assert_eq!(store(StoreError::Refused { slug: "too_large".into(), text: text.clone() }), 413);
        assert_eq!(store(StoreError::Refused { slug: "due".into(), text }), 422);
    }

    #[test]
    fn unavailable_says_when_to_come_back_and_unauthorized_how_to_come_in() {
        let response = Problem::unavailable("x").into_response();
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        assert_eq!(response.headers()[header::CONTENT_TYPE], CONTENT_TYPE);
        let response = Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "x").into_response();
        assert_eq!(response.headers()[header::WWW_AUTHENTICATE], "Bearer");
    }

    #[test]
    fn only_sizes_make_413_and_anything_else_422() {
        let small = FieldError::new("/0/id", "bad");
        let large = FieldError { too_large: true, ..FieldError::new("/1/payload", "too large") };
        let status = |errors: Vec<FieldError>| Problem::invalid(errors).status;
        assert_eq!(status(vec![large.clone()]), 413);
        assert_eq!(status(vec![small, large]), 422);
    }

    #[test]
    fn a_hostile_value_is_not_echoed_in_full() {
        let problem = Problem::bad_request("é".repeat(1_000_000));
        assert!(problem.detail.chars().count() < MAX_DETAIL_CHARS + 10);
    }
}
