//! How the sinks are doing, as this instance sees them.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use futures::future::BoxFuture;
use serde::Serialize;

use super::{Api, auth::Grant};

/// Tells the present state of every sink; called once per request, so it must end well within `request_timeout`.
pub type SinkStatuses = Arc<dyn Fn() -> BoxFuture<'static, Vec<SinkStatus>> + Send + Sync>;

/// One sink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SinkStatus {
    pub name: String,
    /// As in the configuration: `http`, `redis_list`...
    pub r#type: &'static str,
    /// Whether it can be reached and used: `ok`, or what is wrong; `None` while nobody knows.
    pub check: Option<String>,
    pub breaker: BreakerState,
    pub last_error: Option<String>,
    /// Messages being sent by this instance.
    pub in_flight: usize,
    /// Failure domains that are down, by name.
    pub down_domains: Vec<Arc<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerState {
    Closed,
    HalfOpen,
    Open,
}

#[derive(Serialize)]
pub struct Listing {
    sinks: Vec<SinkStatus>,
}

/// An error or the name of a domain may show what messages of any route hold: they are for tokens that cover all of them.
pub async fn list(State(api): State<Arc<Api>>, Extension(grant): Extension<Arc<Grant>>) -> Json<Listing> {
    let mut sinks = (api.sinks)().await;
    if !grant.covers_all() {
        for sink in &mut sinks {
            sink.last_error = None;
            sink.down_domains.clear();
        }
    }
    Json(Listing { sinks })
}
