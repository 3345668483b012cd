//! The sinks of `punctual dev`: messages go to an inbox in memory, which tests read over the API.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde::Serialize;

use super::{Delivery, OpenSink, Outcome, Report, Sink, SinkSettings, envelope::Envelope};
use crate::time::{UnixMillis, wall_millis};

/// Maximum number of messages, and of bytes of their payloads. Beyond it the oldest messages are dropped.
const MAX_MESSAGES: usize = 10_000;
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// Messages that were delivered, the oldest first.
#[derive(Debug, Default)]
pub struct Inbox(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    messages: VecDeque<Received>,
    bytes: usize,
    dropped: u64,
}

#[derive(Clone, Debug)]
struct Received {
    sink: Arc<str>,
    delivery: Delivery,
    at: UnixMillis,
}

/// Messages of an inbox, as JSON.
#[derive(Serialize)]
pub struct Listing<'a> {
    messages: Vec<Shown<'a>>,
    /// Messages that match.
    count: usize,
    /// Messages that the inbox dropped because it was full.
    dropped: u64,
}

#[derive(Serialize)]
struct Shown<'a> {
    sink: &'a str,
    delivered_at: UnixMillis,
    #[serde(flatten)]
    delivery: Envelope<'a, UnixMillis>,
}

impl Inbox {
    fn add(&self, sink: &Arc<str>, deliveries: Vec<Delivery>) {
        let (mut kept, at) = (self.0.lock(), wall_millis());
        for delivery in deliveries {
            kept.bytes += delivery.payload.len();
            kept.messages.push_back(Received { sink: sink.clone(), delivery, at });
            while kept.messages.len() > MAX_MESSAGES || kept.bytes > MAX_BYTES {
                let Some(oldest) = kept.messages.pop_front() else { break };
                kept.bytes -= oldest.delivery.payload.len();
                kept.dropped += 1;
            }
        }
    }

    /// Passes the listing of up to `limit` messages to `show`: those of a route, with an id, and of routes that are
    /// `visible`.
    pub fn list<T>(
        &self,
        (route, id): (Option<&str>, Option<&str>),
        visible: impl Fn(&str) -> bool,
        limit: usize,
        show: impl FnOnce(&Listing<'_>) -> T,
    ) -> T {
        let kept = self.0.lock();
        let is_selected = |one: &&Received| {
            let Delivery { route: of, .. } = &one.delivery;
            route.is_none_or(|route| route == &**of) && id.is_none_or(|id| id == one.delivery.shown_id()) && visible(of)
        };
        let selected = || kept.messages.iter().filter(is_selected);
        let messages = selected().take(limit).map(Shown::new).collect();
        show(&Listing { messages, count: selected().count(), dropped: kept.dropped })
    }

    /// Number of messages.
    pub fn len(&self) -> usize {
        self.0.lock().messages.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Deletes all messages, and returns their number.
    pub fn clear(&self) -> usize {
        std::mem::take(&mut *self.0.lock()).messages.len()
    }
}

impl<'a> Shown<'a> {
    fn new(Received { sink, delivery, at }: &'a Received) -> Self {
        Self { sink, delivered_at: *at, delivery: Envelope::new(delivery, delivery.due) }
    }
}

/// A sink that confirms each message at once, and keeps it in an inbox.
#[derive(Clone, Debug)]
pub struct InboxSettings {
    pub name: Arc<str>,
    pub inbox: Arc<Inbox>,
}

impl SinkSettings for InboxSettings {
    fn kind(&self) -> &'static str {
        "inbox"
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn open(&self) -> Result<OpenSink, String> {
        Ok(OpenSink::new(self.clone()))
    }
}

#[async_trait]
impl Sink for InboxSettings {
    fn timeout(&self) -> Duration {
        SinkSettings::timeout(self)
    }

    async fn send(&self, batch: Vec<Delivery>, report: Report) {
        let count = batch.len();
        self.inbox.add(&self.name, batch);
        (0..count).for_each(|index| report.outcome(index, Outcome::Confirmed));
    }

    async fn check(&self) -> Result<(), String> {
        Ok(())
    }
}
