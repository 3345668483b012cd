//! Numbers of messages that come due, by interval.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json,
    extract::{Path, Query, State},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{auth::Grant, problem::Problem, state::Api};
use crate::{queue::Forecast, time::Due};

/// The default is the next hour by the minute.
const DEFAULT_HORIZON: &str = "1h";
const DEFAULT_BUCKETS: usize = 60;
/// Maximum number of intervals: each costs one count in Redis for each partition.
const MAX_BUCKETS: usize = 1000;

#[derive(Deserialize)]
pub struct ForecastQuery {
    horizon: Option<String>,
    buckets: Option<usize>,
}

pub async fn forecast(
    State(api): State<Arc<Api>>,
    Extension(grant): Extension<Arc<Grant>>,
    Path(route): Path<String>,
    Query(ForecastQuery { horizon, buckets }): Query<ForecastQuery>,
) -> Result<Json<Value>, Problem> {
    let horizon = Due::parse_delay(horizon.as_deref().unwrap_or(DEFAULT_HORIZON));
    let Due::After(horizon) = horizon.map_err(|text| Problem::bad_request(format!("`horizon`: {text}")))? else {
        unreachable!("a delay")
    };
    let buckets = buckets.unwrap_or(DEFAULT_BUCKETS);
    if !(1..=MAX_BUCKETS).contains(&buckets) {
        return Err(Problem::bad_request(format!("`buckets` is 1 to {MAX_BUCKETS}")));
    }
    let length = horizon / buckets as u64;
    if length == 0 {
        return Err(Problem::bad_request("`horizon` is at least one millisecond for each of `buckets`"));
    }
    let call = api.queue.forecast(&route, Duration::from_millis(length), buckets);
    let Forecast { now, overdue, later, counts } = api.readers.fetch(&grant.share, call).await?;
    Ok(Json(json!({ "now": now, "bucket_ms": length, "overdue": overdue, "counts": counts, "later": later })))
}
