//! Shows, moves and cancels single messages, and lists the messages of a route.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, Query, Request, State as Shared},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::{
    audit::{Caller, Of},
    auth::Grant,
    body,
    deadline::Deadline,
    ended,
    filter::Parameters,
    listing::{self, Listed, MessageListing, PageQuery},
    message_body,
    problem::{FieldError, Problem},
    readers::{self, Permit, Share, Writer},
    scheduled::ScheduledReply,
    shown::{self, Down, Waits},
    state::Api,
};
use crate::{
    config::Right,
    message::{Cancellation, EndedMessage, MAX_METADATA_BYTES, MessageId, State},
    queue::QueueError,
    store::{Cancelled, Filter, Found, NEVER, Order, Rescheduled, Snapshot},
    time::{Due, UnixMillis},
};

/// A message with a payload of at most this many bytes is sent at once; a larger one is streamed.
const MAX_WHOLE_BYTES: usize = 64 * 1024;
/// Maximum size of an empty body in bytes.
const MAX_EMPTY_BYTES: usize = 4096;

pub async fn look_at(
    Shared(api): Shared<Arc<Api>>,
    Extension(deadline): Extension<Deadline>,
    Extension(grant): Extension<Arc<Grant>>,
    Path((route, id)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let id = MessageId::stored(&id).map_err(Problem::bad_request)?;
    let permit = api.enter(&grant.share, api.largest_message(), deadline).await?;
    match api.readers.fetch(&grant.share, api.queue.get(&route, &id)).await? {
        Some(Found::Live { snapshot, now, paused, ends }) => {
            let waits = shown_waits(&api, &grant, &route, &snapshot, now, paused);
            Ok(one(route, *snapshot, waits, ends, permit))
        }
        Some(Found::Ended { remembered, ends }) => Ok(ended::one(&route, &id, remembered, &ends)),
        None => Err(Problem::unknown_message(id.as_str())),
    }
}

/// The reason why a message waits, as this token may see it.
pub fn shown_waits(api: &Api, grant: &Grant, route: &str, snapshot: &Snapshot, now: UnixMillis, paused: bool) -> Waits {
    let mut waits = api.waits_for(route, snapshot, now, paused);
    // Domain and error may contain values of messages of any route.
    if let Some(down) = waits.down.as_mut().filter(|_| !grant.covers_all()) {
        (down.domain, down.error) = (None, None);
    }
    waits
}

fn one(route: String, snapshot: Snapshot, waits: Waits, ends: Vec<EndedMessage>, permit: Permit) -> Response {
    if snapshot.message.as_ref().map_or(0, |message| message.payload.len()) <= MAX_WHOLE_BYTES {
        return readers::whole(shown::pieces(&route, &snapshot, (&waits, &ends), shown::Payload::Shown));
    }
    readers::json(async move |mut writer: Writer| {
        let _permit = permit;
        listing::write(&mut writer, &route, &snapshot, (&waits, &ends), shown::Payload::Shown).await?;
        Ok(writer)
    })
}

/// Makes a message due now.
pub async fn deliver(
    Shared(api): Shared<Arc<Api>>,
    caller: Caller,
    Path((route, id)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let body = body::read(&api.body_memory, request, MAX_EMPTY_BYTES).await?;
    message_body::parse_nothing(&body.bytes)?;
    move_to(&api, &caller, "deliver", &route, &id, None).await
}

/// Moves a pending message; without `due` it is due now.
pub async fn move_to(
    api: &Api,
    caller: &Caller,
    call: &'static str,
    route: &str,
    id: &str,
    due: Option<Due>,
) -> Result<Response, Problem> {
    let id = parse_id(id)?;
    let result = api.queue.reschedule(route, &id, due).await;
    match result.map_err(|error| caller.record_failed(call, route, &Of::Id(&id), 0, error))? {
        Rescheduled::Done(due) => {
            caller.record(call, route, &Of::Id(&id), 1);
            Ok(Json(ScheduledReply::rescheduled(route, &id, due)).into_response())
        }
        Rescheduled::InFlight => Err(Problem::in_flight(id.as_str())),
        Rescheduled::Dead => Err(Problem::new(
            StatusCode::CONFLICT,
            "dead",
            format!("`{id}` is dead: redrive it, edit it, or schedule it anew"),
        )),
        Rescheduled::Held(first) => Err(Problem::new(
            StatusCode::CONFLICT,
            "held",
            format!("`{first}` comes before `{id}` in its flow, which is ordered: deliver or cancel that first"),
        )),
        Rescheduled::Over(limit) => Err(Problem::over(limit)),
        Rescheduled::Expires(at) => Err(Problem::invalid(vec![FieldError::new(
            "",
            format!("`{id}` expires at {}, before it would be delivered", at.to_rfc3339()),
        )])),
        Rescheduled::NotFound | Rescheduled::Later => Err(Problem::unknown_message(id.as_str())),
    }
}

/// Cancels a pending message, or purges a dead letter. The latter needs the right `admin`.
pub async fn cancel(
    Shared(api): Shared<Arc<Api>>,
    caller: Caller,
    Path((route, id)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    let id = parse_id(&id)?;
    let body = body::read(&api.body_memory, request, MAX_EMPTY_BYTES).await?;
    message_body::parse_nothing(&body.bytes)?;
    let keep_dead = !caller.grant.has(Right::Admin);
    let cancellation = Cancellation { keep_dead, by: caller.by(), ..Cancellation::from(id.clone()) };
    let result = api.queue.cancel(&route, &cancellation).await;
    match result.map_err(|error| caller.record_failed("cancel", &route, &Of::Id(&id), 0, error))? {
        Cancelled::Cancelled => {
            caller.record("cancel", &route, &Of::Id(&id), 1);
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        Cancelled::Purged => {
            caller.record("purge_dead", &route, &Of::Id(&id), 1);
            Ok(Json(json!({ "id": id.as_str(), "route": route, "status": "purged" })).into_response())
        }
        Cancelled::Dead => {
            let text = format!("`{id}` is a dead letter: to purge it needs the right `admin`");
            Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", text))
        }
        Cancelled::InFlight => Err(Problem::in_flight(id.as_str())),
        Cancelled::NotFound | Cancelled::Known => Err(Problem::unknown_message(id.as_str())),
    }
}

/// The query parameters of a listing.
pub const LIST_QUERY: &[&str] = &[
    "state",
    "reason",
    "contains",
    "since",
    "until",
    "flow",
    "group",
    "key",
    "header.NAME",
    "payload_contains",
    "outcome",
    "order",
    "limit",
    "cursor",
    "payload",
];

/// The messages that a listing shows.
enum ListedState {
    /// Those of a state; only those with failed attempts, if true.
    Live(State, bool),
    /// Messages that ended, on a route with a history.
    Ended,
}

fn listed_state(text: &str) -> Result<ListedState, String> {
    match text {
        "pending" => Ok(ListedState::Live(State::Pending, false)),
        "retrying" => Ok(ListedState::Live(State::Pending, true)),
        "unack" => Ok(ListedState::Live(State::Unack, false)),
        "dead" => Ok(ListedState::Live(State::Dead, false)),
        "ended" => Ok(ListedState::Ended),
        _ => Err("is `pending`, `retrying`, `unack`, `dead` or `ended`".into()),
    }
}

/// The newest dead letters come first.
fn default_order(state: State) -> Order {
    if state == State::Dead { Order::Descending } else { Order::Ascending }
}

pub async fn list(
    Shared(api): Shared<Arc<Api>>,
    Extension(deadline): Extension<Deadline>,
    Extension(grant): Extension<Arc<Grant>>,
    Path(route): Path<String>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, Problem> {
    let mut query = Parameters::new(query)?;
    let listed = query.take("state", listed_state)?.unwrap_or(ListedState::Live(State::Pending, false));
    let page = PageQuery {
        limit: query.take("limit", |text| text.parse().map_err(|_| "is a number".to_owned()))?,
        cursor: query.take("cursor", |text| Ok(text.to_owned()))?,
        payload: query.take("payload", |text| text.parse().map_err(|_| "is `true` or `false`".to_owned()))?,
    };
    let ListedState::Live(state, retried) = listed else {
        let ends = query.ends()?;
        return ended::list(&api, &grant, &route, (&ends, &page), deadline).await;
    };
    let mut filter = query.filter(Some(state))?;
    api.check_flow_filter(&route, &filter, "flow")?;
    filter.retried = retried;
    let order = query.order()?.unwrap_or_else(|| default_order(state));
    // Few of many messages may match.
    let end = (filter != Filter::default()).then(|| api.end_of_work(deadline));
    let listed = Listed::Filtered { state, filter, order };
    MessageListing::begin(api, grant, route, listed, &page, end, deadline).await
}

impl Api {
    /// Checks that the route of a filter by flow has flows. `pointer`: the place of the flow in the request.
    ///
    /// # Errors
    /// 404 for an unknown route, 422 for one without flows.
    pub fn check_flow_filter(&self, route: &str, filter: &Filter, pointer: &str) -> Result<(), Problem> {
        match filter.flow.as_ref().map(|_| self.queue.flow_limits(route)) {
            Some(Err(error @ QueueError::NoFlows(_))) => {
                Err(Problem::invalid(vec![FieldError::new(pointer, error.to_string())]))
            }
            Some(Err(error)) => Err(error.into()),
            Some(Ok(_)) | None => Ok(()),
        }
    }

    /// The reason why a pending message is not delivered yet, as this instance sees its sink.
    fn waits_for(&self, route: &str, snapshot: &Snapshot, now: UnixMillis, paused: bool) -> Waits {
        if snapshot.state != State::Pending {
            return Waits::default();
        }
        if snapshot.deliver_at.get() >= NEVER {
            return Waits::of("schedule");
        }
        let is_early = snapshot.message.as_ref().is_ok_and(|message| message.due > now);
        let waits = snapshot.deliver_at > now;
        if waits && is_early && snapshot.attempts == 0 {
            return Waits::of("due");
        }
        if paused {
            return Waits::of("paused");
        }
        if self.queue.window(route, now).is_some_and(|window| !window.open) {
            return Waits::of("window");
        }
        if let Some(sink) = self.queue.sink(route)
            && let Some(failing) = (self.statuses.failing)(&sink, route, snapshot)
        {
            let since = u64::try_from(failing.since.elapsed().as_millis()).unwrap_or(u64::MAX);
            let since = UnixMillis::new(now.get().saturating_sub(since)).unwrap_or_default();
            let down = Down { sink: sink.to_string(), domain: failing.domain, error: failing.error, since };
            return Waits::of_sink(down);
        }
        if snapshot.parked {
            return Waits::of("flow");
        }
        // The message is due, or was deferred because a suspect is claimed alone.
        Waits::of(if waits && snapshot.attempts > 0 { "retry" } else { "capacity" })
    }

    /// Waits at most half of the request's time for memory: the other half is for Redis.
    pub async fn enter(&self, share: &Share, bytes: u64, Deadline(deadline): Deadline) -> Result<Permit, Problem> {
        self.readers.enter(share, bytes, deadline - self.request_timeout / 2).await
    }

    /// Size of the largest message in bytes, with its metadata.
    pub fn largest_message(&self) -> u64 {
        (self.max_payload + MAX_METADATA_BYTES) as u64
    }
}

/// The id of a message that a call changes.
pub fn parse_id(text: &str) -> Result<MessageId, Problem> {
    if let Some(name) = MessageId::stored(text).ok().as_ref().and_then(MessageId::schedule) {
        let text = format!("`{text}` is the message of a schedule: change it with /v1/schedules/{name}");
        return Err(Problem::bad_request(text));
    }
    MessageId::parse(text).map_err(Problem::bad_request)
}
