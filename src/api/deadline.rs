//! The timeout of a request, and calls that continue after it.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{MatchedPath, Request, State},
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse, Response},
};
use tokio::{
    sync::Semaphore,
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use super::problem::Problem;

/// Extra time for a call that ends by itself at the timeout, so that it can report the reason.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Maximum number of calls in progress, including calls that continue after their caller received 503 or disconnected:
/// twice the connections, so that callers that disconnect do not exclude others.
const MAX_CALLS: usize = 8192;

/// Maximum time that a call continues after its request: the largest `redis.timeout`. The store must reach its own
/// timeout to detect a dead connection. Longer work, such as the redrive of millions, continues with the next request.
const LONGEST_REST: Duration = Duration::from_mins(1);

/// The deadline of a request; set by `bound`.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(pub Instant);

/// The calls in progress.
pub struct Calls {
    places: Arc<Semaphore>,
    request_timeout: Duration,
}

impl Calls {
    pub fn new(request_timeout: Duration) -> Self {
        Self::of(MAX_CALLS, request_timeout)
    }

    fn of(places: usize, request_timeout: Duration) -> Self {
        Self { places: Arc::new(Semaphore::new(places)), request_timeout }
    }

    /// The call continues when the handle is dropped, at most until `end`. A call that reaches `end` has no output.
    /// Returns `None`, and does nothing, when `MAX_CALLS` are in progress.
    fn spawn<T: Send + 'static>(
        &self,
        end: Instant,
        call: impl Future<Output = T> + Send + 'static,
    ) -> Option<JoinHandle<Option<T>>> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        Some(tokio::spawn(async move {
            let _place = place;
            timeout_at(end, call).await.ok()
        }))
    }
}

/// Replies 503 at `request_timeout`: the caller does not know then whether the request took effect.
///
/// The call itself continues for a bounded time, also when its caller disconnects.
pub async fn bound(State(calls): State<Arc<Calls>>, mut request: Request, next: Next) -> Response {
    if request.uri().path() == "/livez" {
        // `/livez` waits for nothing, and must answer under any load.
        return next.run(request).await;
    }
    let deadline = Instant::now() + calls.request_timeout;
    request.extensions_mut().insert(Deadline(deadline));
    let method = request.method().clone();
    // The pattern, not the path: the log must not contain a caller's text.
    let path = request.extensions().get::<MatchedPath>().cloned();
    let response = match calls.spawn(deadline + LONGEST_REST, next.run(request)) {
        None => Problem::unavailable("too many requests are under way; nothing was changed").into_response(),
        Some(call) => match timeout_at(deadline + LAST_WORDS, call).await {
            Ok(Ok(Some(response))) => response,
            Ok(Err(error)) => {
                tracing::error!(%error, "a request ended in a panic");
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the request failed").into_response()
            }
            Ok(Ok(None)) | Err(_) => Problem::unavailable("not done within the request timeout").into_response(),
        },
    };
    let path = path.as_ref().map_or("", MatchedPath::as_str);
    tracing::debug!(%method, path, status = response.status().as_u16(), "answered");
    response
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_without_a_waiting_caller_ends_all_the_same() {
        let calls = Calls::of(1, Duration::ZERO);
        let (held, dropped) = oneshot::channel::<()>();
        let end = Instant::now() + LONGEST_REST;
        let endless = calls.spawn(end, async move {
            let _held = held;
            pending::<()>().await;
        });
        drop(endless.expect("a free place"));
        assert!(calls.spawn(end, async {}).is_none(), "its place is taken");
        assert!(dropped.await.is_err(), "it was ended");
        assert_eq!(Instant::now(), end);
    }

    #[tokio::test]
    async fn a_place_comes_free_with_the_end_of_its_call() {
        let calls = Calls::of(1, Duration::ZERO);
        for number in 0..3 {
            let call = calls.spawn(Instant::now() + LONGEST_REST, async move { number });
            assert_eq!(call.expect("a free place").await.expect("no panic"), Some(number));
        }
    }
}
