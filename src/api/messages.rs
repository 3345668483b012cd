//! One message: look at it, move it, cancel it. And all of a route, page by page.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    extract::{Path, Query, Request, State as Shared},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Api, body, message_body, problem::Problem, scheduled::Answer};
use crate::{
    message::{Ended, MessageId, Origin, Properties, State},
    queue::{Cancelled, Found, Rescheduled, Snapshot},
};

/// Messages of a page when the caller does not say.
const DEFAULT_LIMIT: usize = 100;
/// Most messages of a page: what the store lists at once.
const MAX_LIMIT: usize = 1000;
/// Largest body of a PATCH in bytes: one short field.
const MAX_PATCH_BYTES: usize = 4096;

#[derive(Serialize)]
struct Shown<'a> {
    id: &'a str,
    route: &'a str,
    state: State,
    deliver_at: String,
    attempts: u32,
    last_error: Option<&'a str>,
    content_type: Option<&'a str>,
    headers: BTreeMap<&'a str, &'a str>,
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    properties: Option<&'a Properties>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<ShownOrigin<'a>>,
    /// The payload as text when it is UTF-8: what was sent as a JSON string comes back as one.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    /// Why there is no payload: the stored body cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<&'a str>,
}

/// Of a message that a source took: by what its producer knows it.
#[derive(Default, PartialEq, Eq, Serialize)]
struct ShownOrigin<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exchange: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<u64>,
}

impl<'a> ShownOrigin<'a> {
    /// `None` when there is nothing to show.
    fn new(origin: &'a Origin) -> Option<Self> {
        let shown = Self {
            id: origin.id.as_deref(),
            message_id: origin.message_id.as_deref(),
            exchange: origin.exchange.as_deref(),
            timestamp: origin.timestamp,
        };
        (shown != Self::default()).then_some(shown)
    }
}

impl<'a> Shown<'a> {
    fn new(route: &'a str, snapshot: &'a Snapshot) -> Self {
        let message = snapshot.message.as_ref().ok();
        let metadata = message.map(|message| &message.metadata);
        let text = message.and_then(|message| std::str::from_utf8(&message.payload).ok());
        let bytes = message.filter(|_| text.is_none());
        Self {
            id: snapshot.id.as_str(),
            route,
            state: snapshot.state,
            deliver_at: snapshot.deliver_at.to_rfc3339(),
            attempts: snapshot.attempts,
            last_error: snapshot.last_error.as_deref(),
            content_type: metadata.and_then(|metadata| metadata.content_type.as_deref()),
            headers: metadata
                .map(|metadata| metadata.headers.iter().map(|(name, value)| (&**name, &**value)).collect())
                .unwrap_or_default(),
            key: metadata.and_then(|metadata| metadata.key.as_deref()),
            properties: metadata.and_then(|metadata| metadata.properties.as_deref()),
            max_attempts: metadata.and_then(|metadata| metadata.max_attempts),
            expires_at: metadata.and_then(|metadata| metadata.expires_at),
            origin: metadata.and_then(|metadata| ShownOrigin::new(metadata.origin.as_deref()?)),
            payload: text,
            payload_base64: bytes.map(|message| BASE64_STANDARD.encode(&message.payload)),
            unreadable: snapshot.message.as_ref().err().map(String::as_str),
        }
    }
}

pub async fn look_at(
    Shared(api): Shared<Arc<Api>>,
    Path((route, id)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let id = parse_id(&id)?;
    match api.queue.get(&route, &id).await? {
        Some(Found::Live(snapshot)) => Ok(Json(Shown::new(&route, &snapshot)).into_response()),
        Some(Found::Ended(Ended { ending, at })) => {
            Ok(Json(json!({ "id": id.as_str(), "route": route, "state": ending, "ended_at": at })).into_response())
        }
        None => Err(Problem::unknown_message(id.as_str())),
    }
}

pub async fn reschedule(
    Shared(api): Shared<Arc<Api>>,
    Path((route, id)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let id = parse_id(&id)?;
    let body = body::read(&api, request, MAX_PATCH_BYTES).await?;
    let due = message_body::parse_due(&body.bytes)?;
    match api.queue.reschedule(&route, &id, due).await? {
        Rescheduled::Done(due) => Ok(Json(Answer::rescheduled(&route, &id, due)).into_response()),
        Rescheduled::InFlight => Err(Problem::in_flight(id.as_str())),
        Rescheduled::Dead => {
            Err(Problem::new(StatusCode::CONFLICT, "dead", format!("`{id}` is dead: redrive it, or schedule it anew")))
        }
        Rescheduled::NotFound => Err(Problem::unknown_message(id.as_str())),
    }
}

pub async fn cancel(
    Shared(api): Shared<Arc<Api>>,
    Path((route, id)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    let id = parse_id(&id)?;
    match api.queue.cancel(&route, &id.clone().into()).await? {
        Cancelled::Cancelled | Cancelled::Purged => Ok(StatusCode::NO_CONTENT),
        Cancelled::InFlight => Err(Problem::in_flight(id.as_str())),
        Cancelled::NotFound | Cancelled::Known => Err(Problem::unknown_message(id.as_str())),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    state: Option<State>,
    limit: Option<usize>,
    cursor: Option<String>,
}

pub async fn list(
    Shared(api): Shared<Arc<Api>>,
    Path(route): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Listing<'a> {
        messages: Vec<Shown<'a>>,
        cursor: Option<String>,
    }
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(Problem::bad_request(format!("`limit` is 1 to {MAX_LIMIT}")));
    }
    let state = query.state.unwrap_or(State::Pending);
    let page = api.queue.list(&route, state, limit, query.cursor.as_deref()).await?;
    let messages = page.messages.iter().map(|snapshot| Shown::new(&route, snapshot)).collect();
    Ok(Json(Listing { messages, cursor: page.cursor }).into_response())
}

fn parse_id(text: &str) -> Result<MessageId, Problem> {
    MessageId::parse(text).map_err(Problem::bad_request)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        message::{Metadata, StoredMessage},
        time::UnixMillis,
    };

    fn shown(message: Result<StoredMessage, String>) -> serde_json::Value {
        let snapshot = Snapshot {
            id: MessageId::parse("a").unwrap(),
            state: State::Dead,
            deliver_at: UnixMillis::new(1000).unwrap(),
            attempts: 2,
            last_error: Some("rejected: HTTP 400".into()),
            message,
        };
        serde_json::to_value(Shown::new("r", &snapshot)).unwrap()
    }

    fn stored(payload: &'static [u8]) -> StoredMessage {
        StoredMessage {
            due: UnixMillis::default(),
            accepted: UnixMillis::default(),
            metadata: Metadata { headers: [("X".to_owned(), "1".to_owned())].into(), ..Metadata::default() },
            payload: Bytes::from_static(payload),
        }
    }

    #[test]
    fn a_message_is_shown_with_the_fields_of_the_contract() {
        let expected = json!({
            "id": "a", "route": "r", "state": "dead", "deliver_at": "1970-01-01T00:00:01.000Z", "attempts": 2,
            "last_error": "rejected: HTTP 400", "content_type": null, "headers": {"X": "1"}, "key": null,
            "payload": "{\"b\":1}",
        });
        assert_eq!(shown(Ok(stored(b"{\"b\":1}"))), expected);
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_as_base64_and_a_lost_body_by_its_cause() {
        let bytes = shown(Ok(stored(b"\0\xff")));
        assert_eq!((bytes.get("payload"), &bytes["payload_base64"]), (None, &json!("AP8=")));
        let lost = shown(Err("the body was lost".into()));
        assert_eq!(lost["unreadable"], "the body was lost");
        assert!(lost.get("payload").is_none() && lost.get("payload_base64").is_none());
    }
}
