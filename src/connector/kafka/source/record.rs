//! A record as it was consumed.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use bytes::Bytes;
use rdkafka::message::{BorrowedMessage, Headers, Message};

use crate::message::LogRecord;

/// Where a record was.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub topic: Arc<str>,
    pub partition: i32,
}

#[derive(Clone, Debug)]
pub struct Record {
    pub place: Place,
    pub offset: i64,
    /// Milliseconds since the epoch: of its producer, or of the broker (`message.timestamp.type`).
    pub timestamp: Option<u64>,
    pub key: Option<Vec<u8>>,
    /// `None` is a tombstone.
    pub value: Option<Bytes>,
    /// In their order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// A header was left out because its name is not UTF-8.
    pub unreadable: bool,
}

impl Record {
    pub fn of(message: &BorrowedMessage<'_>) -> Self {
        let mut record = Self {
            place: Place { topic: message.topic().into(), partition: message.partition() },
            offset: message.offset(),
            timestamp: message.timestamp().to_millis().and_then(|millis| u64::try_from(millis).ok()),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(Bytes::copy_from_slice),
            headers: Vec::new(),
            unreadable: false,
        };
        let Some(headers) = message.headers() else { return record };
        for place in 0..headers.count() {
            // rdkafka panics on a name that is not UTF-8; nothing of ours is touched then.
            match catch_unwind(AssertUnwindSafe(|| headers.get(place))) {
                Ok(header) => record.headers.push((header.key.to_owned(), header.value.map(<[u8]>::to_vec))),
                Err(_) => record.unreadable = true,
            }
        }
        record
    }

    /// What the store is told that it was.
    pub fn to_log_record(&self) -> LogRecord {
        LogRecord {
            place: format!("{}:{}", self.place.topic, self.place.partition).into(),
            offset: u64::try_from(self.offset).unwrap_or(0),
            timestamp: self.timestamp.unwrap_or(0),
        }
    }

    /// Bytes of key, value and headers.
    pub fn size(&self) -> usize {
        let bytes = |part: Option<&[u8]>| part.map_or(0, <[u8]>::len);
        let headers = self.headers.iter().map(|(name, value)| name.len() + bytes(value.as_deref()));
        bytes(self.key.as_deref()) + bytes(self.value.as_deref()) + headers.sum::<usize>()
    }

    /// The values of all headers of that name, in their order.
    pub fn header(&self, name: &str) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.headers.iter().filter(move |(key, _)| key == name).filter_map(|(_, value)| value.as_deref())
    }

    pub fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(key, _)| key == name)
    }
}
