//! Routes: their numbers, pause, resume and the number of partitions.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use futures::future::join_all;
use serde::Serialize;
use serde_json::json;

use super::{
    audit::{Caller, Of},
    auth::Grant,
    body, message_body,
    problem::Problem,
    state::Api,
};
use crate::{
    queue::{QueueError, RouteStats},
    store::StoreError,
};

/// Maximum size of a body with a note, in bytes: each of its 500 characters may be two escapes of six.
const MAX_NOTE_BODY_BYTES: usize = 8192;

/// A route of the list. A route with keys of another type is an entry too, and does not hide the others.
#[derive(Serialize)]
#[serde(untagged)]
pub enum RouteEntry {
    Stats(Box<RouteStats>),
    Broken { route: Arc<str>, error: String },
}

impl RouteEntry {
    fn new(route: &Arc<str>, answer: Result<RouteStats, QueueError>) -> Result<Self, Problem> {
        match answer {
            Ok(stats) => Ok(RouteEntry::Stats(Box::new(stats))),
            Err(QueueError::Store(error @ StoreError::WrongType { .. })) => {
                Ok(RouteEntry::Broken { route: route.clone(), error: error.to_string() })
            }
            Err(error) => Err(error.into()),
        }
    }
}

pub async fn list(State(api): State<Arc<Api>>, Extension(grant): Extension<Arc<Grant>>) -> Result<Response, Problem> {
    Ok(Json(json!({ "routes": entries(&api, &grant).await? })).into_response())
}

/// The routes that the token covers. A token for all routes also gets unconfigured routes that hold messages.
pub async fn entries(api: &Api, grant: &Grant) -> Result<Vec<RouteEntry>, Problem> {
    let routes = api.queue.routes();
    let names: Vec<&Arc<str>> = routes.iter().filter(|name| grant.covers(name)).collect();
    let answers = join_all(names.iter().map(|name| api.queue.stats(name))).await;
    let mut routes = Vec::with_capacity(names.len());
    for (route, answer) in names.into_iter().zip(answers) {
        routes.push(RouteEntry::new(route, answer)?);
    }
    if grant.covers_all() {
        for (route, answer) in api.queue.unconfigured().await? {
            routes.push(RouteEntry::new(&route, answer.map_err(QueueError::from))?);
        }
    }
    Ok(routes)
}

pub async fn stats(State(api): State<Arc<Api>>, Path(route): Path<String>) -> Result<Response, Problem> {
    Ok(Json(api.queue.stats(&route).await?).into_response())
}

pub async fn pause(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(route): Path<String>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let body = body::read(&api.body_memory, request, MAX_NOTE_BODY_BYTES).await?;
    let note = message_body::parse_note(&body.bytes)?;
    let result = api.queue.pause(&route, caller.grant.name(), &note).await;
    caller.record_change("pause", &route, &Of::Note(&note), result)?;
    Ok(StatusCode::NO_CONTENT)
}

pub async fn resume(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(route): Path<String>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let body = body::read(&api.body_memory, request, MAX_NOTE_BODY_BYTES).await?;
    message_body::parse_nothing(&body.bytes)?;
    let result = api.queue.resume(&route).await;
    caller.record_change("resume", &route, &Of::Route, result)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sets the newest number of partitions of the route. An instance that is configured with that number moves the
/// messages.
pub async fn repartition(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(route): Path<String>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let body = body::read(&api.body_memory, request, MAX_NOTE_BODY_BYTES).await?;
    let partitions = message_body::parse_partitions(&body.bytes)?;
    let result = api.queue.choose_partitions(&route, partitions).await;
    caller.record_change("repartition", &route, &Of::Note(&format!("partitions: {partitions}")), result)?;
    Ok(StatusCode::NO_CONTENT)
}
