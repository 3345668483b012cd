//! Routes: their numbers, pause and resume.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use futures::future::join_all;
use serde::Serialize;
use serde_json::json;

use super::{Api, auth::Grant, problem::Problem};
use crate::{
    queue::{QueueError, RouteStats},
    store::StoreError,
};

/// A route of the list: one with a value of another type at its keys does not hide the others.
#[derive(Serialize)]
#[serde(untagged)]
enum RouteEntry {
    Stats(RouteStats),
    Broken { route: Arc<str>, error: String },
}

impl RouteEntry {
    fn new(route: &Arc<str>, answer: Result<RouteStats, QueueError>) -> Result<Self, Problem> {
        match answer {
            Ok(stats) => Ok(RouteEntry::Stats(stats)),
            Err(QueueError::Store(error @ StoreError::WrongType { .. })) => {
                Ok(RouteEntry::Broken { route: route.clone(), error: error.to_string() })
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The routes of the token. A token for all routes also gets unconfigured routes that hold messages.
pub async fn list(State(api): State<Arc<Api>>, Extension(grant): Extension<Arc<Grant>>) -> Result<Response, Problem> {
    let names: Vec<&Arc<str>> = api.routes.iter().filter(|name| grant.covers(name)).collect();
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
    Ok(Json(json!({ "routes": routes })).into_response())
}

pub async fn stats(State(api): State<Arc<Api>>, Path(route): Path<String>) -> Result<Response, Problem> {
    Ok(Json(api.queue.stats(&route).await?).into_response())
}

pub async fn pause(State(api): State<Arc<Api>>, Path(route): Path<String>) -> Result<StatusCode, Problem> {
    api.queue.pause(&route).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub async fn resume(State(api): State<Arc<Api>>, Path(route): Path<String>) -> Result<StatusCode, Problem> {
    api.queue.resume(&route).await?;
    Ok(StatusCode::NO_CONTENT)
}
