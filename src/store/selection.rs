//! Selections of listings and bulk calls.

use tokio::time::Instant;

use crate::{
    message::{DeadReason, MessageId},
    time::UnixMillis,
};

/// Selects the messages of a state that match every given field. An empty filter selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The reason of death.
    pub reason: Option<DeadReason>,
    /// A part of the last error, case-sensitive.
    pub contains: Option<String>,
    /// Minimum time of death; of pending messages, of the next attempt.
    pub since: Option<UnixMillis>,
    /// End of that time, exclusive.
    pub until: Option<UnixMillis>,
    /// Only messages with failed attempts.
    pub retried: bool,
    /// Only messages of this flow, on a route with flows; empty for the empty flow.
    pub flow: Option<String>,
    /// Only messages of this group.
    pub group: Option<String>,
}

/// The dead messages of a bulk call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    Ids {
        ids: Vec<MessageId>,
        /// Excludes messages that died at this time or later, such as redriven ones that died again.
        until: Option<UnixMillis>,
    },
    /// Without `until`, only messages that died before the call.
    Where(Filter),
}

/// The action of a bulk call on dead messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadAction {
    /// Makes them pending again: attempts 0, due now.
    Redrive(Expiry),
    /// Deletes them.
    Purge,
    /// Forwards them to the route of `dead.forward`.
    Forward,
}

/// How a redrive changes the expiry time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    /// The messages never expire.
    #[default]
    Drop,
    Keep,
    /// All messages expire this many milliseconds after the call, also those that had no expiry; at most
    /// `MAX_DELAY_MILLIS`.
    After(u64),
}

/// A bulk call on dead messages.
#[derive(Clone, Copy, Debug)]
pub struct DeadWork<'a> {
    pub action: DeadAction,
    pub selection: &'a Selection,
    /// Maximum number of messages.
    pub limit: u64,
    /// Only counts the messages.
    pub dry_run: bool,
    pub deadline: Instant,
}

/// Progress of a bulk call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadProgress {
    pub count: u64,
    /// Whether selected messages remain.
    pub more: bool,
    /// The `until` of the selection: messages that died later, such as redriven ones that died again, are not selected.
    pub until: Option<UnixMillis>,
    /// Score and id of the last message that was considered, in the partition in which the call continues.
    pub place: Option<(u64, MessageId)>,
}

/// The dead messages of one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadGroup {
    /// Empty if the error has no reason.
    pub reason: String,
    pub count: u64,
    /// Times of the first and the last death.
    pub oldest: UnixMillis,
    pub newest: UnixMillis,
    /// The message that died last, and its error without the reason.
    pub sample: (MessageId, String),
}
