//! The calls of `punctual dev`: the development clock, the inbox, and a reset.
//!
//! Advancing goes from due time to due time. At each stop it waits until no message is due or in flight, so retries and
//! schedules run in order, as they would in real time.

use std::{fmt, sync::Arc, time::Duration};

use axum::{
    Extension, Json, Router,
    extract::{Query, Request, State},
    http::{HeaderValue, StatusCode, header},
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use futures::future::{BoxFuture, join_all, try_join_all};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

use super::{
    activity,
    audit::{Caller, Of},
    auth::{self, Access, Authority, Grant},
    body, charts,
    deadline::Deadline,
    message_body::{self, Advance, Target},
    metrics_page,
    problem::{self, Problem},
    state::Api,
    strict,
};
use crate::{
    config::Right,
    queue::QueueError,
    sink::inbox::{Inbox, Listing},
    store::redis::{Coming, RedisStore},
    time::{self, UnixMillis, wall_clock},
};

/// Maximum number of due times at which one call stops.
const MAX_STOPS: u32 = 10_000;

/// Pauses between two looks at Redis while a stop settles.
const PAUSES: [Duration; 2] = [Duration::from_micros(500), Duration::from_millis(5)];

/// Interval at which a stop that does not settle wakes the schedulers again.
const WAKE_INTERVAL: Duration = Duration::from_secs(1);

/// The latest time of the clock: the year 2200. Microseconds up to 2255 are exact in a number of Lua.
const LATEST: u64 = 7_258_118_400_000;

/// Maximum time that a reset waits for messages in flight.
const RESET_WAIT: Duration = Duration::from_secs(5);

const MAX_BODY_BYTES: usize = 8192;

/// Maximum, and default, number of messages in a reply.
const MAX_LISTED: usize = 1000;

const INBOX_QUERY: &[&str] = &["route", "id", "limit"];

/// The parts of an instance that its clock moves.
pub struct Development {
    pub api: Arc<Api>,
    pub inbox: Arc<Inbox>,
    /// Whether sinks have messages, or the end of one is not counted yet.
    pub is_busy: Box<dyn Fn() -> bool + Send + Sync>,
    /// Passes over outboxes of dead letters that ended, and that began.
    pub passes: Box<dyn Fn() -> (u64, u64) + Send + Sync>,
    /// Sets the schedules of the file again, in a Redis that was emptied.
    pub set_schedules: Box<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>,
    /// One advance or reset at a time.
    pub turn: Mutex<()>,
}

#[derive(Deserialize)]
struct InboxQuery {
    route: Option<String>,
    id: Option<String>,
    limit: Option<usize>,
}

/// The reply to an advance.
#[derive(Debug, Serialize)]
struct Advanced {
    now: Option<UnixMillis>,
    /// The requested time: `to` of a call that continues this one.
    to: Option<UnixMillis>,
    /// Messages that sinks confirmed during the call.
    delivered: u64,
    /// Attempts that failed during the call.
    failed: u64,
    /// Messages that wait, on all routes.
    pending: u64,
    /// No message is due or in flight.
    settled: bool,
    /// The clock is not at the requested time yet.
    more: bool,
}

/// `router` of the same instance, with the calls of development.
pub fn extended(router: Router, development: Arc<Development>) -> Router {
    let api = Arc::clone(&development.api);
    let (guard, queue) = (&api.guard, &api.queue);
    let call = |handler: MethodRouter<Arc<Development>>, right, query: &'static [&'static str]| {
        let authority = Authority { guard: Arc::clone(guard), queue: Arc::clone(queue), access: Access::Needs(right) };
        let authorise = from_fn_with_state(authority, auth::authorise);
        handler.route_layer(from_fn_with_state(query, strict::check_query)).route_layer(authorise)
    };
    let inbox = call(get(list), Right::Read, INBOX_QUERY).merge(call(axum::routing::delete(clear), Right::Admin, &[]));
    let own = Router::new()
        .route("/v1/clock", call(get(clock), Right::Read, &[]))
        .route("/v1/clock/advance", call(post(advance), Right::Admin, &[]))
        .route("/v1/inbox", inbox)
        .route("/v1/reset", call(post(reset), Right::Admin, &[]))
        .layer(from_fn_with_state(Arc::clone(guard), auth::authenticate))
        .layer(from_fn_with_state(api.request_timeout, read_in_time))
        .layer(from_fn(strict::check))
        .layer(from_fn(problem::normalise))
        .layer(from_fn(metrics_page::measure))
        .with_state(development);
    router.merge(own).layer(from_fn(date))
}

/// An advance lasts longer than other calls, but its body must arrive in time.
async fn read_in_time(State(limit): State<Duration>, mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(Deadline(Instant::now() + limit));
    next.run(request).await
}

/// The `Date` of replies is on the development clock, which the console follows.
async fn date(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let date = jiff::Timestamp::try_from(wall_clock()).ok().and_then(|at| {
        let text = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&at).ok()?;
        HeaderValue::try_from(text).ok()
    });
    if let Some(date) = date {
        response.headers_mut().insert(header::DATE, date);
    }
    response
}

async fn clock(State(development): State<Arc<Development>>) -> Result<Json<Value>, Problem> {
    let now = development.coming().await?.now / 1000;
    Ok(Json(json!({ "now": UnixMillis::new(now), "ahead_ms": time::ahead() / 1000 })))
}

async fn advance(
    State(development): State<Arc<Development>>,
    caller: Caller,
    request: Request,
) -> Result<Response, Problem> {
    all_routes(&caller.grant)?;
    let body = body::read(&development.api.body_memory, request, MAX_BODY_BYTES).await?;
    let Advance { to, wait } = message_body::parse_advance(&body.bytes)?;
    let _turn = development.turn.lock().await;
    let now = development.coming().await?.now;
    let latest = match to {
        Target::By(millis) => now.saturating_add(millis.saturating_mul(1000)),
        Target::At(at) => at.get().saturating_mul(1000),
    };
    if latest < now && matches!(to, Target::At(_)) {
        return Err(Problem::invalid(vec![message_body::is_past("/to")]));
    }
    if latest > LATEST * 1000 {
        let pointer = if matches!(to, Target::By(_)) { "/by" } else { "/to" };
        return Err(Problem::invalid(vec![message_body::is_too_far(pointer)]));
    }
    Ok(Json(development.advance(latest, Instant::now() + wait).await?).into_response())
}

async fn list(
    State(development): State<Arc<Development>>,
    Extension(grant): Extension<Arc<Grant>>,
    query: Result<Query<InboxQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Problem> {
    let Query(InboxQuery { route, id, limit }) = query.map_err(|error| Problem::bad_request(error.body_text()))?;
    if limit.is_some_and(|limit| !(1..=MAX_LISTED).contains(&limit)) {
        return Err(Problem::bad_request(format!("`limit` is 1 to {MAX_LISTED}")));
    }
    if let Some(route) = route.as_deref().filter(|route| !development.api.queue.has_route(route)) {
        return Err(Problem::unknown_route(route));
    }
    let (selected, visible) = ((route.as_deref(), id.as_deref()), |route: &str| grant.covers(route));
    let listed = |listing: &Listing<'_>| Json(listing).into_response();
    Ok(development.inbox.list(selected, visible, limit.unwrap_or(MAX_LISTED), listed))
}

async fn clear(State(development): State<Arc<Development>>, caller: Caller) -> Result<Json<Value>, Problem> {
    all_routes(&caller.grant)?;
    Ok(Json(json!({ "deleted": development.inbox.clear() })))
}

/// Deletes all messages, schedules set over the API, and the inbox. The clock stays where it is.
async fn reset(State(development): State<Arc<Development>>, caller: Caller) -> Result<StatusCode, Problem> {
    all_routes(&caller.grant)?;
    let _turn = development.turn.lock().await;
    let end = Instant::now() + RESET_WAIT;
    while (development.is_busy)() || development.is_forwarding_since(development.ended_passes()) {
        if Instant::now() >= end {
            let text = "messages are in flight; nothing was deleted";
            return Err(Problem::new(StatusCode::CONFLICT, "in-flight", text));
        }
        sleep(PAUSES[1]).await;
    }
    let failed = |error: &dyn fmt::Display| Problem::unavailable(error.to_string());
    let emptied = development.store().empty().await.map(|()| true);
    caller.record_change("reset", "", &Of::Route, emptied).map_err(|error| failed(&error))?;
    development.api.queue.prepare_again().await.map_err(|error| failed(&error))?;
    (development.set_schedules)().await.map_err(|error| failed(&error))?;
    development.inbox.clear();
    Ok(StatusCode::NO_CONTENT)
}

/// 403 for a token that is limited to routes: these calls concern all of them.
fn all_routes(grant: &Grant) -> Result<(), Problem> {
    if grant.covers_all() {
        return Ok(());
    }
    let text = "the call concerns all routes, and the token is for some";
    Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", text))
}

impl Development {
    fn store(&self) -> Arc<RedisStore> {
        self.api.queue.store()
    }

    async fn coming(&self) -> Result<Coming, Problem> {
        // A window is open or closed at a time that differs from that of the script by less than a call.
        let now = time::wall_millis();
        let opening = |route: &str| {
            let window = self.api.queue.window(route, now).filter(|window| !window.open);
            window.map_or(0, |window| window.until.map_or(time::LAST_MILLIS, UnixMillis::get))
        };
        let coming = self.store().coming(&opening).await.map_err(QueueError::from)?;
        if coming.ahead >= time::ahead() {
            return Ok(coming);
        }
        // The clock must not go back.
        self.store().set_ahead(time::ahead()).await.map_err(QueueError::from)?;
        Ok(self.store().coming(opening).await.map_err(QueueError::from)?)
    }

    fn ended_passes(&self) -> u64 {
        (self.passes)().0
    }

    /// Whether a dead letter can have been on neither route since that number of passes had ended.
    fn is_forwarding_since(&self, ended: u64) -> bool {
        (self.passes)().1 != ended
    }

    /// Moves the clock to `latest`, in microseconds, until `end`.
    async fn advance(&self, latest: u64, end: Instant) -> Result<Advanced, Problem> {
        let before = self.attempts();
        let (mut stops, mut pause, mut woken) = (0, PAUSES[0], None);
        let (settled, more) = loop {
            let ended = self.ended_passes();
            let Coming { now, next_due, busy, .. } = self.coming().await?;
            let is_over = Instant::now() >= end;
            if !busy.is_empty() || (self.is_busy)() || self.is_forwarding_since(ended) {
                if is_over {
                    break (false, now < latest);
                }
                if woken.is_none_or(|at| Instant::now() >= at + WAKE_INTERVAL) {
                    woken = Some(Instant::now());
                    // An error only costs time.
                    let store = self.store();
                    join_all(busy.iter().map(|partition| store.wake_busy(partition))).await;
                }
                sleep(pause).await;
                pause = (pause * 2).min(PAUSES[1]);
                continue;
            }
            if now >= latest || is_over || stops == MAX_STOPS {
                break (true, now < latest);
            }
            let next_stop = next_due.map_or(latest, |due| latest.min(due.get().saturating_mul(1000)));
            let ahead = time::ahead() + next_stop.saturating_sub(now);
            // First here: a message must not seem early when it arrives at once.
            time::set_ahead(ahead);
            // Before a delivery at the new time: it counts there.
            charts::record(&self.api);
            self.store().set_ahead(ahead).await.map_err(QueueError::from)?;
            (stops, pause, woken) = (stops + 1, PAUSES[0], None);
        };
        let after = self.attempts();
        let queue = &self.api.queue;
        let routes = queue.routes();
        let stats = try_join_all(routes.iter().map(|route| queue.stats(route))).await?;
        Ok(Advanced {
            now: UnixMillis::new(self.coming().await?.now / 1000),
            // Not before `latest`: microseconds are rounded up.
            to: UnixMillis::new(latest.div_ceil(1000)),
            delivered: after.0 - before.0,
            failed: after.1 - before.1,
            pending: stats.iter().map(|stats| stats.pending).sum(),
            settled,
            more,
        })
    }

    /// Messages that were delivered and attempts that failed since the start.
    fn attempts(&self) -> (u64, u64) {
        activity::total(&self.api.metrics.recorded())
    }
}
