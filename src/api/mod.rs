//! The HTTP API of the queue.
//!
//! A request passes, from the outside in: `problem::normalise` (every error as problem+json), `strict::check`
//! (ambiguous requests), `deadline::bound` (`request_timeout`), `auth::authenticate` (401; without tokens
//! `origin::check`: 421, 403), the table of `endpoints`, `auth::authorise` (403, then 404 for an unknown route), and
//! its handler. Only `body::read` reads bodies: it bounds size, time and the memory of all bodies. `readers` does that
//! for replies with messages. `server::serve` and `connections` bound connections.

mod activity;
mod audit;
mod auth;
mod body;
mod bulk;
mod charts;
mod connections;
mod console;
mod deadline;
mod development;
mod edit;
mod ended;
mod filter;
mod find;
mod flows;
mod forecast;
#[cfg(test)]
mod fuzz;
mod groups;
mod health;
mod ids;
mod lingering;
mod listener;
mod listing;
mod message_body;
mod messages;
mod metrics_page;
mod openapi;
mod origin;
mod overview;
mod post;
mod problem;
mod rate;
mod raw;
mod readers;
mod reload;
mod reloads;
mod replaced;
mod routes;
mod scheduled;
mod schedules;
mod server;
mod shown;
mod shown_end;
mod spare;
mod state;
mod statuses;
mod steps;
mod strict;
mod trace;

use std::sync::Arc;

use axum::{
    Router,
    http::Method,
    middleware::{from_fn, from_fn_with_state},
    routing::{MethodRouter, delete, get, patch, post, put},
};

/// Maximum bytes of all bodies and listings that the API has in memory.
pub const MAX_MEMORY: u64 = (body::BODY_MEMORY_KIB as u64 + readers::MEMORY_KIB) * 1024;

use self::auth::{Access, Authority};
pub use self::{
    charts::keep as keep_charts,
    connections::ConnectionLimits,
    development::Development,
    ids::{NewId, ulids},
    listener::Listener,
    message_body::{JSON, TEXT},
    metrics_page::MetricsPage,
    post::{MAX_JSON_BYTES, VIA},
    problem::TYPE as PROBLEM_TYPE,
    reloads::{Mistake, ReloadRequest, Reloaded, Reloads},
    server::serve,
    state::Api,
    statuses::{BreakerState, DownDomain, Failing, FailingSinks, SinkStatus, SinkStatuses, SourceStatuses, Statuses},
};
use crate::{
    config::Right,
    store::{DeadAction, Expiry},
};

/// The router of the API, for `serve`.
pub fn router(api: impl Into<Arc<Api>>) -> Router {
    router_with(api.into(), console::Variant::Production)
}

/// The router of an instance for tests.
pub fn development_router(development: Arc<Development>) -> Router {
    let router = router_with(Arc::clone(&development.api), console::Variant::Development);
    development::extended(router, development)
}

fn router_with(api: Arc<Api>, variant: console::Variant) -> Router {
    let mut router = Router::new();
    for Endpoint { path, access, query, handler, .. } in endpoints() {
        let authority = Authority { guard: Arc::clone(&api.guard), queue: Arc::clone(&api.queue), access };
        let authorise = from_fn_with_state(authority, auth::authorise);
        let check_query = from_fn_with_state(query, strict::check_query);
        router = router.route(path, handler.route_layer(check_query).route_layer(authorise));
    }
    if api.has_console {
        let guard = Arc::clone(&api.guard);
        router = console::routes(router, move || guard.load().asks(), variant);
    }
    router
        .layer(from_fn_with_state(Arc::clone(&api.guard), auth::authenticate))
        .layer(from_fn_with_state(Arc::clone(&api.calls), deadline::bound))
        .layer(from_fn(strict::check))
        .layer(from_fn(problem::normalise))
        .layer(from_fn(metrics_page::measure))
        .with_state(api)
}

/// `/livez` and `/readyz` alone, for a listener of their own.
pub fn probes(api: Arc<Api>) -> Router {
    Router::new()
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .layer(from_fn_with_state(Arc::clone(&api.calls), deadline::bound))
        .layer(from_fn(strict::check))
        .layer(from_fn(problem::normalise))
        .with_state(api)
}

/// A call. A test checks that `openapi.json` has the same ones.
struct Endpoint {
    #[cfg_attr(not(test), expect(dead_code, reason = "the handler knows its method; the test compares"))]
    method: Method,
    path: &'static str,
    access: Access,
    /// The names of its query parameters.
    query: &'static [&'static str],
    handler: MethodRouter<Arc<Api>>,
}

fn endpoints() -> Vec<Endpoint> {
    const MESSAGES: &str = "/v1/routes/{route}/messages";
    const MESSAGE: &str = "/v1/routes/{route}/messages/{id}";
    const FLOWS: &str = "/v1/routes/{route}/flows";
    const SCHEDULE: &str = "/v1/schedules/{name}";
    const GROUP: &str = "/v1/routes/{route}/groups/{group}";
    const FLOW: &str = "/v1/routes/{route}/flows/{flow}";
    let (schedule, read, admin) =
        (Access::Needs(Right::Schedule), Access::Needs(Right::Read), Access::Needs(Right::Admin));
    let with = |method, path, access, query, handler| Endpoint { method, path, access, query, handler };
    let call = |method, path, access, handler| with(method, path, access, &[], handler);
    vec![
        call(Method::POST, MESSAGES, schedule, post(post::messages)),
        with(Method::GET, MESSAGES, read, messages::LIST_QUERY, get(messages::list)),
        call(Method::GET, MESSAGE, read, get(messages::look_at)),
        call(Method::PATCH, MESSAGE, schedule, patch(edit::change)),
        call(Method::DELETE, MESSAGE, schedule, delete(messages::cancel)),
        call(Method::POST, "/v1/routes/{route}/messages/{id}/deliver", schedule, post(messages::deliver)),
        call(Method::POST, "/v1/routes/{route}/purge", admin, bulk::act_on_pending(false)),
        call(Method::POST, "/v1/routes/{route}/move", admin, bulk::act_on_pending(true)),
        call(Method::GET, "/v1/messages/{id}", read, get(find::find)),
        with(Method::POST, "/v1/routes/{route}/raw", schedule, raw::QUERY, post(raw::raw)),
        call(
            Method::POST,
            "/v1/routes/{route}/dead/redrive",
            admin,
            bulk::act_on_dead(DeadAction::Redrive(Expiry::Drop)),
        ),
        call(Method::POST, "/v1/routes/{route}/dead/forward", admin, bulk::act_on_dead(DeadAction::Forward)),
        call(Method::POST, "/v1/routes/{route}/dead/purge", admin, bulk::act_on_dead(DeadAction::Purge)),
        with(Method::GET, "/v1/routes/{route}/dead/summary", read, filter::FILTER_QUERY, get(bulk::summary)),
        with(Method::GET, "/v1/routes/{route}/forecast", read, forecast::QUERY, get(forecast::forecast)),
        with(Method::GET, "/v1/forecast", read, forecast::QUERY, get(forecast::of_all)),
        call(Method::GET, "/v1/routes/{route}/chart", read, get(charts::of_route)),
        call(Method::GET, "/v1/charts", read, get(charts::all)),
        call(Method::POST, "/v1/routes/{route}/pause", admin, post(routes::pause)),
        call(Method::POST, "/v1/routes/{route}/resume", admin, post(routes::resume)),
        call(Method::POST, "/v1/routes/{route}/repartition", admin, post(routes::repartition)),
        with(Method::GET, FLOWS, read, flows::LIST_QUERY, get(flows::list)),
        call(Method::GET, FLOW, read, get(flows::look_at)),
        call(Method::PATCH, FLOW, admin, patch(flows::change)),
        call(Method::POST, "/v1/routes/{route}/flows/{flow}/pause", admin, post(flows::pause)),
        call(Method::POST, "/v1/routes/{route}/flows/{flow}/resume", admin, post(flows::resume)),
        with(Method::GET, GROUP, read, groups::LIST_QUERY, get(groups::look_at)),
        with(Method::DELETE, GROUP, schedule, groups::CHANGE_QUERY, delete(groups::cancel)),
        with(Method::PATCH, GROUP, schedule, groups::CHANGE_QUERY, patch(groups::move_to)),
        with(
            Method::POST,
            "/v1/routes/{route}/groups/{group}/deliver",
            schedule,
            groups::CHANGE_QUERY,
            post(groups::deliver),
        ),
        call(Method::GET, "/v1/schedules", read, get(schedules::list)),
        call(Method::POST, "/v1/schedules/preview", read, post(schedules::preview)),
        call(Method::GET, SCHEDULE, read, get(schedules::look_at)),
        call(Method::PUT, SCHEDULE, admin, put(schedules::set)),
        call(Method::DELETE, SCHEDULE, admin, delete(schedules::delete)),
        call(Method::POST, "/v1/schedules/{name}/run", admin, post(schedules::run)),
        call(Method::POST, "/v1/schedules/{name}/pause", admin, post(schedules::pause)),
        call(Method::POST, "/v1/schedules/{name}/resume", admin, post(schedules::resume)),
        with(Method::GET, "/v1/schedules/{name}/next", read, schedules::NEXT_QUERY, get(schedules::next)),
        call(Method::GET, "/v1/routes", read, get(routes::list)),
        call(Method::GET, "/v1/routes/{route}", read, get(routes::stats)),
        call(Method::POST, "/v1/reload", admin, post(reload::reload)),
        call(Method::GET, "/v1/overview", read, get(overview::overview)),
        call(Method::GET, "/v1/sinks", read, get(statuses::sinks)),
        call(Method::GET, "/v1/sources", read, get(statuses::sources)),
        call(Method::GET, "/metrics", Access::Metrics, get(overview::metrics)),
        call(Method::GET, "/livez", Access::Open, get(health::livez)),
        call(Method::GET, "/readyz", Access::Open, get(health::readyz)),
        call(Method::GET, "/openapi.json", Access::AnyToken, get(openapi::document)),
    ]
}
