//! Replies about scheduled and rescheduled messages.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::problem::Problem;
use crate::{
    message::{MessageId, State},
    store::{ScheduleStatus, Scheduled},
    time::UnixMillis,
};

/// The reply for one message.
#[derive(Debug, Serialize)]
pub struct ScheduledReply<'a> {
    id: &'a str,
    route: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    deliver_at: Option<String>,
    /// Time at which a remembered message was completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<State>,
}

impl<'a> ScheduledReply<'a> {
    pub fn scheduled(route: &'a str, scheduled: &'a Scheduled) -> Self {
        let state = if let ScheduleStatus::Exists(state) = scheduled.status { Some(state) } else { None };
        let time = Some(scheduled.due.to_rfc3339());
        let (deliver_at, ended_at) =
            if matches!(scheduled.status, ScheduleStatus::Ended(_)) { (None, time) } else { (time, None) };
        Self { id: scheduled.id.as_str(), route, deliver_at, ended_at, status: scheduled.status.as_str(), state }
    }

    pub fn rescheduled(route: &'a str, id: &'a MessageId, due: UnixMillis) -> Self {
        let deliver_at = Some(due.to_rfc3339());
        Self { id: id.as_str(), route, deliver_at, ended_at: None, status: "rescheduled", state: None }
    }
}

/// 201 for a new message; 200 for a kept, replaced or remembered one; 409 when the message to replace is in flight; 429
/// at a limit of the route.
pub fn one(route: &str, scheduled: &Scheduled) -> Response {
    let status = match scheduled.status {
        ScheduleStatus::Scheduled => StatusCode::CREATED,
        ScheduleStatus::Exists(_)
        | ScheduleStatus::Replaced
        | ScheduleStatus::Revived
        | ScheduleStatus::Known
        | ScheduleStatus::Ended(_) => StatusCode::OK,
        ScheduleStatus::InFlight => return Problem::in_flight(scheduled.id.as_str()).into_response(),
        ScheduleStatus::Over(limit) => return Problem::over(limit).into_response(),
    };
    (status, Json(ScheduledReply::scheduled(route, scheduled))).into_response()
}

/// 200 with one reply per message, including those that are `in_flight` or over a limit. 429 when all are over a limit.
pub fn many(route: &str, scheduled: &[Scheduled]) -> Response {
    #[derive(Serialize)]
    struct Results<'a> {
        results: Vec<ScheduledReply<'a>>,
    }
    let over =
        scheduled.iter().map(|one| if let ScheduleStatus::Over(limit) = one.status { Some(limit) } else { None });
    if let Some(Some(limit)) = over.reduce(Option::and) {
        return Problem::over(limit).into_response();
    }
    Json(Results { results: scheduled.iter().map(|one| ScheduledReply::scheduled(route, one)).collect() })
        .into_response()
}
