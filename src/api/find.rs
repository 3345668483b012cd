//! `GET /v1/messages/{id}`: a message by its id alone.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, State as Shared},
    response::{IntoResponse, Response},
};
use futures::{StreamExt, stream};
use serde_json::{Value, json};

use super::{
    auth::Grant,
    deadline::Deadline,
    ended,
    messages::shown_waits,
    problem::Problem,
    shown::{self, Payload},
    state::Api,
};
use crate::{message::MessageId, queue::QueueError, store::Found};

/// Routes that are asked at once: that many messages are in memory.
const ASKED_AT_ONCE: usize = 4;

/// Asks every route that the token covers. Payloads are left out: the call for the message has them. Routes that fail are
/// named. If every route fails, the call fails.
pub async fn find(
    Shared(api): Shared<Arc<Api>>,
    Extension(deadline): Extension<Deadline>,
    Extension(grant): Extension<Arc<Grant>>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let id = MessageId::stored(&id).map_err(Problem::bad_request)?;
    let _permit = api.enter(&grant.share, ASKED_AT_ONCE as u64 * api.largest_message(), deadline).await?;
    let routes: Vec<Arc<str>> = api.queue.routes().into_iter().filter(|route| grant.covers(route)).collect();
    let asked = routes.into_iter().map(async |route| {
        let answer = api.readers.fetch(&grant.share, api.queue.get(&route, &id)).await;
        (route, answer)
    });
    let mut asked = stream::iter(asked).buffered(ASKED_AT_ONCE);
    let (mut messages, mut failed, mut is_answered) = (Vec::new(), Vec::new(), false);
    while let Some((route, answer)) = asked.next().await {
        is_answered |= answer.is_ok();
        match answer {
            Ok(Some(Found::Live { snapshot, now, paused, ends })) => {
                let waits = shown_waits(&api, &grant, &route, &snapshot, now, paused);
                let json =
                    shown::pieces(&route, &snapshot, (&waits, &ends), Payload::LeftOut).collect::<Vec<_>>().concat();
                messages.push(serde_json::from_slice::<Value>(&json).expect("JSON"));
            }
            Ok(Some(Found::Ended { remembered, ends })) => {
                messages.extend(ended::json_of(&route, &id, remembered, &ends));
            }
            Ok(None) => {}
            Err(error) => failed.push((route, error)),
        }
    }
    if !is_answered && let Some((_, error)) = failed.pop() {
        return Err(error.into());
    }
    let shown = |(route, error): &(Arc<str>, QueueError)| json!({ "route": route, "error": error.to_string() });
    let failed: Vec<_> = failed.iter().map(shown).collect();
    Ok(Json(json!({ "messages": messages, "failed": failed })).into_response())
}
