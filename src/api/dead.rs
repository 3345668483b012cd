//! Dead letters: redrive and purge.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, Request, State},
};
use serde::Serialize;

use super::{Api, body, message_body, problem::Problem};

/// Largest body in bytes: 1000 of the longest ids, with room for spaces.
const MAX_IDS_BYTES: usize = 256 * 1024;

#[derive(Serialize)]
pub struct Count {
    count: u64,
}

pub async fn redrive(
    State(api): State<Arc<Api>>,
    Path(route): Path<String>,
    request: Request,
) -> Result<Json<Count>, Problem> {
    let body = body::read(&api, request, MAX_IDS_BYTES).await?;
    let ids = message_body::parse_ids(&body.bytes)?;
    Ok(Json(Count { count: api.queue.redrive(&route, ids.as_deref()).await? }))
}

pub async fn purge(
    State(api): State<Arc<Api>>,
    Path(route): Path<String>,
    request: Request,
) -> Result<Json<Count>, Problem> {
    let body = body::read(&api, request, MAX_IDS_BYTES).await?;
    let ids = message_body::parse_ids(&body.bytes)?;
    Ok(Json(Count { count: api.queue.purge(&route, ids.as_deref()).await? }))
}
