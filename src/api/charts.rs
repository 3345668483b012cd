//! Charts of the last 24 hours: deliveries of this instance, and pending messages.

use std::{process, sync::Arc, time::Duration};

use axum::{
    Extension, Json,
    extract::{Path, State},
};
use serde_json::{Map, Value, json};
use tokio::time::{sleep, timeout};

use super::{
    activity,
    auth::Grant,
    overview,
    state::Api,
    steps::{Chart, PER_SHORT, STEP_MILLIS},
};
use crate::time::{UnixMillis, wall_millis};

/// Maximum time until the end of a step is noticed when the clock was set: 10 s.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum time in which the pending messages of all routes are read at the end of a step.
const READ_TIME: Duration = Duration::from_mins(1);

/// A number of pending messages that a caller or a scrape has read is used if it is not older than this.
const FRESH: Duration = Duration::from_mins(1);

/// The chart of all routes of the token, and a short one of each route that delivered something.
pub async fn all(State(api): State<Arc<Api>>, Extension(grant): Extension<Arc<Grant>>) -> Json<Value> {
    let page = api.metrics.recorded();
    let mut activity = activity::by_route(&page);
    activity.retain(|route, _| grant.covers(route));
    let steps = api.steps.lock();
    let whole = steps.chart(activity.iter().map(|(route, activity)| (*route, activity)));
    let mut routes = Map::new();
    for (route, activity) in &activity {
        if let Some((first, delivered, failed)) = steps.chart([(*route, activity)]).short() {
            let short = json!({ "first": UnixMillis::new(first), "delivered": delivered, "failed": failed });
            routes.insert((*route).to_owned(), short);
        }
    }
    let mut reply = shown(steps.began(), &whole);
    drop(steps);
    reply["route_step_seconds"] = json!(STEP_MILLIS * PER_SHORT / 1000);
    reply["routes"] = routes.into();
    Json(reply)
}

pub async fn of_route(State(api): State<Arc<Api>>, Path(route): Path<String>) -> Json<Value> {
    let page = api.metrics.recorded();
    let activity = activity::by_route(&page).remove(&*route).unwrap_or_default();
    let steps = api.steps.lock();
    Json(shown(steps.began(), &steps.chart([(&*route, &activity)])))
}

fn shown(began: u64, chart: &Chart) -> Value {
    let Chart { first, delivered, failed, p99, pending } = chart;
    json!({
        "instance": { "host": overview::host(), "process": process::id() },
        "since": UnixMillis::new(began),
        "step_seconds": STEP_MILLIS / 1000,
        "first": UnixMillis::new(*first),
        "delivered": delivered,
        "failed": failed,
        "p99_seconds": p99,
        "pending": pending,
    })
}

/// Ends the running step if it is over. Returns the step that ended.
pub fn record(api: &Api) -> Option<u64> {
    let now = wall_millis().get();
    if api.steps.lock().is_running(now) {
        return None;
    }
    let page = api.metrics.recorded();
    api.steps.lock().record(now, &activity::by_route(&page))
}

/// Ends each step in its time, until the process ends. Must be called within a tokio runtime.
pub fn keep(api: Arc<Api>) {
    tokio::spawn(async move {
        loop {
            let left = STEP_MILLIS - wall_millis().get() % STEP_MILLIS;
            sleep(Duration::from_millis(left).min(LOOK_INTERVAL)).await;
            if let Some(step) = record(&api) {
                // While Redis is down the numbers are not known.
                let _ = timeout(READ_TIME, read_pending(&api, step)).await;
            }
        }
    });
}

/// Reads the pending messages of all routes, one at a time.
async fn read_pending(api: &Api, step: u64) {
    for route in api.queue.routes() {
        if let Ok(pending) = api.queue.pending(&route, FRESH).await {
            api.steps.lock().set_pending(step, &route, pending);
        }
    }
}
