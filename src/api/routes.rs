//! Routes: their numbers, and whether they deliver.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use futures::future::join_all;
use serde::Serialize;

use super::{Api, auth::Grant, problem::Problem};
use crate::{
    port::StoreError,
    queue::{QueueError, RouteStats},
};

#[derive(Serialize)]
struct Stats<'a> {
    route: &'a str,
    sink: &'a str,
    paused: bool,
    pending: u64,
    due: u64,
    unack: u64,
    dead: u64,
    next_due: Option<String>,
    oldest_overdue_seconds: f64,
}

impl<'a> From<&'a RouteStats> for Stats<'a> {
    fn from(stats: &'a RouteStats) -> Self {
        Self {
            route: &stats.route,
            sink: &stats.sink,
            paused: stats.paused,
            pending: stats.pending,
            due: stats.due,
            unack: stats.unack,
            dead: stats.dead,
            next_due: stats.next_due.map(crate::time::UnixMillis::to_rfc3339),
            oldest_overdue_seconds: stats.oldest_overdue_seconds,
        }
    }
}

/// A route of the list: one with a foreign value at its keys does not hide the others.
#[derive(Serialize)]
#[serde(untagged)]
enum Entry<'a> {
    Stats(Stats<'a>),
    Broken { route: &'a str, error: String },
}

/// The routes that the token is for.
pub async fn list(State(api): State<Arc<Api>>, Extension(grant): Extension<Arc<Grant>>) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Listing<'a> {
        routes: Vec<Entry<'a>>,
    }
    let names: Vec<&str> = api.routes.iter().map(|name| &**name).filter(|name| grant.covers(name)).collect();
    let answers = join_all(names.iter().map(|name| api.queue.stats(name))).await;
    let mut routes = Vec::with_capacity(names.len());
    for (route, answer) in names.iter().zip(&answers) {
        routes.push(match answer {
            Ok(stats) => Entry::Stats(stats.into()),
            Err(QueueError::Store(error @ StoreError::WrongType { .. })) => {
                Entry::Broken { route, error: error.to_string() }
            }
            Err(error) => return Err(error.clone().into()),
        });
    }
    Ok(Json(Listing { routes }).into_response())
}

pub async fn stats(State(api): State<Arc<Api>>, Path(route): Path<String>) -> Result<Response, Problem> {
    Ok(Json(Stats::from(&api.queue.stats(&route).await?)).into_response())
}

pub async fn pause(State(api): State<Arc<Api>>, Path(route): Path<String>) -> Result<StatusCode, Problem> {
    api.queue.pause(&route).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub async fn resume(State(api): State<Arc<Api>>, Path(route): Path<String>) -> Result<StatusCode, Problem> {
    api.queue.resume(&route).await?;
    Ok(StatusCode::NO_CONTENT)
}
