//! The time that one request may take.

use std::sync::Arc;

use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tokio::time::{Instant, timeout_at};

use super::{Api, problem::Problem};

/// When a request's time is over; set by `bound`.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(pub Instant);

/// Answers 503 when `request_timeout` is over: what the request asked for may or may not have been done.
pub async fn bound(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
    let deadline = Instant::now() + api.request_timeout;
    request.extensions_mut().insert(Deadline(deadline));
    let method = request.method().clone();
    // The pattern, not the path: what a caller made up stays out of the log.
    let path = request.extensions().get::<MatchedPath>().cloned();
    let response = timeout_at(deadline, next.run(request))
        .await
        .unwrap_or_else(|_| Problem::unavailable("not done within the request timeout").into_response());
    let path = path.as_ref().map_or("", MatchedPath::as_str);
    tracing::debug!(%method, path, status = response.status().as_u16(), "answered");
    response
}
