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
use crate::{message::MessageId, store::Found};

/// Routes that are asked at once.
const ASKED_AT_ONCE: usize = 16;

/// Asks every route that the token covers. Payloads are left out: the call for the message has them.
pub async fn find(
    Shared(api): Shared<Arc<Api>>,
    Extension(deadline): Extension<Deadline>,
    Extension(grant): Extension<Arc<Grant>>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let id = MessageId::stored(&id).map_err(Problem::bad_request)?;
    let _permit = api.enter(&grant.share, api.largest_message(), deadline).await?;
    let routes: Vec<Arc<str>> = api.routes.iter().filter(|route| grant.covers(route)).cloned().collect();
    let asked = routes.into_iter().map(async |route| {
        let answer = api.readers.fetch(&grant.share, api.queue.get(&route, &id)).await;
        (route, answer)
    });
    let mut asked = stream::iter(asked).buffered(ASKED_AT_ONCE);
    let (mut messages, mut failed) = (Vec::new(), Vec::new());
    while let Some((route, answer)) = asked.next().await {
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
            Err(error) => failed.push(json!({ "route": route, "error": error.to_string() })),
        }
    }
    Ok(Json(json!({ "messages": messages, "failed": failed })).into_response())
}
