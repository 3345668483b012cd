//! The time that one request may take, and what may go on when it is over.

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

use super::{Api, problem::Problem};

/// A call that gives up by itself when its time is over gets this much longer, to say why.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Most calls under way, those included whose caller was told 503 or hung up: twice the connections, so that callers
/// who leave do not lock out those who stay, unless Redis is away and they come back at once.
const MAX_CALLS: usize = 8192;

/// How much longer than its request a call may go on: the largest `redis.timeout`. The store must see its own timeout
/// to notice that a connection is dead. Longer work, such as the redrive of millions, is taken up by the next request.
const LONGEST_REST: Duration = Duration::from_mins(1);

/// When a request's time is over; set by `bound`.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(pub Instant);

/// What is being done for requests.
pub struct Calls(Arc<Semaphore>);

impl Default for Calls {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_CALLS)))
    }
}

impl Calls {
    /// Goes on when the handle is dropped, but not past `end`: then there is no output. `None` when too many are under
    /// way: nothing has been done.
    fn spawn<T: Send + 'static>(
        &self,
        end: Instant,
        call: impl Future<Output = T> + Send + 'static,
    ) -> Option<JoinHandle<Option<T>>> {
        let place = Arc::clone(&self.0).try_acquire_owned().ok()?;
        Some(tokio::spawn(async move {
            let _place = place;
            timeout_at(end, call).await.ok()
        }))
    }
}

/// Answers 503 when `request_timeout` is over: what the request asked for may or may not have been done.
///
/// The call itself goes on for a while, as it does when its caller hangs up.
pub async fn bound(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
    if request.uri().path() == "/livez" {
        // It waits for nothing, and must answer whatever else is under way.
        return next.run(request).await;
    }
    let deadline = Instant::now() + api.request_timeout;
    request.extensions_mut().insert(Deadline(deadline));
    let method = request.method().clone();
    // The pattern, not the path: what a caller made up stays out of the log.
    let path = request.extensions().get::<MatchedPath>().cloned();
    let response = match api.calls.spawn(deadline + LONGEST_REST, next.run(request)) {
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
    async fn a_call_that_nobody_waits_for_ends_all_the_same() {
        let calls = Calls(Arc::new(Semaphore::new(1)));
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
        let calls = Calls(Arc::new(Semaphore::new(1)));
        for number in 0..3 {
            let call = calls.spawn(Instant::now() + LONGEST_REST, async move { number });
            assert_eq!(call.expect("a free place").await.expect("no panic"), Some(number));
        }
    }
}
