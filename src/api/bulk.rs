//! Calls on many messages: redrive and purge of dead letters, and `POST /v1/routes/{route}/purge`, which cancels pending
//! messages.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, Query, Request, State},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Api, body,
    message_body::{self, PurgeRequest},
    problem::Problem,
};
use crate::{message::MessageId, queue::Purged};

/// Largest body in bytes: 1000 of the longest ids, with room for spaces.
const MAX_BYTES: usize = 256 * 1024;

pub async fn redrive(
    State(api): State<Arc<Api>>,
    Path(route): Path<String>,
    request: Request,
) -> Result<Json<Value>, Problem> {
    let ids = ids(&api, request).await?;
    Ok(Json(json!({ "count": api.queue.redrive(&route, ids.as_deref()).await? })))
}

pub async fn purge_dead(
    State(api): State<Arc<Api>>,
    Path(route): Path<String>,
    request: Request,
) -> Result<Json<Value>, Problem> {
    let ids = ids(&api, request).await?;
    Ok(Json(json!({ "count": api.queue.purge(&route, ids.as_deref()).await? })))
}

/// `None`: all.
async fn ids(api: &Api, request: Request) -> Result<Option<Vec<MessageId>>, Problem> {
    message_body::parse_ids(&body::read(api, request, MAX_BYTES).await?.bytes)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoQuery {}

pub async fn purge_pending(
    State(api): State<Arc<Api>>,
    Path(route): Path<String>,
    Query(NoQuery {}): Query<NoQuery>,
    request: Request,
) -> Result<Json<Purged>, Problem> {
    let body = body::read(&api, request, MAX_BYTES).await?;
    let PurgeRequest { ids, limit, dry_run } = message_body::parse_purge(&body.bytes)?;
    let purged = api.queue.purge_pending(&route, ids.as_deref(), limit, dry_run).await?;
    if !dry_run {
        tracing::info!(route, count = purged.count, "pending messages were purged");
    }
    Ok(Json(purged))
}
