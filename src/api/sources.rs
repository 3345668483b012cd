//! How the sources are doing, as this instance sees them.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use futures::future::BoxFuture;
use serde::Serialize;

use super::{Api, auth::Grant};
use crate::source::SourceStatus;

/// Asks for the present state of every source, its depth in its system included; bounded in time.
pub type SourceStatuses = Arc<dyn Fn() -> BoxFuture<'static, Vec<SourceStatus>> + Send + Sync>;

#[derive(Serialize)]
pub struct Listing {
    sources: Vec<SourceStatus>,
}

/// An error may show what messages of any route hold: it is for tokens that cover all of them.
pub async fn list(State(api): State<Arc<Api>>, Extension(grant): Extension<Arc<Grant>>) -> Json<Listing> {
    let mut sources = (api.sources)().await;
    if !grant.covers_all() {
        for source in &mut sources {
            source.last_error = None;
        }
    }
    Json(Listing { sources })
}
