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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{MessageId, Metadata};

    fn delivery(route: &str, id: &str, size: usize) -> Delivery {
        Delivery {
            id: MessageId::parse(id).unwrap(),
            route: route.into(),
            attempt: 1,
            due: UnixMillis::default(),
            metadata: Metadata::default(),
            payload: vec![b'x'; size].into(),
            send_until: None,
        }
    }

    /// The number of messages, and of those that were dropped.
    fn counts(inbox: &Inbox) -> (usize, u64) {
        inbox.list((None, None), |_| true, 10, |listing| (listing.count, listing.dropped))
    }

    #[test]
    fn the_oldest_messages_are_dropped_beyond_a_number_and_a_size() {
        let (inbox, sink) = (Inbox::default(), "s".into());
        assert!(inbox.is_empty());
        inbox.add(&sink, (0..MAX_MESSAGES).map(|n| delivery("r", &n.to_string(), 0)).collect());
        assert_eq!((inbox.len(), inbox.is_empty(), counts(&inbox)), (MAX_MESSAGES, false, (MAX_MESSAGES, 0)));
        inbox.add(&sink, vec![delivery("r", "last", 1)]);
        assert_eq!(counts(&inbox), (MAX_MESSAGES, 1));
        let oldest = inbox.list((None, None), |_| true, 1, |listing| serde_json::to_value(listing).unwrap());
        assert_eq!((&oldest["messages"][0]["id"], oldest["messages"].as_array().unwrap().len()), (&"1".into(), 1));
        assert_eq!((inbox.clear(), inbox.clear(), counts(&inbox)), (MAX_MESSAGES, 0, (0, 0)));

        let large = |id: &str, size| inbox.add(&sink, vec![delivery("r", id, size)]);
        large("first", 1);
        large("second", MAX_BYTES - 1);
        assert_eq!(counts(&inbox), (2, 0));
        large("third", 1);
        assert_eq!(counts(&inbox), (2, 1));
        large("fourth", 2);
        assert_eq!(counts(&inbox), (2, 2));
        // The bytes of what was dropped are free again.
        large("fifth", MAX_BYTES - 3);
        assert_eq!(counts(&inbox), (3, 2));
    }

    #[tokio::test]
    async fn a_listing_has_what_is_selected_and_visible() {
        let settings = InboxSettings { name: "s".into(), inbox: Arc::default() };
        let (report, mut outcomes) = Report::channel();
        let batch = vec![delivery("a", "1", 1), delivery("a", "2", 1), delivery("b", "1", 1)];
        settings.send(batch, report).await;
        for index in 0..3 {
            let reported = outcomes.try_recv().unwrap();
            assert!(reported.index == index && matches!(reported.outcome, Outcome::Confirmed));
        }
        let count = |route, id, visible: &str| {
            settings.inbox.list((route, id), |of| visible.contains(of), 10, |listing| listing.count)
        };
        assert_eq!([count(None, None, "ab"), count(None, None, "b"), count(Some("a"), None, "ab")], [3, 1, 2]);
        assert_eq!([count(None, Some("1"), "ab"), count(Some("b"), Some("2"), "ab")], [2, 0]);
        let shown =
            settings.inbox.list((Some("b"), None), |_| true, 1, |listing| serde_json::to_value(listing).unwrap());
        assert_eq!((&shown["messages"][0]["sink"], &shown["count"]), (&"s".into(), &1.into()));
        assert_eq!((settings.kind(), Sink::timeout(&settings)), ("inbox", SinkSettings::timeout(&settings)));
        assert_eq!(SinkSettings::timeout(&settings), Duration::from_secs(1));
    }
}
