//! Messages that are dead letters from the start.

use super::{Queue, QueueError, coalescer::size};
use crate::{
    message::{DeadReason, NewMessage},
    metrics,
    store::{
        Death, Partition,
        redis::{MAX_CALL_BYTES, MAX_ERROR_BYTES},
    },
};

/// Messages in one script call: such messages are rare, and may be larger than others.
const BATCH: usize = 100;

impl Queue {
    /// Stores messages that a source could not decode as dead letters, each with an error, so that none is dropped.
    /// Their size is not limited here. Returns the messages that were not stored because their ids are live.
    ///
    /// # Errors
    /// After `Store(Unavailable)` it is unknown which messages were stored: repeat with the same ids.
    pub async fn bury(
        &self,
        route: &str,
        messages: Vec<(NewMessage, String)>,
    ) -> Result<Vec<(NewMessage, String)>, QueueError> {
        let store = self.store();
        let found = self.route(route)?;
        let bury = async |partition: &Partition, part: Vec<(NewMessage, String)>| {
            let mut taken = Vec::with_capacity(part.len());
            for batch in batches(&part) {
                let of_batch = self.registry.when_open(|| store.bury(partition, Death::INVALID, batch)).await?;
                metrics::dead(route, DeadReason::Invalid, of_batch.iter().filter(|taken| **taken).count() as u64);
                taken.extend(of_batch);
            }
            Ok(part.into_iter().zip(taken).map(|(one, taken)| (!taken).then_some(one)).collect())
        };
        let left =
            found.scatter(messages, |(message, _)| &message.id, |partition, _, part| bury(partition, part)).await?;
        Ok(left.into_iter().flatten().collect())
    }
}

/// Each batch fits into one script call, unless it is a single message that does not.
fn batches(messages: &[(NewMessage, String)]) -> Vec<&[(NewMessage, String)]> {
    let (mut batches, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (place, (message, _)) in messages.iter().enumerate() {
        let size = size(message) + MAX_ERROR_BYTES;
        bytes += size;
        if place > start && (place - start == BATCH || bytes > MAX_CALL_BYTES / 2) {
            batches.push(&messages[start..place]);
            (start, bytes) = (place, size);
        }
    }
    if start < messages.len() {
        batches.push(&messages[start..]);
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        message::{MessageId, Metadata, OnConflict},
        time::Due,
    };

    #[test]
    fn headers_count_as_payloads_do() {
        let metadata = Metadata { key: Some("x".repeat(MAX_CALL_BYTES / 8)), ..Metadata::default() };
        let (due, on_conflict) = (Due::NOW, OnConflict::Keep);
        let message = |n: usize| {
            let (id, metadata) = (MessageId::parse(&n.to_string()).unwrap(), metadata.clone());
            NewMessage { id, due, payload: "".into(), metadata, on_conflict, debounce: None, record: None }
        };
        let messages: Vec<_> = (0..10).map(|n| (message(n), String::new())).collect();
        let sizes: Vec<usize> = batches(&messages).into_iter().map(<[_]>::len).collect();
        assert_eq!(sizes, [3, 3, 3, 1]);
        let small = |count: usize| {
            let messages: Vec<_> = (0..count)
                .map(|n| (NewMessage { metadata: Metadata::default(), ..message(n) }, String::new()))
                .collect();
            batches(&messages).into_iter().map(<[_]>::len).collect::<Vec<_>>()
        };
        assert_eq!([small(0), small(1), small(100), small(101)], [vec![], vec![1], vec![100], vec![100, 1]]);
        assert_eq!(small(201), [100, 100, 1]);
        let of_payloads = |bytes: &[usize]| {
            let filled = |(n, bytes): (usize, &usize)| NewMessage {
                metadata: Metadata::default(),
                payload: vec![0; *bytes].into(),
                ..message(n)
            };
            let messages: Vec<_> = bytes.iter().enumerate().map(|one| (filled(one), String::new())).collect();
            batches(&messages).into_iter().map(<[_]>::len).collect::<Vec<_>>()
        };
        assert_eq!(of_payloads(&[MAX_CALL_BYTES, 1, 1]), [1, 2], "larger than a call");
        let empty = size(&NewMessage { metadata: Metadata::default(), ..message(0) }) + MAX_ERROR_BYTES;
        let half = MAX_CALL_BYTES / 4 - empty;
        assert_eq!((of_payloads(&[half, half]), of_payloads(&[half, half + 1])), (vec![2], vec![1, 1]));
    }
}
