//! The audit log: one line for each call that changes messages or routes, or can have changed them.

use std::{convert::Infallible, fmt::Write, net::IpAddr, sync::Arc};

use axum::{extract::FromRequestParts, http::request::Parts};

use super::{auth::Grant, connections::Peer};
use crate::{
    message::{MessageId, shown_flow},
    queue::{QueueError, ScheduleError},
    store::{Filter, Selection, StoreError},
    time::UnixMillis,
};

/// Maximum number of ids that a line names; more ids are counted.
pub const NAMED_IDS: usize = 10;

/// The field `outcome` of a call that can have taken effect although its answer is an error.
pub const UNKNOWN: &str = "unknown";

/// The caller: its token and its address. A connection of a Unix socket has no address.
pub struct Caller {
    pub grant: Arc<Grant>,
    pub peer: Option<IpAddr>,
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let grant = parts.extensions.get::<Arc<Grant>>().expect("every call is authenticated").clone();
        Ok(Self { grant, peer: parts.extensions.get::<Peer>().map(|peer| peer.0) })
    }
}

/// The subject of a call.
pub enum Of<'a> {
    Id(&'a MessageId),
    Selection(String),
    /// A message, and how it was changed.
    Edit(&'a MessageId, String),
    /// The note of an operator about a change of a route.
    Note(&'a str),
    /// A flow of the route, and a note or the change.
    Flow(&'a str, &'a str),
    Schedule(&'a str),
    Route,
}

impl Caller {
    /// The name of the token, as it is kept with messages; `None` without one.
    pub fn by(&self) -> Option<String> {
        Some(self.grant.name()).filter(|name| !name.is_empty()).map(str::to_owned)
    }

    /// Logs a call that changed `count` messages, or a route.
    pub fn record(&self, call: &'static str, route: &str, of: &Of<'_>, count: u64) {
        if count > 0 {
            self.log(call, route, of, count, None);
        }
    }

    /// Logs a call that failed after it changed `count` messages, and a call with an unknown outcome. Returns the error.
    pub fn record_failed<E: Failure>(&self, call: &'static str, route: &str, of: &Of<'_>, count: u64, error: E) -> E {
        if error.has_unknown_outcome() {
            self.log(call, route, of, count, Some(UNKNOWN));
        } else {
            self.record(call, route, of, count);
        }
        error
    }

    /// Logs a call on a route or a flow, unless it changed nothing.
    ///
    /// # Errors
    /// That of `result`.
    pub fn record_change<E: Failure>(
        &self,
        call: &'static str,
        route: &str,
        of: &Of<'_>,
        result: Result<bool, E>,
    ) -> Result<(), E> {
        let is_changed = result.map_err(|error| self.record_failed(call, route, of, 0, error))?;
        self.record(call, route, of, is_changed.into());
        Ok(())
    }

    fn log(&self, call: &str, route: &str, of: &Of<'_>, count: u64, outcome: Option<&str>) {
        let peer = self.peer.map(|peer| peer.to_string());
        log(self.grant.name(), peer.as_deref(), call, route, of, count, outcome);
    }
}

/// The error of a call.
pub trait Failure {
    /// Whether the call can have taken effect. A refusal changed nothing.
    fn has_unknown_outcome(&self) -> bool;
}

impl Failure for StoreError {
    fn has_unknown_outcome(&self) -> bool {
        match self {
            // A full Redis refuses the first write of a script.
            Self::Unavailable { kind: "oom", .. } | Self::Refused { .. } => false,
            // A script that fails at a key of another type may have written before.
            Self::Unavailable { .. } | Self::WrongType { .. } => true,
        }
    }
}

impl Failure for QueueError {
    fn has_unknown_outcome(&self) -> bool {
        matches!(self, Self::Store(error) if error.has_unknown_outcome())
    }
}

impl Failure for ScheduleError {
    fn has_unknown_outcome(&self) -> bool {
        matches!(self, Self::Queue(error) if error.has_unknown_outcome())
    }
}

/// Logs one line.
pub fn log(token: &str, peer: Option<&str>, call: &str, route: &str, of: &Of<'_>, count: u64, outcome: Option<&str>) {
    let (mut id, mut selection, mut note, mut flow, mut schedule) = (None, None, None, None, None);
    match of {
        Of::Id(one) => id = Some(one.as_str()),
        Of::Edit(one, text) => (id, note) = (Some(one.as_str()), Some(&**text)),
        Of::Selection(text) => selection = Some(&**text),
        Of::Note(text) => note = Some(*text).filter(|note| !note.is_empty()),
        Of::Flow(key, text) => (flow, note) = (Some(*key), Some(*text).filter(|text| !text.is_empty())),
        Of::Schedule(name) => schedule = Some(*name),
        Of::Route => {}
    }
    // A call on the whole instance has no route.
    let route = Some(route).filter(|route| !route.is_empty());
    tracing::info!(token, peer, call, route, flow, schedule, id, selection, note, count, outcome, "audit");
}

/// The selection as text for a line.
pub fn shown(selection: &Selection) -> Of<'static> {
    Of::Selection(match selection {
        Selection::Ids { ids, until } => {
            let ids = named(&ids.iter().collect::<Vec<_>>());
            until.map_or(ids.clone(), |until| format!("{ids} until={}", until.to_rfc3339()))
        }
        Selection::Where(filter) => filtered(filter),
    })
}

/// The selection of a redrive into another route.
pub fn redirected(selection: &Selection, to: &str) -> Of<'static> {
    match shown(selection) {
        Of::Selection(text) => Of::Selection(format!("{text} to={to}")),
        other => other,
    }
}

fn named(ids: &[&MessageId]) -> String {
    let first: Vec<_> = ids.iter().take(NAMED_IDS).map(|id| id.as_str()).collect();
    match ids.len() - first.len() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

fn filtered(filter: &Filter) -> String {
    let mut text = String::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let space = if text.is_empty() { "" } else { " " };
            // Writing to a `String` cannot fail.
            let _ = write!(text, "{space}{name}={value}");
        }
    };
    add("reason", filter.reason.map(|reason| reason.as_str().to_owned()));
    add("contains", filter.contains.as_ref().map(|part| format!("{part:?}")));
    add("since", filter.since.map(UnixMillis::to_rfc3339));
    add("until", filter.until.map(UnixMillis::to_rfc3339));
    add("flow", filter.flow.as_deref().map(|flow| shown_flow(flow).to_owned()));
    add("group", filter.group.clone());
    add("key", filter.key.as_ref().map(|key| format!("{key:?}")));
    for (name, value) in &filter.headers {
        add(&format!("header.{name}"), Some(format!("{value:?}")));
    }
    add("payload_contains", filter.payload.as_ref().map(|part| format!("{part:?}")));
    if text.is_empty() { "all".to_owned() } else { text }
}
