//! Messages that ended, as JSON.

use std::sync::Arc;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    auth::Grant,
    deadline::Deadline,
    listing::{PageQuery, page_limit},
    problem::Problem,
    shown_end::ShownEnd,
    state::Api,
};
use crate::{
    message::{Ended, EndedMessage, MessageId},
    queue::EndedQuery,
};

/// Bytes of memory of an end in a page: its JSON.
const END_BYTES: u64 = 2048;

/// The reply for an id that is not live: its last end, and those that the history has.
pub fn one(route: &str, id: &MessageId, remembered: Option<Ended>, ends: &[EndedMessage]) -> Response {
    match json_of(route, id, remembered, ends) {
        Some(reply) => Json(reply).into_response(),
        None => Problem::unknown_message(id.as_str()).into_response(),
    }
}

/// `None` for an id without an end.
pub fn json_of(route: &str, id: &MessageId, remembered: Option<Ended>, ends: &[EndedMessage]) -> Option<Value> {
    let last = ends.first().map(|end| (end.outcome.as_str(), end.ended));
    let remembered = remembered.map(|Ended { ending, at }| (ending.as_str(), at));
    let (state, at) = last.or(remembered)?;
    let mut reply = json!({ "id": id.as_str(), "route": route, "state": state, "ended_at": at });
    if !ends.is_empty() {
        reply["history"] = shown(ends);
    }
    Some(reply)
}

fn shown(ends: &[EndedMessage]) -> Value {
    ends.iter().map(|end| json!(ShownEnd::from(end))).collect()
}

/// A page of ends.
pub async fn list(
    api: &Arc<Api>,
    grant: &Grant,
    route: &str,
    (query, page): (&EndedQuery, &PageQuery),
    deadline: Deadline,
) -> Result<Response, Problem> {
    let limit = page_limit(page)?;
    let _permit = api.enter(&grant.share, limit as u64 * END_BYTES, deadline).await?;
    let end = api.end_of_work(deadline);
    let found = api.queue.ended(route, query, limit, page.cursor.as_deref(), end);
    let page = api.readers.fetch(&grant.share, found).await?;
    let messages: Vec<Value> = page.ends.iter().map(|end| listed(route, end)).collect();
    let mut reply = json!({ "messages": messages, "cursor": page.cursor });
    if query.has_filter() {
        reply["scanned"] = page.scanned.into();
    }
    Ok(Json(reply).into_response())
}

fn listed(route: &str, end: &EndedMessage) -> Value {
    #[derive(Serialize)]
    struct Listed<'a> {
        id: &'a str,
        route: &'a str,
        state: &'static str,
        #[serde(flatten)]
        end: ShownEnd<'a>,
    }
    json!(Listed { id: end.id.as_str(), route, state: end.outcome.as_str(), end: end.into() })
}
