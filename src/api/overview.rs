//! The overview: as JSON for people (routes, sinks, sources, Redis, this instance and its work, the caller's rights),
//! and as the page of metrics.

use std::{process, sync::Arc, time::Duration};

use axum::{Extension, Json, extract::State, http::header, response::IntoResponse};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{activity, auth::Grant, metrics_page::STATS_TIMEOUT, routes, state::Api};

pub async fn overview(State(api): State<Arc<Api>>, Extension(grant): Extension<Arc<Grant>>) -> Json<Value> {
    // While Redis is down, the other parts are shown.
    let max_wait: Duration = api.request_timeout / 2;
    let listed = timeout(max_wait, routes::entries(&api, &grant));
    let (listed, sinks, sources, ready) = tokio::join!(
        listed,
        api.statuses.sinks(&grant),
        api.statuses.sources(&grant),
        timeout(max_wait, api.readiness.check()),
    );
    let (routes, mut error) = match listed {
        Ok(Ok(routes)) => (json!(routes), None),
        Ok(Err(problem)) => (Value::Null, Some(problem.detail().to_owned())),
        Err(_) => (Value::Null, Some("no answer in time".to_owned())),
    };
    let ready = ready.unwrap_or_else(|_| Err("no answer in time".to_owned()));
    let up = error.is_none();
    error = error.or_else(|| ready.as_ref().err().cloned());
    Json(json!({
        "routes": routes,
        "sinks": sinks,
        "sources": sources,
        "redis": { "up": up, "error": error },
        "instance": {
            "host": host(),
            "process": process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "ready": ready.is_ok(),
            "uptime_seconds": api.started.elapsed().as_secs(),
        },
        "activity": activity::shown(&api.metrics.recorded(), &grant),
        "token": grant.shown(),
    }))
}

/// The host of this instance, as the overview shows it.
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

pub async fn metrics(State(api): State<Arc<Api>>) -> impl IntoResponse {
    let page = api.metrics.render(STATS_TIMEOUT.min(api.request_timeout / 2), api.readiness.check()).await;
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page)
}
