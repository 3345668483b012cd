//! `PATCH /v1/routes/{route}/messages/{id}`: moves a pending message, or edits a dead letter.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::{
    audit::{Caller, Of},
    body,
    message_body::{self, PatchRequest},
    messages::{move_to, parse_id},
    post::MAX_JSON_BYTES,
    problem::{FieldError, Problem},
    state::Api,
};
use crate::{
    config::Right,
    store::{Edit, Edited, FieldChange},
    time::UnixMillis,
};

pub async fn change(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path((route, id)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let body = body::read(&api.body_memory, request, MAX_JSON_BYTES).await?;
    match message_body::parse_patch(&body.bytes, api.max_payload)? {
        PatchRequest::Move(due) => move_to(&api, &caller, "move", &route, &id, Some(due)).await,
        PatchRequest::Edit { edit, revision } => {
            edit_dead(&api, &caller, (&route, &id), &edit, revision.as_deref()).await
        }
    }
}

/// Needs the right `admin`, as a redrive does.
async fn edit_dead(
    api: &Api,
    caller: &Caller,
    (route, id): (&str, &str),
    edit: &Edit,
    revision: Option<&str>,
) -> Result<Response, Problem> {
    let id = parse_id(id)?;
    if !caller.grant.has(Right::Admin) {
        let text = "to edit a dead letter needs the right `admin`";
        return Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", text));
    }
    check_expiry(api, route, edit).await?;
    let conflict = |kind, text: &str| Err(Problem::new(StatusCode::CONFLICT, kind, format!("`{id}` {text}")));
    let result = api.queue.edit(route, &id, edit, revision).await;
    match result.map_err(|error| caller.record_failed("edit_dead", route, &Of::Id(&id), 0, error))? {
        Edited::Done { changes, revision } => {
            caller.record("edit_dead", route, &Of::Edit(&id, changes.to_string()), 1);
            let reply = json!({ "id": id.as_str(), "route": route, "status": "edited", "revision": revision });
            Ok(Json(reply).into_response())
        }
        Edited::Pending => conflict(
            "not-dead",
            "is pending: only a dead letter is edited. Schedule it with `on_conflict: replace` to replace it",
        ),
        Edited::InFlight => Err(Problem::in_flight(id.as_str())),
        Edited::NotFound => Err(Problem::unknown_message(id.as_str())),
        Edited::Changed => conflict("changed", "died again or was edited since it was read: read it again"),
        Edited::Forwarding => conflict("forwarding", "waits for being forwarded to another route"),
        Edited::Unreadable(error) => {
            let text = format!("cannot be edited: {error}. Schedule it with `on_conflict: replace` to replace it");
            conflict("unreadable", &text)
        }
        Edited::Invalid(mistakes) => {
            let errors = mistakes.into_iter().map(|(name, text)| FieldError::new(format!("/{name}"), text));
            Err(Problem::invalid(errors.collect()))
        }
    }
}

/// # Errors
/// 422 for a new time of expiry that has passed.
async fn check_expiry(api: &Api, route: &str, edit: &Edit) -> Result<(), Problem> {
    let FieldChange::Set(at) = edit.expires_at else { return Ok(()) };
    if at >= api.queue.now(route).await? {
        return Ok(());
    }
    let at = UnixMillis::new(at).unwrap_or_default().to_rfc3339();
    Err(Problem::invalid(vec![FieldError::new("/expires_at", format!("{at} has passed"))]))
}
