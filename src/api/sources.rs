//! How the sources are doing, as this instance sees them.

use std::sync::Arc;

use axum::{Json, extract::State};
use futures::future::BoxFuture;
use serde::Serialize;

use super::Api;
use crate::source::SourceStatus;

/// Asks for the present state of every source, its depth in its system included; bounded in time.
pub type SourceStatuses = Arc<dyn Fn() -> BoxFuture<'static, Vec<SourceStatus>> + Send + Sync>;

#[derive(Serialize)]
pub struct Listing {
    sources: Vec<SourceStatus>,
}

pub async fn list(State(api): State<Arc<Api>>) -> Json<Listing> {
    Json(Listing { sources: (api.sources)().await })
}
