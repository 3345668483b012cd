//! Numbers of messages that come due, by interval.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json,
    extract::{Path, Query, State},
};
use futures::{StreamExt, stream};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{auth::Grant, problem::Problem, state::Api};
use crate::{
    queue::{Forecast, QueueError},
    store::StoreError,
    time::{Due, UnixMillis, wall_millis},
};

/// The default is the next hour by the minute.
const DEFAULT_HORIZON: &str = "1h";
const DEFAULT_BUCKETS: usize = 60;
/// Maximum number of intervals: each costs one count in Redis for each partition.
const MAX_BUCKETS: usize = 1000;
/// Maximum number of intervals of a forecast of all routes: a hundred routes take 10,000 counts, some 10 ms of Redis.
const MAX_BUCKETS_OF_ALL: usize = 100;
/// Routes that are asked at once, in one call of a reader: 16 scripts of some 50 µs.
const ASKED_AT_ONCE: usize = 16;

pub const QUERY: &[&str] = &["horizon", "buckets"];

#[derive(Deserialize)]
pub struct ForecastQuery {
    horizon: Option<String>,
    buckets: Option<usize>,
}

impl ForecastQuery {
    /// Length of an interval in ms, and number of intervals.
    fn intervals(&self, max_buckets: usize) -> Result<(u64, usize), Problem> {
        let horizon = Due::parse_delay(self.horizon.as_deref().unwrap_or(DEFAULT_HORIZON));
        let Due::After(horizon) = horizon.map_err(|text| Problem::bad_request(format!("`horizon`: {text}")))? else {
            unreachable!("a delay")
        };
        let buckets = self.buckets.unwrap_or(DEFAULT_BUCKETS);
        if !(1..=max_buckets).contains(&buckets) {
            return Err(Problem::bad_request(format!("`buckets` is 1 to {max_buckets}")));
        }
        let length = horizon / buckets as u64;
        if length == 0 {
            return Err(Problem::bad_request("`horizon` is at least one millisecond for each of `buckets`"));
        }
        Ok((length, buckets))
    }
}

pub async fn forecast(
    State(api): State<Arc<Api>>,
    Extension(grant): Extension<Arc<Grant>>,
    Path(route): Path<String>,
    Query(query): Query<ForecastQuery>,
) -> Result<Json<Value>, Problem> {
    let (length, buckets) = query.intervals(MAX_BUCKETS)?;
    let call = api.queue.forecast(&route, None, Duration::from_millis(length), buckets);
    let Forecast { now, overdue, later, counts } = api.readers.fetch(&grant.share, call).await?;
    Ok(Json(json!({ "now": now, "bucket_ms": length, "overdue": overdue, "counts": counts, "later": later })))
}

/// The sum of the routes that the token covers, and each route with pending messages. All begin at the same time. Routes
/// that fail are named. If every route fails, the call fails.
pub async fn of_all(
    State(api): State<Arc<Api>>,
    Extension(grant): Extension<Arc<Grant>>,
    Query(query): Query<ForecastQuery>,
) -> Result<Json<Value>, Problem> {
    let (length, buckets) = query.intervals(MAX_BUCKETS_OF_ALL)?;
    let names: Vec<Arc<str>> = api.queue.routes().into_iter().filter(|route| grant.covers(route)).collect();
    let call = ask_all(&api, names, Duration::from_millis(length), buckets);
    let (now, answers) = api.readers.fetch(&grant.share, async { Ok(call.await) }).await?;
    let mut sum = Forecast { now: now.unwrap_or_else(wall_millis), overdue: 0, later: 0, counts: vec![0; buckets] };
    let (mut routes, mut failed) = (Map::new(), Vec::new());
    for (route, answer) in answers {
        match answer {
            Err(error) => failed.push((route, error)),
            Ok(own) => {
                sum.add(&own);
                let Forecast { overdue, later, counts, .. } = own;
                if overdue + later + counts.iter().sum::<u64>() > 0 {
                    let shown = json!({ "overdue": overdue, "counts": counts, "later": later });
                    routes.insert(route.to_string(), shown);
                }
            }
        }
    }
    if now.is_none()
        && let Some((_, error)) = failed.pop()
    {
        return Err(error.into());
    }
    let shown = |(route, error): &(Arc<str>, QueueError)| json!({ "route": route, "error": error.to_string() });
    let failed: Vec<_> = failed.iter().map(shown).collect();
    let Forecast { now, overdue, later, counts } = sum;
    Ok(Json(json!({
        "now": now, "bucket_ms": length, "overdue": overdue, "counts": counts, "later": later,
        "routes": routes, "failed": failed,
    })))
}

type Answer = (Arc<str>, Result<Forecast, QueueError>);

/// The first route that replies has the time for all. A Redis that does not reply is asked once.
async fn ask_all(
    api: &Api,
    names: Vec<Arc<str>>,
    length: Duration,
    buckets: usize,
) -> (Option<UnixMillis>, Vec<Answer>) {
    let (mut names, mut answers, mut now) = (names.into_iter(), Vec::new(), None);
    while now.is_none()
        && let Some(route) = names.next()
    {
        let answer = api.queue.forecast(&route, None, length, buckets).await;
        now = answer.as_ref().ok().map(|own| own.now);
        let is_wrong_type = matches!(answer, Err(QueueError::Store(StoreError::WrongType { .. })));
        answers.push((route, answer));
        if now.is_none() && !is_wrong_type {
            return (None, answers);
        }
    }
    let others = names.map(async |route| {
        let answer = api.queue.forecast(&route, now, length, buckets).await;
        (route, answer)
    });
    let mut others = stream::iter(others).buffered(ASKED_AT_ONCE);
    while let Some(answer) = others.next().await {
        answers.push(answer);
    }
    (now, answers)
}
