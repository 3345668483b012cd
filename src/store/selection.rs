//! What listings and bulk calls select.

use tokio::time::Instant;

use crate::{
    message::{DeadReason, MessageId},
    time::UnixMillis,
};

/// The messages of a state that match every given field; without any, all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Why they are dead.
    pub reason: Option<DeadReason>,
    /// A part of the last error; case matters.
    pub contains: Option<String>,
    /// From this time on: of death, or, of pending ones, of the next attempt.
    pub since: Option<UnixMillis>,
    /// Before this time.
    pub until: Option<UnixMillis>,
    /// Those with failed attempts alone.
    pub retried: bool,
}

/// Dead messages of a bulk call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    Ids(Vec<MessageId>),
    /// Without `until`, those that died before the call.
    Where(Filter),
}

/// What a bulk call does with dead messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadAction {
    /// Makes them pending again: attempts 0, due now.
    Redrive(Expiry),
    /// Deletes them.
    Purge,
}

/// How a redrive changes the time of expiry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    /// They never expire.
    #[default]
    Drop,
    Keep,
    /// All expire this many milliseconds after the call, also those that had no such time; at most `MAX_DELAY_MILLIS`.
    After(u64),
}

/// A bulk call.
#[derive(Clone, Copy, Debug)]
pub struct DeadWork<'a> {
    pub action: DeadAction,
    pub selection: &'a Selection,
    /// Most messages.
    pub limit: u64,
    /// Only counts them.
    pub dry_run: bool,
    pub deadline: Instant,
}

/// How far a bulk call came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadProgress {
    pub count: u64,
    /// Whether selected messages remain.
    pub more: bool,
    /// The end of the filter: those that died later, redriven ones among them, are not selected.
    pub until: Option<UnixMillis>,
    /// Score and id of the last message that was considered, of the partition where it goes on.
    pub place: Option<(u64, MessageId)>,
}

/// The dead messages of one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadGroup {
    /// Empty where the error has none.
    pub reason: String,
    pub count: u64,
    /// First and last death.
    pub oldest: UnixMillis,
    pub newest: UnixMillis,
    /// The one that died last, and its error without the reason.
    pub sample: (MessageId, String),
}
