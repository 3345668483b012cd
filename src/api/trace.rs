//! The trace context of a request.

use axum::http::HeaderMap;

use crate::message::TraceHeaders;

/// `None` without a valid `traceparent`.
pub fn of_request(headers: &HeaderMap) -> Option<TraceHeaders> {
    headers.get("traceparent")?;
    let values = |name: &str| headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default());
    TraceHeaders::of(values("traceparent"), values("tracestate"))
}
