//! Groups of a route: their messages are listed, cancelled and moved together.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, Query, Request, State},
    response::Response,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    audit::{Caller, Of},
    auth::Grant,
    body,
    deadline::Deadline,
    listing::{self, Listed, MessageListing, PageQuery},
    message_body::{self, GroupMove},
    problem::Problem,
    state::Api,
};
use crate::{
    message::{MessageId, check_group},
    queue::{GroupAction, GroupWork},
    store::{NewDue, Rescheduled},
    time::UnixMillis,
};

/// Maximum size of a body in bytes: a few short fields.
const MAX_BODY_BYTES: usize = 4096;

pub const LIST_QUERY: &[&str] = listing::PAGE_QUERY;
pub const CHANGE_QUERY: &[&str] = &["cursor"];

#[derive(Deserialize)]
pub struct ChangeQuery {
    cursor: Option<String>,
}

pub async fn look_at(
    State(api): State<Arc<Api>>,
    Extension(deadline): Extension<Deadline>,
    Extension(grant): Extension<Arc<Grant>>,
    Path((route, group)): Path<(String, String)>,
    Query(query): Query<PageQuery>,
) -> Result<Response, Problem> {
    check(&group)?;
    MessageListing::begin(api, grant, route, Listed::Group(group), &query, None, deadline).await
}

pub async fn cancel(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Extension(deadline): Extension<Deadline>,
    Path((route, group)): Path<(String, String)>,
    Query(query): Query<ChangeQuery>,
    request: Request,
) -> Result<Json<Value>, Problem> {
    check(&group)?;
    let body = body::read(&api.body_memory, request, MAX_BODY_BYTES).await?;
    message_body::parse_nothing(&body.bytes)?;
    let change = Change { call: "cancel_group", done: "cancelled", action: GroupAction::Cancel, before: None };
    change.run(&api, &caller, deadline, &route, &group, query).await
}

pub async fn move_to(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Extension(deadline): Extension<Deadline>,
    Path((route, group)): Path<(String, String)>,
    Query(query): Query<ChangeQuery>,
    request: Request,
) -> Result<Json<Value>, Problem> {
    check(&group)?;
    let body = body::read(&api.body_memory, request, MAX_BODY_BYTES).await?;
    let GroupMove { due, before } = message_body::parse_group_move(&body.bytes)?;
    let change = Change { call: "move_group", done: "moved", action: GroupAction::Move(due), before };
    change.run(&api, &caller, deadline, &route, &group, query).await
}

/// Makes the pending messages due now.
pub async fn deliver(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Extension(deadline): Extension<Deadline>,
    Path((route, group)): Path<(String, String)>,
    Query(query): Query<ChangeQuery>,
    request: Request,
) -> Result<Json<Value>, Problem> {
    check(&group)?;
    let body = body::read(&api.body_memory, request, MAX_BODY_BYTES).await?;
    message_body::parse_nothing(&body.bytes)?;
    let change = Change { call: "deliver_group", done: "moved", action: GroupAction::Move(NewDue::Now), before: None };
    change.run(&api, &caller, deadline, &route, &group, query).await
}

/// A change of the messages of a group.
struct Change {
    /// Its name in the audit log.
    call: &'static str,
    /// The field of the reply with the number of changed messages.
    done: &'static str,
    action: GroupAction,
    before: Option<UnixMillis>,
}

impl Change {
    async fn run(
        self,
        api: &Api,
        caller: &Caller,
        deadline: Deadline,
        route: &str,
        group: &str,
        ChangeQuery { cursor }: ChangeQuery,
    ) -> Result<Json<Value>, Problem> {
        let Self { call, done, action, before } = self;
        let by = caller.by();
        let (end, mut work) = (api.end_of_work(deadline), GroupWork { before, by, ..GroupWork::default() });
        let result = api.queue.change_group(route, group, action, cursor.as_deref(), end, &mut work).await;
        let of = Of::Selection(format!("group={group}"));
        if let Err(error) = result {
            let error = caller.record_failed(call, route, &of, work.count, error);
            return Err(Problem::from(error).after(work.count));
        }
        caller.record(call, route, &of, work.count);
        let in_flight: Vec<_> = work.in_flight.iter().map(MessageId::as_str).collect();
        let mut reply = json!({ done: work.count, "in_flight": in_flight, "more": work.cursor.is_some() });
        if let Some(cursor) = work.cursor {
            reply["cursor"] = cursor.into();
        }
        if action != GroupAction::Cancel {
            reply["refused"] = work.refused.iter().map(|(id, why)| refusal(id.as_str(), why)).collect();
            reply["before"] = json!(work.before);
        }
        Ok(Json(reply))
    }
}

/// A message that stays at its time.
pub fn refusal(id: &str, why: &Rescheduled) -> Value {
    let (reason, detail) = match why {
        Rescheduled::Held(first) => ("held", format!("`{first}` comes before it in its flow, which is ordered")),
        Rescheduled::Expires(at) => {
            ("expires", format!("expires at {}, before it would be delivered", at.to_rfc3339()))
        }
        Rescheduled::Over(limit) => (limit.status(), Problem::over(*limit).detail().to_owned()),
        _ => ("unknown", String::new()),
    };
    json!({ "id": id, "reason": reason, "detail": detail })
}

/// # Errors
/// 400 for a name that no group has.
fn check(group: &str) -> Result<(), Problem> {
    check_group(group).map_err(Problem::bad_request)
}
