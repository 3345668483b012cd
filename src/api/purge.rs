//! `POST /v1/routes/{route}/purge`: cancels pending messages in bulk.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, Query, Request, State},
};
use serde::Deserialize;

use super::{
    Api, body,
    message_body::{self, PurgeRequest},
    problem::Problem,
};
use crate::queue::Purged;

/// Largest body in bytes: 1000 of the longest ids, with room for spaces.
const MAX_BYTES: usize = 256 * 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoQuery {}

pub async fn pending(
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
