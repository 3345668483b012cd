//! Messages that a broker returned because no queue takes them, noted on their way to lapin.
//!
//! lapin hands a returned message to whichever confirm it resolves next, which may be that of another message. But a
//! broker sends a message back before it confirms it, over the same channel. So when a confirm has come, its message was
//! returned if and only if it is noted here.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lapin::{BasicProperties, protocol::basic::parse_properties};

/// The returned messages of one connection by channel, as their properties.
#[derive(Clone, Default)]
pub struct Returns(Arc<Mutex<HashMap<u16, Vec<BasicProperties>>>>);

impl Returns {
    /// What came since the last call. Empty properties stand for those that could not be read.
    pub fn take(&self, channel: u16) -> Vec<BasicProperties> {
        self.lock().remove(&channel).unwrap_or_default()
    }

    /// `header`: the payload of a content header frame.
    pub(super) fn note(&self, channel: u16, header: &[u8]) {
        // After class, weight and the body's size.
        let parsed = header.get(12..).and_then(|properties| parse_properties(properties).ok());
        let properties = parsed.map(|(_, properties)| properties).unwrap_or_default();
        self.lock().entry(channel).or_default().push(properties);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u16, Vec<BasicProperties>>> {
        // No panic can leave it half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
