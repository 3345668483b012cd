//! Single messages: show, move, cancel. And the messages of a route, page by page.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, Query, Request, State as Shared},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::json;

use super::{
    Api,
    auth::Grant,
    body,
    deadline::Deadline,
    message_body,
    problem::Problem,
    readers::{self, Broken, Permit, Share, Writer},
    scheduled::ScheduledReply,
    shown,
};
use crate::{
    message::{Ended, MAX_METADATA_BYTES, MessageId, State},
    queue::Page,
    store::{Cancelled, Found, Rescheduled, Snapshot},
};

/// Default number of messages of a page.
const DEFAULT_LIMIT: usize = 100;
/// Most messages of a page: what the store lists at once.
const MAX_LIMIT: usize = 1000;
/// A page ends with the part that reaches so many bytes of JSON, escaped as it is sent.
const MAX_PAGE_BYTES: u64 = 8 * 1024 * 1024;
/// A message with no larger payload, in bytes, is shown at once; a larger one is streamed.
const MAX_WHOLE_BYTES: usize = 64 * 1024;
/// Largest body of a PATCH in bytes: one short field.
const MAX_PATCH_BYTES: usize = 4096;

pub async fn look_at(
    Shared(api): Shared<Arc<Api>>,
    Extension(deadline): Extension<Deadline>,
    Extension(grant): Extension<Arc<Grant>>,
    Path((route, id)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let id = parse_id(&id)?;
    let permit = api.enter(&grant.share, api.largest_message(), deadline).await?;
    match api.readers.fetch(&grant.share, api.queue.get(&route, &id)).await? {
        Some(Found::Live(snapshot)) => Ok(one(route, snapshot, permit)),
        Some(Found::Ended(Ended { ending, at })) => {
            Ok(Json(json!({ "id": id.as_str(), "route": route, "state": ending, "ended_at": at })).into_response())
        }
        None => Err(Problem::unknown_message(id.as_str())),
    }
}

fn one(route: String, snapshot: Snapshot, permit: Permit) -> Response {
    if snapshot.message.as_ref().map_or(0, |message| message.payload.len()) <= MAX_WHOLE_BYTES {
        return readers::whole(shown::pieces(&route, &snapshot));
    }
    readers::json(async move |mut writer: Writer| {
        let _permit = permit;
        write(&mut writer, &route, &snapshot).await?;
        Ok(writer)
    })
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
        Rescheduled::Done(due) => Ok(Json(ScheduledReply::rescheduled(&route, &id, due)).into_response()),
        Rescheduled::InFlight => Err(Problem::in_flight(id.as_str())),
        Rescheduled::Dead => {
            Err(Problem::new(StatusCode::CONFLICT, "dead", format!("`{id}` is dead: redrive it, or schedule it anew")))
        }
        Rescheduled::Over(limit) => Err(Problem::over(limit)),
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
    Extension(deadline): Extension<Deadline>,
    Extension(grant): Extension<Arc<Grant>>,
    Path(route): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Response, Problem> {
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(Problem::bad_request(format!("`limit` is 1 to {MAX_LIMIT}")));
    }
    let state = query.state.unwrap_or(State::Pending);
    let part = api.queue.part_bytes(&route);
    let permit = api.enter(&grant.share, part + api.largest_message(), deadline).await?;
    // Errors of the request or of Redis occur with the first part.
    let listing = MessageListing { api, grant, route, state, part };
    let first = listing.fetch(limit, query.cursor.as_deref()).await?;
    Ok(readers::json(async move |writer: Writer| {
        let _permit = permit;
        listing.write(first, limit, writer).await
    }))
}

/// One page that is being sent.
struct MessageListing {
    api: Arc<Api>,
    grant: Arc<Grant>,
    route: String,
    state: State,
    /// Bytes of bodies in a part of it.
    part: u64,
}

impl MessageListing {
    async fn fetch(&self, limit: usize, cursor: Option<&str>) -> Result<Page, Problem> {
        let Self { api, grant, route, state, part } = self;
        Ok(api.readers.fetch(&grant.share, api.queue.list(route, *state, limit, *part, cursor)).await?)
    }

    async fn write(&self, mut page: Page, limit: usize, mut writer: Writer) -> Result<Writer, Broken> {
        let (mut left, mut separator) = (limit, "");
        writer.write(br#"{"messages":["#).await?;
        let cursor = loop {
            left -= page.messages.len();
            for snapshot in page.messages {
                writer.write(separator.as_bytes()).await?;
                write(&mut writer, &self.route, &snapshot).await?;
                separator = ",";
            }
            match page.cursor {
                Some(cursor) if left > 0 && writer.written() < MAX_PAGE_BYTES => {
                    let part = self.fetch(left, Some(&cursor)).await;
                    page =
                        part.inspect_err(|error| tracing::debug!(?error, "a listing broke off")).map_err(|_| Broken)?;
                }
                cursor => break cursor,
            }
        };
        writer.write(format!(r#"],"cursor":{}}}"#, json!(cursor)).as_bytes()).await?;
        Ok(writer)
    }
}

async fn write(writer: &mut Writer, route: &str, snapshot: &Snapshot) -> Result<(), Broken> {
    for piece in shown::pieces(route, snapshot) {
        writer.write(&piece).await?;
    }
    Ok(())
}

impl Api {
    /// Waits for a reader's memory for half of the request's time: the other half is for Redis.
    async fn enter(&self, share: &Share, bytes: u64, Deadline(deadline): Deadline) -> Result<Permit, Problem> {
        self.readers.enter(share, bytes, deadline - self.request_timeout / 2).await
    }

    /// In bytes, with what belongs to it.
    fn largest_message(&self) -> u64 {
        (self.max_payload + MAX_METADATA_BYTES) as u64
    }
}

fn parse_id(text: &str) -> Result<MessageId, Problem> {
    MessageId::parse(text).map_err(Problem::bad_request)
}
