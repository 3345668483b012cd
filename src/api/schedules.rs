//! Recurring schedules.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, Query, Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    audit::{Caller, Of},
    auth::Grant,
    body, message_body,
    post::{MAX_JSON_BYTES, VIA},
    problem::{FieldError, Problem},
    state::Api,
};
use crate::{
    message::MessageId,
    queue::{RouteSchedule, ScheduleError},
    recurrence::{Missed, Rule},
    store::{RunResult, ScheduleChange, ScheduleOwner, ScheduleState, ScheduleStatus},
    time::UnixMillis,
};

const DEFAULT_COUNT: usize = 5;
/// Maximum number of occurrences that are shown: some take a search over years.
const MAX_COUNT: usize = 100;
const MAX_BODY_BYTES: usize = 8192;

pub const NEXT_QUERY: &[&str] = &["count"];

#[derive(Deserialize)]
pub struct NextQuery {
    count: Option<usize>,
}

/// A schedule in a reply. Durations are texts, as requests have them.
#[derive(Serialize)]
struct Shown {
    name: String,
    route: Arc<str>,
    /// `file` or `api`.
    managed_by: &'static str,
    #[serde(flatten)]
    rule: ShownRule,
    paused: bool,
    in_flight: bool,
    /// The occurrence that is waited for, or in flight.
    next: Option<UnixMillis>,
    last: Option<Run>,
}

#[derive(Serialize)]
struct ShownRule {
    #[serde(skip_serializing_if = "Option::is_none")]
    cron: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    every: Option<String>,
    /// That of `cron`.
    #[serde(skip_serializing_if = "Option::is_none")]
    time_zone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    starts_at: Option<UnixMillis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_at: Option<UnixMillis>,
    jitter: String,
    missed: Missed,
    /// The rule in words.
    words: String,
}

/// An occurrence that ended, or several that were missed.
#[derive(Serialize)]
#[serde(tag = "result", rename_all = "lowercase")]
enum Run {
    Delivered { occurrence: UnixMillis, late_ms: u64 },
    Dead { occurrence: UnixMillis, late_ms: u64 },
    Missed { at: UnixMillis, count: u64 },
}

impl From<&RunResult> for Run {
    fn from(run: &RunResult) -> Self {
        match *run {
            RunResult::Delivered { occurrence, late } => Self::Delivered { occurrence, late_ms: late },
            RunResult::Dead { occurrence, late } => Self::Dead { occurrence, late_ms: late },
            RunResult::Missed { at, count } => Self::Missed { at, count },
        }
    }
}

impl From<&Rule> for ShownRule {
    fn from(rule: &Rule) -> Self {
        let duration = |millis| humantime::format_duration(std::time::Duration::from_millis(millis)).to_string();
        Self {
            cron: rule.cron.clone(),
            every: rule.every.map(duration),
            time_zone: rule.cron.as_ref().map(|_| rule.time_zone.clone().unwrap_or_else(|| "UTC".to_owned())),
            starts_at: rule.starts_at.and_then(UnixMillis::new),
            ends_at: rule.ends_at.and_then(UnixMillis::new),
            jitter: duration(rule.jitter),
            missed: rule.missed,
            words: rule.words(),
        }
    }
}

impl From<&RouteSchedule> for Shown {
    fn from(one: &RouteSchedule) -> Self {
        let state = &one.state;
        Self {
            name: one.name().to_owned(),
            route: one.route.clone(),
            managed_by: if state.owner == ScheduleOwner::Api { "api" } else { "file" },
            rule: (&state.recurring.rule).into(),
            paused: state.is_paused,
            in_flight: state.in_flight,
            next: state.next.filter(|_| !state.is_paused),
            last: state.runs.first().map(Into::into),
        }
    }
}

/// The whole schedule: also its message, the next occurrences and the last runs.
fn whole(one: &RouteSchedule, now: u64) -> Value {
    let ScheduleState { metadata, payload, recurring, runs, .. } = &one.state;
    let mut shown = serde_json::to_value(Shown::from(one)).expect("strings and integers always serialize");
    let Value::Object(fields) = &mut shown else { return shown };
    let mut add = |name: &str, value: Value| {
        if !value.is_null() {
            fields.insert(name.to_owned(), value);
        }
    };
    match str::from_utf8(payload) {
        Ok(text) => {
            let is_json = metadata.content_type.as_deref() == Some(message_body::JSON);
            let json = is_json.then(|| serde_json::from_str(text).ok()).flatten();
            add("payload", json.unwrap_or_else(|| text.into()));
        }
        Err(_) => add("payload_base64", BASE64_STANDARD.encode(payload).into()),
    }
    let plain = |value: serde_json::Result<Value>| value.expect("strings and integers always serialize");
    if let Value::Object(metadata) = plain(serde_json::to_value(metadata)) {
        for (name, value) in metadata.into_iter().filter(|(name, _)| name != "origin") {
            add(&name, value);
        }
    }
    if let Some(after) = recurring.expires_after {
        let text = humantime::format_duration(std::time::Duration::from_millis(after)).to_string();
        add("expires_after", text.into());
    }
    let following = if one.state.is_paused { Vec::new() } else { one.following(now, DEFAULT_COUNT) };
    add("following", plain(serde_json::to_value(following)));
    add("runs", plain(serde_json::to_value(runs.iter().map(Run::from).collect::<Vec<_>>())));
    shown
}

impl From<ScheduleError> for Problem {
    fn from(error: ScheduleError) -> Self {
        let text = error.to_string();
        match error {
            ScheduleError::Queue(error) => error.into(),
            ScheduleError::Rule(error) => Self::invalid(vec![FieldError::new(format!("/{}", error.field), error.text)]),
            ScheduleError::Unknown(_) => Self::new(StatusCode::NOT_FOUND, "unknown-schedule", text),
            ScheduleError::Managed(_) | ScheduleError::Older(_) => Self::new(StatusCode::CONFLICT, "managed", text),
            ScheduleError::OtherRoute(..) | ScheduleError::Unconfigured(..) => {
                Self::new(StatusCode::CONFLICT, "other-route", text)
            }
            ScheduleError::Conflict(_) => Self::new(StatusCode::CONFLICT, "conflict", text),
            ScheduleError::Moving(_) => Self::unavailable(text),
        }
    }
}

fn parse_name(name: &str) -> Result<MessageId, Problem> {
    MessageId::of_schedule(name).map_err(Problem::bad_request)
}

fn check_route(grant: &Grant, route: &str) -> Result<(), Problem> {
    if grant.covers(route) {
        return Ok(());
    }
    Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", "the token is for other routes"))
}

/// The schedule, if the token covers its route.
async fn find(api: &Api, grant: &Grant, name: &str) -> Result<RouteSchedule, Problem> {
    let mut all = api.queue.known_schedules(&parse_name(name)?).await?;
    all.iter().try_for_each(|one| check_route(grant, &one.route))?;
    Ok(all.swap_remove(0))
}

/// The clock of Redis, in milliseconds.
async fn now(api: &Api) -> Result<u64, Problem> {
    let routes = api.queue.routes();
    let route = routes.first().ok_or_else(|| Problem::bad_request("there are no routes"))?;
    Ok(api.queue.now(route).await?)
}

fn bounded(count: Option<usize>) -> Result<usize, Problem> {
    let count = count.unwrap_or(DEFAULT_COUNT);
    if (1..=MAX_COUNT).contains(&count) {
        return Ok(count);
    }
    Err(Problem::bad_request(format!("`count` is 1 to {MAX_COUNT}")))
}

pub async fn list(
    State(api): State<Arc<Api>>,
    Extension(grant): Extension<Arc<Grant>>,
) -> Result<Json<Value>, Problem> {
    let routes: Vec<Arc<str>> = api.queue.routes().into_iter().filter(|route| grant.covers(route)).collect();
    let all = api.readers.fetch(&grant.share, api.queue.schedules(&routes)).await?;
    Ok(Json(json!({ "schedules": all.iter().map(Shown::from).collect::<Vec<_>>() })))
}

pub async fn look_at(
    State(api): State<Arc<Api>>,
    Extension(grant): Extension<Arc<Grant>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    let one = find(&api, &grant, &name).await?;
    Ok(Json(whole(&one, api.queue.now(&one.route).await?)))
}

pub async fn next(
    State(api): State<Arc<Api>>,
    Extension(grant): Extension<Arc<Grant>>,
    Path(name): Path<String>,
    Query(NextQuery { count }): Query<NextQuery>,
) -> Result<Json<Value>, Problem> {
    let count = bounded(count)?;
    let one = find(&api, &grant, &name).await?;
    let now = api.queue.now(&one.route).await?;
    Ok(Json(json!({ "name": one.name(), "next": one.following(now, count) })))
}

/// The next occurrences of a rule that is not stored.
pub async fn preview(State(api): State<Arc<Api>>, request: Request) -> Result<Json<Value>, Problem> {
    let body = body::read(&api.body_memory, request, MAX_BODY_BYTES).await?;
    let now = now(&api).await?;
    let (rule, count) = message_body::parse_preview(&body.bytes, now)?;
    let count = bounded(count)?;
    let timetable = rule.timetable().map_err(|error| Problem::from(ScheduleError::Rule(error)))?;
    let next: Vec<_> = timetable.following(now).take(count).filter_map(UnixMillis::new).collect();
    Ok(Json(json!({ "words": rule.words(), "next": next })))
}

pub async fn set(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let id = parse_name(&name)?;
    let body = body::read(&api.body_memory, request, MAX_JSON_BYTES).await?;
    let new = message_body::parse_schedule(&body.bytes, id.clone(), api.max_payload, now(&api).await?)?;
    check_route(&caller.grant, &new.route)?;
    if !api.queue.has_route(&new.route) {
        let text = format!("there is no route `{}`", new.route.escape_debug());
        return Err(Problem::invalid(vec![FieldError::new("/route", text)]));
    }
    for known in api.queue.schedules_of_name(&id, &new.route).await? {
        check_route(&caller.grant, &known.route)?;
    }
    let (route, of) = (new.route.clone(), Of::Schedule(&name));
    let result = api.queue.set_schedule(new).await;
    if let Err(ScheduleError::Unconfigured(_, of)) = &result {
        check_route(&caller.grant, of)?;
    }
    let change = result.map_err(|error| caller.record_failed("set_schedule", &route, &of, 0, error))?;
    let is_changed = change != ScheduleChange::Unchanged;
    caller.record("set_schedule", &route, &of, is_changed.into());
    let one = api.queue.schedule_on(&route, &id).await?;
    let status = if change == ScheduleChange::Created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(whole(&one, api.queue.now(&one.route).await?))).into_response())
}

pub async fn delete(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    let one = find(&api, &caller.grant, &name).await?;
    let result = api.queue.delete_schedule(&one.state.id, ScheduleOwner::Api).await;
    caller.record_change("delete_schedule", &one.route, &Of::Schedule(&name), result.map(|_| true))?;
    Ok(StatusCode::NO_CONTENT)
}

pub async fn run(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    nothing(&api, request).await?;
    let one = find(&api, &caller.grant, &name).await?;
    caller.grant.admit(1)?;
    let of = Of::Schedule(&name);
    let result = api.queue.run_schedule(&one.state.id, VIA).await;
    let (one, scheduled) = result.map_err(|error| caller.record_failed("run_schedule", &one.route, &of, 0, error))?;
    if let ScheduleStatus::Over(limit) = scheduled.status {
        return Err(Problem::over(limit));
    }
    caller.record("run_schedule", &one.route, &of, 1);
    Ok((StatusCode::ACCEPTED, Json(json!({ "id": scheduled.id.as_str(), "route": one.route }))).into_response())
}

pub async fn pause(
    api: State<Arc<Api>>,
    caller: Caller,
    name: Path<String>,
    request: Request,
) -> Result<StatusCode, Problem> {
    switch(api, caller, name, request, true).await
}

pub async fn resume(
    api: State<Arc<Api>>,
    caller: Caller,
    name: Path<String>,
    request: Request,
) -> Result<StatusCode, Problem> {
    switch(api, caller, name, request, false).await
}

async fn switch(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(name): Path<String>,
    request: Request,
    pause: bool,
) -> Result<StatusCode, Problem> {
    nothing(&api, request).await?;
    let one = find(&api, &caller.grant, &name).await?;
    let result = api.queue.pause_schedule(&one.state.id, pause).await.map(|(_, is_changed)| is_changed);
    let call = if pause { "pause_schedule" } else { "resume_schedule" };
    caller.record_change(call, &one.route, &Of::Schedule(&name), result)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn nothing(api: &Api, request: Request) -> Result<(), Problem> {
    let body = body::read(&api.body_memory, request, MAX_BODY_BYTES).await?;
    message_body::parse_nothing(&body.bytes)
}
