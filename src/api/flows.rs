//! Flows of a route: listed, changed, paused and resumed.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, Query, Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    audit::{Caller, Of},
    auth::Grant,
    body, message_body,
    problem::Problem,
    state::Api,
};
use crate::{
    message::{self, FlowLimits, shown_flow},
    store::{FlowRules, FlowState, Pause},
    time::UnixMillis,
};

const DEFAULT_LIMIT: usize = 50;
/// Maximum number of flows of a page: each costs about six commands in Redis.
const MAX_LIMIT: usize = 100;
const MAX_BODY_BYTES: usize = 8192;

pub const LIST_QUERY: &[&str] = &["limit", "cursor"];

#[derive(Deserialize)]
pub struct ListQuery {
    limit: Option<usize>,
    cursor: Option<String>,
}

/// A flow in a reply.
#[derive(Serialize)]
struct Shown {
    key: String,
    waiting: u64,
    in_flight: u64,
    /// `rate`, `parallel`, `order` or `paused`; null if nothing waits.
    waits_for: Option<&'static str>,
    next_slot: Option<UnixMillis>,
    held_by: Option<String>,
    rate: Option<String>,
    burst: Option<u32>,
    parallel: Option<u32>,
    /// The limits that were set for this flow alone.
    overrides: serde_json::Map<String, Value>,
    paused: bool,
    #[serde(flatten)]
    pause: Option<Pause>,
}

impl Shown {
    fn new(state: FlowState, route: &FlowLimits) -> Self {
        let FlowState { key, waiting, in_flight, next_slot, held_by, rules } = state;
        let limits = rules.over(route);
        let is_full = limits.parallel.is_some_and(|most| in_flight >= u64::from(most));
        let waits_for = match () {
            () if waiting == 0 => None,
            () if rules.pause.is_some() => Some("paused"),
            () if limits.ordered && held_by.is_some() => Some("order"),
            () if is_full => Some("parallel"),
            () => Some("rate"),
        };
        let mut overrides = serde_json::Map::new();
        let FlowRules { rate, burst, parallel, pause } = rules;
        overrides.extend(rate.map(|rate| ("rate".to_owned(), rate.to_string().into())));
        overrides.extend(burst.map(|burst| ("burst".to_owned(), burst.into())));
        overrides.extend(parallel.map(|parallel| ("parallel".to_owned(), parallel.into())));
        Self {
            key,
            waiting,
            in_flight,
            waits_for,
            next_slot: next_slot.filter(|_| waiting > 0),
            held_by: held_by.map(|id| id.to_string()),
            rate: limits.rate.map(|rate| rate.to_string()),
            burst: limits.rate.map(|_| limits.burst),
            parallel: limits.parallel,
            overrides,
            paused: pause.is_some(),
            pause,
        }
    }
}

/// The flow in a path.
fn parse_flow(text: &str) -> Result<&str, Problem> {
    message::parse_flow(text).map_err(Problem::bad_request)
}

pub async fn list(
    State(api): State<Arc<Api>>,
    Extension(grant): Extension<Arc<Grant>>,
    Path(route): Path<String>,
    Query(ListQuery { limit, cursor }): Query<ListQuery>,
) -> Result<Json<Value>, Problem> {
    let limit = limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(Problem::bad_request(format!("`limit` is 1 to {MAX_LIMIT}")));
    }
    let after = cursor.as_deref().map(parse_flow).transpose()?;
    let limits = api.queue.flow_limits(&route)?;
    let (flows, more) = api.readers.fetch(&grant.share, api.queue.flows(&route, after, limit)).await?;
    let cursor = flows.last().filter(|_| more).map(|last| shown_flow(&last.key).to_owned());
    let flows: Vec<_> = flows.into_iter().map(|state| Shown::new(state, &limits)).collect();
    Ok(Json(json!({ "flows": flows, "cursor": cursor })))
}

pub async fn look_at(
    State(api): State<Arc<Api>>,
    Extension(grant): Extension<Arc<Grant>>,
    Path((route, flow)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let flow = parse_flow(&flow)?;
    let limits = api.queue.flow_limits(&route)?;
    let state = api.readers.fetch(&grant.share, api.queue.flow(&route, flow)).await?;
    Ok(Json(Shown::new(state, &limits)).into_response())
}

/// Sets or removes limits of one flow.
pub async fn change(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path((route, flow)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let flow = parse_flow(&flow)?;
    let limits = api.queue.flow_limits(&route)?;
    let body = body::read(&api.body_memory, request, MAX_BODY_BYTES).await?;
    let change = message_body::parse_flow_change(&body.bytes, limits.ordered)?;
    let result = api.queue.change_flow(&route, flow, change).await;
    let text = String::from_utf8_lossy(&body.bytes);
    caller.record_change("change_flow", &route, &Of::Flow(flow, text.trim()), result)?;
    Ok(Json(Shown::new(api.queue.flow(&route, flow).await?, &limits)).into_response())
}

pub async fn pause(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path((route, flow)): Path<(String, String)>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let flow = parse_flow(&flow)?;
    let body = body::read(&api.body_memory, request, MAX_BODY_BYTES).await?;
    let note = message_body::parse_note(&body.bytes)?;
    let result = api.queue.pause_flow(&route, flow, caller.grant.name(), &note).await;
    caller.record_change("pause_flow", &route, &Of::Flow(flow, &note), result)?;
    Ok(StatusCode::NO_CONTENT)
}

pub async fn resume(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path((route, flow)): Path<(String, String)>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let flow = parse_flow(&flow)?;
    let body = body::read(&api.body_memory, request, MAX_BODY_BYTES).await?;
    message_body::parse_nothing(&body.bytes)?;
    let result = api.queue.resume_flow(&route, flow).await;
    caller.record_change("resume_flow", &route, &Of::Flow(flow, ""), result)?;
    Ok(StatusCode::NO_CONTENT)
}
