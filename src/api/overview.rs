//! Everything at once: routes, sinks, sources, Redis, this instance and its work, and the caller's rights.

use std::{process, sync::Arc, time::Duration};

use axum::{Extension, Json, extract::State};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Api, activity, auth::Grant, routes, sinks, sources};

pub async fn overview(State(api): State<Arc<Api>>, Extension(grant): Extension<Arc<Grant>>) -> Json<Value> {
    // The other parts are shown while Redis is down.
    let patience: Duration = api.request_timeout / 2;
    let listed = timeout(patience, routes::entries(&api, &grant));
    let (listed, sinks, sources, ready) = tokio::join!(
        listed,
        sinks::shown(&api, &grant),
        sources::shown(&api, &grant),
        timeout(patience, api.readiness.check(&api.queue)),
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
            "host": rustix::system::uname().nodename().to_string_lossy(),
            "process": process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "ready": ready.is_ok(),
            "uptime_seconds": api.started.elapsed().as_secs(),
        },
        "activity": activity::shown(&api.metrics.recorded(), &grant),
        "token": grant.shown(),
    }))
}
