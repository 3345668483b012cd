//! Calls on many messages: redrive and purge of dead letters, their summary, and `POST /v1/routes/{route}/purge`, which
//! cancels pending messages.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, Query, Request, State},
    routing::{MethodRouter, post},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    audit::{self, Caller, Of},
    auth::Grant,
    body,
    deadline::Deadline,
    message_body::{self, DeadRequest, PurgeRequest},
    messages::FilterQuery,
    problem::Problem,
    state::Api,
};
use crate::{
    message::State as MessageState,
    queue::{Bulk, Purge, QueueError},
    store::{DeadAction, DeadGroup, DeadWork, Selection},
};

/// Largest body in bytes: 1000 of the longest ids, with room for spaces.
const MAX_BYTES: usize = 256 * 1024;

/// Redrives or purges dead messages.
pub fn act_on_dead(action: DeadAction) -> MethodRouter<Arc<Api>> {
    let call = match action {
        DeadAction::Redrive(_) => "redrive",
        DeadAction::Purge => "purge_dead",
        DeadAction::Forward => "forward_dead",
    };
    post(
        async move |State(api): State<Arc<Api>>,
                    caller: Caller,
                    Extension(deadline): Extension<Deadline>,
                    Path(route): Path<String>,
                    request: Request| {
            let body = body::read(&api.body_memory, request, MAX_BYTES).await?;
            let DeadRequest { action, selection, limit, dry_run, cursor } =
                message_body::parse_dead(&body.bytes, action)?;
            if let Selection::Where(filter) = &selection {
                api.check_flow_filter(&route, filter, "/flow")?;
            }
            let work = DeadWork { action, selection: &selection, limit, dry_run, deadline: api.end_of_work(deadline) };
            let mut bulk = Bulk::default();
            let result = api.queue.act_on_dead(&route, &work, cursor.as_deref(), &mut bulk).await;
            ended(&caller, call, &route, &audit::shown(&selection), dry_run, bulk, result)
        },
    )
}

/// Logs and returns the result. A call that failed may have changed messages, too.
fn ended(
    caller: &Caller,
    call: &'static str,
    route: &str,
    of: &Of<'_>,
    dry_run: bool,
    bulk: Bulk,
    result: Result<(), QueueError>,
) -> Result<Json<Bulk>, Problem> {
    let changed = if dry_run { 0 } else { bulk.count };
    caller.record(call, route, of, changed);
    result.map(|()| Json(bulk)).map_err(|error| Problem::from(error).after(changed))
}

pub async fn summary(
    State(api): State<Arc<Api>>,
    Extension(grant): Extension<Arc<Grant>>,
    Extension(deadline): Extension<Deadline>,
    Path(route): Path<String>,
    Query(query): Query<FilterQuery>,
) -> Result<Json<Value>, Problem> {
    let filter = query.filter(MessageState::Dead)?;
    api.check_flow_filter(&route, &filter, "flow")?;
    let end = api.end_of_work(deadline);
    let summary = api.readers.fetch(&grant.share, api.queue.summary(&route, &filter, end)).await?;
    let shown = |DeadGroup { reason, count, oldest, newest, sample: (id, error) }: &DeadGroup| {
        json!({
            "reason": reason, "count": count, "oldest": oldest, "newest": newest,
            "sample": { "id": id.as_str(), "error": error },
        })
    };
    let reasons: Vec<Value> = summary.groups.iter().map(shown).collect();
    Ok(Json(json!({ "total": summary.total, "complete": summary.complete, "reasons": reasons })))
}

pub async fn purge_pending(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Extension(deadline): Extension<Deadline>,
    Path(route): Path<String>,
    request: Request,
) -> Result<Json<Bulk>, Problem> {
    let body = body::read(&api.body_memory, request, MAX_BYTES).await?;
    let PurgeRequest { ids, limit, dry_run } = message_body::parse_purge(&body.bytes)?;
    let (end, mut bulk) = (api.end_of_work(deadline), Bulk::default());
    let by = caller.by();
    let purge = Purge { ids: ids.as_deref(), limit, dry_run, by: by.as_deref() };
    let result = api.queue.purge_pending(&route, purge, end, &mut bulk).await;
    ended(&caller, "purge_pending", &route, &audit::pending(ids.as_deref()), dry_run, bulk, result)
}

impl Api {
    /// The end of work that another call can continue: half of the request's time is left for the last step.
    pub fn end_of_work(&self, Deadline(deadline): Deadline) -> Instant {
        deadline - self.request_timeout / 2
    }
}
