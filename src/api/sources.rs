//! The state of the sources, as this instance sees it.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use futures::future::BoxFuture;
use serde::Serialize;

use super::{Api, auth::Grant};
use crate::source::SourceStatus;

/// Returns the state of every source, including its depth in the external system; bounded in time.
pub type SourceStatuses = Arc<dyn Fn() -> BoxFuture<'static, Vec<SourceStatus>> + Send + Sync>;

#[derive(Serialize)]
pub struct SourceListing {
    sources: Vec<SourceStatus>,
}

/// Errors may contain values of messages of any route: only tokens for all routes see them.
pub async fn shown(api: &Api, grant: &Grant) -> Vec<SourceStatus> {
    let mut sources = (api.sources)().await;
    if !grant.covers_all() {
        for source in &mut sources {
            source.last_error = None;
        }
    }
    sources
}

pub async fn list(State(api): State<Arc<Api>>, Extension(grant): Extension<Arc<Grant>>) -> Json<SourceListing> {
    Json(SourceListing { sources: shown(&api, &grant).await })
}
