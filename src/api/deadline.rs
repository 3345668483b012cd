//! The time that one request may take.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{MatchedPath, Request, State},
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse, Response},
};
use tokio::time::{Instant, timeout_at};

use super::{Api, problem::Problem};

/// A call that gives up by itself when its time is over gets this much longer, to say why.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// When a request's time is over; set by `bound`.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(pub Instant);

/// Answers 503 when `request_timeout` is over: what the request asked for may or may not have been done.
///
/// The call itself goes on, as it does when its caller hangs up: the store bounds it, and must see its own timeout
/// to notice that a connection is dead.
pub async fn bound(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
    let deadline = Instant::now() + api.request_timeout;
    request.extensions_mut().insert(Deadline(deadline));
    let method = request.method().clone();
    // The pattern, not the path: what a caller made up stays out of the log.
    let path = request.extensions().get::<MatchedPath>().cloned();
    let response = match timeout_at(deadline + LAST_WORDS, tokio::spawn(next.run(request))).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => {
            tracing::error!(%error, "a request ended in a panic");
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the request failed").into_response()
        }
        Err(_) => Problem::unavailable("not done within the request timeout").into_response(),
    };
    let path = path.as_ref().map_or("", MatchedPath::as_str);
    tracing::debug!(%method, path, status = response.status().as_u16(), "answered");
    response
}
