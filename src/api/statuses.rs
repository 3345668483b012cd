//! State of the sinks and the sources, as this instance sees it.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use futures::future::BoxFuture;
use serde::Serialize;
use tokio::time::Instant;

use super::auth::Grant;
use crate::{source::SourceStatus, store::Snapshot, time::UnixMillis};

/// Returns the state of every sink. Called once per request: it must end well within `request_timeout`.
pub type SinkStatuses = Arc<dyn Fn() -> BoxFuture<'static, Vec<SinkStatus>> + Send + Sync>;

/// Returns the sink or failure domain that is down and that a message waits for, by sink name, route and message.
pub type FailingSinks = Arc<dyn Fn(&str, &str, &Snapshot) -> Option<Failing> + Send + Sync>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// `None`: the whole sink.
    pub domain: Option<Arc<str>>,
    pub error: Option<String>,
    pub since: Instant,
}

/// A failure domain that is down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DownDomain {
    pub name: Arc<str>,
    pub error: String,
    /// `None` until Redis' clock is known.
    pub since: Option<UnixMillis>,
}

/// One sink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SinkStatus {
    pub name: String,
    /// The configured type: `http`, `redis_list`...
    pub r#type: &'static str,
    /// `ok` when the sink is reachable and usable, otherwise the error; `None` before the first check.
    pub check: Option<String>,
    pub breaker: BreakerState,
    /// Time at which the sink became up or down, on the clock of Redis; at first, the start of this instance. All times
    /// are `None` until the clock of Redis is known.
    pub since: Option<UnixMillis>,
    pub last_error: Option<String>,
    pub last_error_at: Option<UnixMillis>,
    pub last_success_at: Option<UnixMillis>,
    /// Messages that this instance is sending.
    pub in_flight: usize,
    /// Failure domains that are down, by name.
    pub down_domains: Vec<DownDomain>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerState {
    Closed,
    HalfOpen,
    Open,
}

/// Returns the state of every source, including its depth in the external system; bounded in time.
pub type SourceStatuses = Arc<dyn Fn() -> BoxFuture<'static, Vec<SourceStatus>> + Send + Sync>;

/// Return the states of sinks and sources.
#[derive(Clone)]
pub struct Statuses {
    pub sinks: SinkStatuses,
    pub failing: FailingSinks,
    pub sources: SourceStatuses,
}

/// Replaces the error of a check for tokens that must not see errors.
const HIDDEN: &str = "fails: the error is shown to tokens for all routes";

impl Statuses {
    /// The states of the sinks. Only tokens for all routes see errors and names of domains, because these can contain
    /// values of messages of any route.
    pub async fn sinks(&self, grant: &Grant) -> Vec<SinkStatus> {
        let mut sinks = (self.sinks)().await;
        if !grant.covers_all() {
            for sink in &mut sinks {
                sink.last_error = None;
                if let Some(check) = sink.check.as_mut().filter(|check| *check != "ok") {
                    HIDDEN.clone_into(check);
                }
                sink.down_domains.clear();
            }
        }
        sinks
    }

    /// The states of the sources, with errors hidden as in `sinks`.
    pub async fn sources(&self, grant: &Grant) -> Vec<SourceStatus> {
        let mut sources = (self.sources)().await;
        if !grant.covers_all() {
            for source in &mut sources {
                source.last_error = None;
            }
        }
        sources
    }
}

#[derive(Serialize)]
pub struct SinkListing {
    sinks: Vec<SinkStatus>,
}

#[derive(Serialize)]
pub struct SourceListing {
    sources: Vec<SourceStatus>,
}

pub async fn sinks(State(statuses): State<Statuses>, Extension(grant): Extension<Arc<Grant>>) -> Json<SinkListing> {
    Json(SinkListing { sinks: statuses.sinks(&grant).await })
}

pub async fn sources(State(statuses): State<Statuses>, Extension(grant): Extension<Arc<Grant>>) -> Json<SourceListing> {
    Json(SourceListing { sources: statuses.sources(&grant).await })
}
