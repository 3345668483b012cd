//! A consumed record.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use bytes::Bytes;
use rdkafka::message::{BorrowedMessage, Headers, Message};

use crate::message::LogRecord;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    pub topic: Arc<str>,
    pub index: i32,
}

#[derive(Clone, Debug)]
pub struct ConsumedRecord {
    pub partition: TopicPartition,
    pub offset: i64,
    /// Milliseconds since the epoch, by the producer's or the broker's clock (`message.timestamp.type`).
    pub timestamp: Option<u64>,
    pub key: Option<Vec<u8>>,
    /// `None` is a tombstone.
    pub value: Option<Bytes>,
    /// In the order of the record.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// A header is missing from `headers`: its name is not UTF-8.
    pub has_unreadable_header: bool,
}

impl ConsumedRecord {
    pub fn of(message: &BorrowedMessage<'_>) -> Self {
        let mut record = Self {
            partition: TopicPartition { topic: message.topic().into(), index: message.partition() },
            offset: message.offset(),
            timestamp: message.timestamp().to_millis().and_then(|millis| u64::try_from(millis).ok()),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(Bytes::copy_from_slice),
            headers: Vec::new(),
            has_unreadable_header: false,
        };
        let Some(headers) = message.headers() else { return record };
        for index in 0..headers.count() {
            // rdkafka panics on a name that is not UTF-8. The closure only reads.
            match catch_unwind(AssertUnwindSafe(|| headers.get(index))) {
                Ok(header) => record.headers.push((header.key.to_owned(), header.value.map(<[u8]>::to_vec))),
                Err(_) => record.has_unreadable_header = true,
            }
        }
        record
    }

    /// The position that the store keeps.
    pub fn to_log_record(&self) -> LogRecord {
        LogRecord {
            place: format!("{}:{}", self.partition.topic, self.partition.index).into(),
            offset: u64::try_from(self.offset).unwrap_or(0),
            timestamp: self.timestamp.unwrap_or(0),
        }
    }

    /// Bytes of key, value, header names and header values.
    pub fn size(&self) -> usize {
        let bytes = |part: Option<&[u8]>| part.map_or(0, <[u8]>::len);
        let headers = self.headers.iter().map(|(name, value)| name.len() + bytes(value.as_deref()));
        bytes(self.key.as_deref()) + bytes(self.value.as_deref()) + headers.sum::<usize>()
    }

    /// The values of all headers of that name, in the order of the record. Null values are left out.
    pub fn header(&self, name: &str) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.headers.iter().filter(move |(key, _)| key == name).filter_map(|(_, value)| value.as_deref())
    }

    /// The text of the only header of that name.
    ///
    /// # Errors
    /// The name, and the reason: the header occurs twice, has no value, or is not UTF-8.
    pub fn only(&self, name: &str) -> Result<Option<&str>, String> {
        if !self.has(name) {
            return Ok(None);
        }
        let mut values = self.header(name);
        match (values.next().map(str::from_utf8), values.next()) {
            (Some(Ok(text)), None) => Ok(Some(text)),
            (_, Some(_)) => Err(format!("{name}: is there more than once")),
            _ => Err(format!("{name}: is no text")),
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(key, _)| key == name)
    }
}

/// A record at offset 7 of partition `t`/3 with the key `key` and these headers.
#[cfg(test)]
pub fn test_record(headers: &[(&str, &[u8])]) -> ConsumedRecord {
    ConsumedRecord {
        partition: TopicPartition { topic: "t".into(), index: 3 },
        offset: 7,
        timestamp: Some(1_700_000_000_000),
        key: Some(b"key".to_vec()),
        value: Some("value".into()),
        headers: headers.iter().map(|(name, value)| ((*name).to_owned(), Some(value.to_vec()))).collect(),
        has_unreadable_header: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_record_counts_its_key_its_value_and_its_headers() {
        let mut record = test_record(&[("name", b"12345"), ("empty", b"")]);
        record.headers.push(("null".into(), None));
        assert_eq!(record.size(), 3 + 5 + (4 + 5) + 5 + 4);
    }
}
