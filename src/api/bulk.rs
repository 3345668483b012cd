//! Calls on many messages: redrive, purge and forwarding of dead letters, their summary; purge and move of pending
//! messages.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, Query, Request, State},
    http::StatusCode,
    routing::{MethodRouter, post},
};
use futures::FutureExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    audit::{self, Caller, Of},
    auth::Grant,
    body,
    deadline::Deadline,
    filter::Parameters,
    groups::refusal,
    message_body::{self, DeadRequest, PendingRequest},
    problem::{FieldError, Problem},
    state::Api,
};
use crate::{
    message::State as MessageState,
    queue::{Bulk, QueueError, Stayed},
    store::{DeadAction, DeadGroup, DeadWork, PendingAction, PendingWork, Selection},
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
            let request = message_body::parse_dead(&body.bytes, action)?;
            if let Selection::Where(filter) = &request.selection {
                api.check_flow_filter(&route, filter, "/flow")?;
            }
            let deadline = api.end_of_work(deadline);
            let (selection, cursor) = (&request.selection, request.cursor.as_deref());
            let DeadRequest { action, spread, limit, dry_run, .. } = request;
            let work = DeadWork { action, spread, selection, limit, dry_run, deadline };
            if let Some(to) = &request.to {
                return redrive_to(&api, &caller, (&route, to), &work, cursor).await;
            }
            let mut bulk = Bulk::default();
            let result = api.queue.act_on_dead(&route, &work, cursor, &mut bulk).await;
            ended(&caller, call, &route, &audit::shown(selection), dry_run, bulk, result)
                .map(|Json(bulk)| Json(json!(bulk)))
        },
    )
}

/// Redrives dead letters into another route.
async fn redrive_to(
    api: &Api,
    caller: &Caller,
    (route, to): (&str, &str),
    work: &DeadWork<'_>,
    cursor: Option<&str>,
) -> Result<Json<Value>, Problem> {
    if !caller.grant.covers(to) {
        return Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", "the token is for other routes"));
    }
    let refused = if to == route {
        Some("is the route of the dead letters".to_owned())
    } else {
        (!api.queue.has_route(to)).then(|| format!("there is no route `{}`", to.escape_debug()))
    };
    if let Some(text) = refused {
        return Err(Problem::invalid(vec![FieldError::new("/to", text)]));
    }
    let (mut bulk, mut stayed) = (Bulk::default(), Vec::new());
    let redriving = api.queue.redrive_to(route, to, work, cursor, &mut bulk, &mut stayed);
    let result = redriving.boxed().await;
    let of = audit::redirected(work.selection, to);
    let Json(bulk) = ended(caller, "redrive", route, &of, work.dry_run, bulk, result)?;
    let shown =
        |Stayed { id, reason, detail }: &Stayed| json!({ "id": id.as_str(), "reason": reason, "detail": detail });
    let mut reply = json!(bulk);
    reply["refused"] = stayed.iter().map(shown).collect();
    Ok(Json(reply))
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
    match result {
        result if dry_run => result.map(|()| Json(bulk)).map_err(Problem::from),
        Ok(()) => {
            caller.record(call, route, of, bulk.count);
            Ok(Json(bulk))
        }
        Err(error) => {
            let error = caller.record_failed(call, route, of, bulk.count, error);
            Err(Problem::from(error).after(bulk.count))
        }
    }
}

pub async fn summary(
    State(api): State<Arc<Api>>,
    Extension(grant): Extension<Arc<Grant>>,
    Extension(deadline): Extension<Deadline>,
    Path(route): Path<String>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Json<Value>, Problem> {
    let filter = Parameters::new(query)?.filter(Some(MessageState::Dead))?;
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

/// Cancels pending messages, or moves them to another time.
pub fn act_on_pending(moves: bool) -> MethodRouter<Arc<Api>> {
    let call = if moves { "move_pending" } else { "purge_pending" };
    post(
        async move |State(api): State<Arc<Api>>,
                    caller: Caller,
                    Extension(deadline): Extension<Deadline>,
                    Path(route): Path<String>,
                    request: Request| {
            let body = body::read(&api.body_memory, request, MAX_BYTES).await?;
            let request = message_body::parse_pending(&body.bytes, moves)?;
            change_pending(&api, &caller, call, deadline, &route, &request).await
        },
    )
}

async fn change_pending(
    api: &Api,
    caller: &Caller,
    call: &'static str,
    deadline: Deadline,
    route: &str,
    request: &PendingRequest,
) -> Result<Json<Value>, Problem> {
    let PendingRequest { action, selection, before, limit, dry_run, cursor } = request;
    if let Selection::Where(filter) = selection {
        api.check_flow_filter(route, filter, "/flow")?;
    }
    let deadline = api.end_of_work(deadline);
    let (limit, dry_run) = (*limit, *dry_run);
    let by = caller.by();
    let by = by.as_deref();
    let work = PendingWork { action: *action, selection, before: *before, limit, dry_run, deadline, by };
    let (mut bulk, mut refused) = (Bulk::default(), Vec::new());
    let result = api.queue.change_pending(route, &work, cursor.as_deref(), &mut bulk, &mut refused).await;
    let Json(bulk) = ended(caller, call, route, &audit::shown(selection), dry_run, bulk, result)?;
    let mut reply = json!(bulk);
    if matches!(action, PendingAction::Move(_)) {
        reply["refused"] = refused.iter().map(|(id, why)| refusal(id.as_str(), why)).collect();
    }
    Ok(Json(reply))
}

impl Api {
    /// The end of work that another call can continue: half of the request's time is left for the last step.
    pub fn end_of_work(&self, Deadline(deadline): Deadline) -> Instant {
        deadline - self.request_timeout / 2
    }
}
