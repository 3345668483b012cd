//! Notes that `frames` takes of the frames of one connection: unreadable deliveries and returned messages.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use lapin::{BasicProperties, protocol::basic::parse_properties};
use parking_lot::{Mutex, MutexGuard};

/// Bytes of class, weight and body size in a content header frame, before the properties.
pub(super) const PROPERTIES_OFFSET: usize = 12;

/// The notes of one connection. Clones share them.
#[derive(Clone, Default)]
pub struct FrameNotes(Arc<Mutex<NoteMaps>>);

#[derive(Default)]
struct NoteMaps {
    /// Notes on replaced bytes of deliveries, by delivery tag. Only one channel of the connection consumes.
    unreadable: BTreeMap<u64, String>,
    /// Properties of returned messages, by channel.
    returned: HashMap<u16, Vec<BasicProperties>>,
}

impl FrameNotes {
    /// Returns and removes the note on the replaced bytes of a delivery.
    pub fn take_unreadable(&self, tag: u64) -> Option<String> {
        self.lock().unreadable.remove(&tag)
    }

    /// Returns and removes the properties of the messages that the broker returned on a channel because no queue accepts
    /// them. Unreadable properties are empty.
    ///
    /// lapin attaches a returned message to the confirm that it resolves next, possibly that of another message. A broker
    /// sends the return before the confirm, on the same channel. So when a confirm has arrived, its message was returned
    /// if and only if it is noted here.
    pub fn take_returned(&self, channel: u16) -> Vec<BasicProperties> {
        self.lock().returned.remove(&channel).unwrap_or_default()
    }

    pub(super) fn add_unreadable(&self, tag: u64, note: String) {
        self.lock().unreadable.insert(tag, note);
    }

    /// `header`: the payload of a content header frame.
    pub(super) fn add_returned(&self, channel: u16, header: &[u8]) {
        let parsed = header.get(PROPERTIES_OFFSET..).and_then(|properties| parse_properties(properties).ok());
        let properties = parsed.map(|(_, properties)| properties).unwrap_or_default();
        self.lock().returned.entry(channel).or_default().push(properties);
    }

    fn lock(&self) -> MutexGuard<'_, NoteMaps> {
        self.0.lock()
    }
}
