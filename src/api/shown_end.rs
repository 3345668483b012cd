//! The end of a message as JSON.

use serde::Serialize;

use crate::{
    message::{EndOutcome, EndedMessage},
    time::UnixMillis,
};

/// The end of a message. Times that are not known are left out.
#[derive(Serialize)]
pub struct ShownEnd<'a> {
    outcome: &'static str,
    ended_at: UnixMillis,
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted_at: Option<UnixMillis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due: Option<UnixMillis>,
    /// Time of a delivery after the due time.
    #[serde(skip_serializing_if = "Option::is_none")]
    late_ms: Option<u64>,
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flow: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduled_by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cancelled_by: Option<&'a str>,
}

impl<'a> From<&'a EndedMessage> for ShownEnd<'a> {
    fn from(end: &'a EndedMessage) -> Self {
        let known = |at: UnixMillis| (at != UnixMillis::default()).then_some(at);
        let due = end.due.max(end.accepted).get();
        let late = (end.outcome == EndOutcome::Delivered).then(|| end.ended.get().saturating_sub(due));
        Self {
            outcome: end.outcome.as_str(),
            ended_at: end.ended,
            accepted_at: known(end.accepted),
            due: known(end.due),
            late_ms: late,
            attempts: end.attempts,
            status: end.status,
            error: end.error.as_deref(),
            key: end.key.as_deref(),
            flow: end.flow.as_deref(),
            group: end.group.as_deref(),
            scheduled_by: end.scheduled_by.as_deref(),
            cancelled_by: end.cancelled_by.as_deref(),
        }
    }
}
