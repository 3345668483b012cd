//! Notes that `frames` takes of the frames of one connection: unreadable deliveries and returned messages.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use lapin::{BasicProperties, protocol::basic::parse_properties};

/// Bytes of class, weight and body size in a content header frame, before the properties.
pub(super) const PROPERTIES_OFFSET: usize = 12;

/// The notes of one connection.
#[derive(Clone, Default)]
pub struct FrameNotes {
    pub unreadable: UnreadableDeliveries,
    pub returned: ReturnedMessages,
}

/// What `frames` replaced in deliveries, as text by delivery tag. One channel of the connection consumes.
#[derive(Clone, Default)]
pub struct UnreadableDeliveries(Arc<Mutex<BTreeMap<u64, String>>>);

impl UnreadableDeliveries {
    /// Returns and removes the note of a delivery.
    pub fn take(&self, tag: u64) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&tag)
    }

    pub(super) fn insert(&self, tag: u64, note: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(tag, note);
    }
}

/// The properties of messages that the broker returned because no queue accepts them, by channel.
///
/// lapin attaches a returned message to the confirm that it resolves next, possibly that of another message. A broker
/// sends the return before the confirm, on the same channel. So when a confirm has arrived, its message was returned
/// if and only if it is noted here.
#[derive(Clone, Default)]
pub struct ReturnedMessages(Arc<Mutex<HashMap<u16, Vec<BasicProperties>>>>);

impl ReturnedMessages {
    /// Returns and removes the messages of a channel. Unreadable properties are empty.
    pub fn take(&self, channel: u16) -> Vec<BasicProperties> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&channel).unwrap_or_default()
    }

    /// `header`: the payload of a content header frame.
    pub(super) fn insert(&self, channel: u16, header: &[u8]) {
        let parsed = header.get(PROPERTIES_OFFSET..).and_then(|properties| parse_properties(properties).ok());
        let properties = parsed.map(|(_, properties)| properties).unwrap_or_default();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(channel).or_default().push(properties);
    }
}
