//! Selections of listings and bulk calls.

use tokio::time::Instant;

use memchr::memmem;

use super::NewDue;
use crate::{
    message::{DeadReason, HeaderValue, MessageId, Rate, State, StoredMessage, TypedValue, folded_header},
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
    /// Only messages with this key.
    pub key: Option<String>,
    /// Only messages with each of these headers: name, in any case, and value.
    pub headers: Vec<(String, String)>,
    /// A part of the payload, case-sensitive.
    pub payload: Option<String>,
}

impl Filter {
    /// Whether it needs the bodies of messages. Scripts cannot read them: they may be compressed.
    pub fn reads_bodies(&self) -> bool {
        self.key.is_some() || !self.headers.is_empty() || self.payload.is_some()
    }

    /// Whether the body matches; `None` for one that cannot be decoded, which matches no filter by bodies.
    pub fn takes(&self, message: Option<&StoredMessage>) -> bool {
        !self.reads_bodies() || message.is_some_and(|message| self.takes_message(message))
    }

    fn takes_message(&self, message: &StoredMessage) -> bool {
        let has = |(name, value): &(String, String)| {
            let name = folded_header(name);
            message.metadata.headers.iter().any(|header| {
                let text = match &header.value {
                    HeaderValue::Text(text) | HeaderValue::Typed(TypedValue::String(text)) => text,
                    HeaderValue::Typed(_) => return false,
                };
                text == value && folded_header(&header.name) == name
            })
        };
        (self.key.is_none() || self.key == message.metadata.key)
            && self.headers.iter().all(has)
            && self.payload.as_ref().is_none_or(|part| memmem::find(&message.payload, part.as_bytes()).is_some())
    }
}

/// The order of a listing, by score, then id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    #[default]
    Ascending,
    Descending,
}

impl Order {
    pub fn as_str(self) -> &'static str {
        match self {
            Order::Ascending => "asc",
            Order::Descending => "desc",
        }
    }
}

/// A page of the messages of one state.
#[derive(Clone, Copy, Debug)]
pub struct PageRequest<'a> {
    pub state: State,
    pub filter: &'a Filter,
    pub order: Order,
    /// Maximum number of messages, 1 to 1000.
    pub limit: usize,
    /// Maximum bytes of their bodies. The first message is listed at any size.
    pub max_bytes: u64,
    /// The place after which the page begins.
    pub after: Option<&'a (u64, MessageId)>,
}

/// The messages of a bulk call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    Ids {
        ids: Vec<MessageId>,
        /// Excludes messages that died at this time or later, such as redriven ones that died again. Only of dead
        /// messages.
        until: Option<UnixMillis>,
    },
    /// Without `until`, only dead messages that died before the call.
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
    /// All messages expire this many milliseconds after they are due, also those that had no expiry; at most
    /// `MAX_DELAY_MILLIS`.
    After(u64),
}

/// The due times of redriven messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// The first one; now by default.
    pub start: Option<UnixMillis>,
    /// One after another; all at once by default.
    pub rate: Option<Rate>,
}

/// A bulk call on dead messages.
#[derive(Clone, Copy, Debug)]
pub struct DeadWork<'a> {
    pub action: DeadAction,
    /// The due times after a redrive.
    pub spread: Spread,
    pub selection: &'a Selection,
    /// Maximum number of messages.
    pub limit: u64,
    /// Only counts the messages.
    pub dry_run: bool,
    pub deadline: Instant,
}

/// The action of a bulk call on pending messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingAction {
    Cancel,
    Move(NewDue),
}

/// A bulk call on pending messages.
#[derive(Clone, Copy, Debug)]
pub struct PendingWork<'a> {
    pub action: PendingAction,
    pub selection: &'a Selection,
    /// With a filter: only messages that were accepted or moved last before this time, by default that of the call.
    pub before: Option<UnixMillis>,
    /// Maximum number of messages.
    pub limit: u64,
    /// Only counts the messages.
    pub dry_run: bool,
    pub deadline: Instant,
    /// The name of the token that cancels.
    pub by: Option<&'a str>,
}

/// Progress of a bulk call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BulkProgress {
    pub count: u64,
    /// Messages that were looked at.
    pub scanned: u64,
    /// Whether selected messages remain.
    pub more: bool,
    /// Dead messages that died at this time or later, such as redriven ones that died again, are not selected; nor are
    /// pending ones that were accepted or moved at this time or later.
    pub until: Option<UnixMillis>,
    /// After a redrive: the due time after the last one.
    pub next: Option<UnixMillis>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Metadata;

    #[test]
    fn each_part_of_a_filter_by_bodies_must_match() {
        let metadata = Metadata {
            headers: [("X-Tenant".to_owned(), "acme".to_owned()), ("b".to_owned(), "2".to_owned())].into(),
            key: Some("k".into()),
            ..Metadata::default()
        };
        let (due, payload) = (UnixMillis::default(), "a payload".into());
        let message = StoredMessage { due, accepted: due, metadata, payload };
        let some = |text: &str| Some(text.to_owned());
        let headers = |pairs: &[(&str, &str)]| {
            let headers = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            Filter { headers, ..Filter::default() }
        };
        let matching = [
            Filter { key: some("k"), ..Filter::default() },
            Filter { payload: some("payload"), ..Filter::default() },
            headers(&[("x-tenant", "acme")]),
            headers(&[("X_Tenant", "acme"), ("B", "2")]),
            Filter { key: some("k"), payload: some("a"), ..headers(&[("b", "2")]) },
        ];
        let others = [
            Filter { key: some("K"), ..Filter::default() },
            Filter { payload: some("Payload"), ..Filter::default() },
            headers(&[("x-tenant", "Acme")]),
            headers(&[("x-tenant", "acme"), ("b", "3")]),
            headers(&[("tenant", "acme")]),
            Filter { key: some("k"), payload: some("?"), ..headers(&[("b", "2")]) },
            Filter { key: some("?"), payload: some("a"), ..headers(&[("b", "2")]) },
        ];
        for (filters, takes) in [(&matching[..], true), (&others[..], false)] {
            for filter in filters {
                assert!(filter.reads_bodies());
                assert_eq!(filter.takes(Some(&message)), takes, "{filter:?}");
                assert!(!filter.takes(None), "{filter:?}");
            }
        }
        let by_flow = Filter { flow: some("f"), retried: true, ..Filter::default() };
        assert!(!by_flow.reads_bodies() && by_flow.takes(None) && by_flow.takes(Some(&message)));
    }
}
