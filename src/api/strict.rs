//! Refuses ambiguous requests.

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use percent_encoding::percent_decode_str;
use url::form_urlencoded;

use super::{filter::HEADER, problem::Problem};

/// 501 for a transfer coding other than `chunked`; 400 for two `Host` headers, and for a query that is not UTF-8 after
/// decoding.
pub async fn check(request: Request, next: Next) -> Response {
    if !is_known_transfer(request.headers()) {
        let text = "of transfer codings only `chunked` is known";
        let mut refused = Problem::new(StatusCode::NOT_IMPLEMENTED, "not-implemented", text).into_response();
        // The end of the body is ambiguous.
        refused.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        return refused;
    }
    if request.headers().get_all(header::HOST).iter().nth(1).is_some() {
        return Problem::bad_request("`Host` comes twice").into_response();
    }
    if percent_decode_str(request.uri().query().unwrap_or_default()).decode_utf8().is_err() {
        return Problem::bad_request("the query is not UTF-8").into_response();
    }
    next.run(request).await
}

/// 400 for an unknown query parameter: a misspelt filter must not select all.
pub async fn check_query(State(known): State<&'static [&'static str]>, request: Request, next: Next) -> Response {
    let query = request.uri().query().unwrap_or_default();
    for (name, _) in form_urlencoded::parse(query.as_bytes()) {
        let is_header = known.contains(&"header.NAME") && name.len() > HEADER.len() && name.starts_with(HEADER);
        if !known.contains(&&*name) && !is_header {
            let text = if known.is_empty() {
                format!("`{name}`: this call has no query parameters")
            } else {
                format!("`{name}` is no query parameter of this call: it has {}", known.join(", "))
            };
            return Problem::bad_request(text).into_response();
        }
    }
    next.run(request).await
}

fn is_known_transfer(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let is_chunked = |coding: &HeaderValue| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    codings.next().is_none_or(is_chunked) && codings.next().is_none()
}
