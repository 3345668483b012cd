//! Messages of a route that ended.

use futures::future::try_join_all;

use super::{Queue, QueueError, cursor};
use crate::{
    message::EndedMessage,
    store::{Partition, redis::EndPlace},
    time::UnixMillis,
};

/// Partitions that are read at once.
const AT_ONCE: usize = 4;

/// A part of a list of ends, the latest first.
#[derive(Clone, Debug)]
pub struct EndedPage {
    pub ends: Vec<EndedMessage>,
    /// Where the next page begins; `None` at the end. Opaque.
    pub cursor: Option<String>,
}

/// The order of ends in a list, from its end on: time, then partition and number of the end.
type Key = (UnixMillis, u16, u64);

impl Queue {
    /// Ends of messages, the latest first; `limit` (1 to 1000) at most.
    ///
    /// # Errors
    /// `NoHistory` for a route without a history, `Invalid` unless `ended` made the cursor.
    pub async fn ended(&self, route: &str, limit: usize, cursor: Option<&str>) -> Result<EndedPage, QueueError> {
        let (found, store) = (self.route(route)?, self.store());
        if !store.keeps_history(route) {
            return Err(QueueError::NoHistory(route.to_owned()));
        }
        let after = cursor.map(cursor::decode_ended).transpose()?;
        let (mut ends, mut more): (Vec<(Key, EndedMessage)>, bool) = (Vec::new(), false);
        for group in found.partitions.chunks(AT_ONCE) {
            let read = |partition| store.ends(partition, begin(partition, after), limit);
            let pages = try_join_all(group.iter().map(|(partition, _)| read(partition))).await?;
            for ((partition, _), page) in group.iter().zip(pages) {
                more |= page.more;
                let key = |(number, end): (u64, EndedMessage)| ((end.ended, partition.index, number), end);
                ends.extend(page.ends.into_iter().map(key));
            }
            ends.sort_by(|(one, _), (other, _)| other.cmp(one));
            more |= ends.len() > limit;
            ends.truncate(limit);
        }
        let cursor = ends.last().filter(|_| more).map(|(key, _)| cursor::encode_ended(*key));
        Ok(EndedPage { ends: ends.into_iter().map(|(_, end)| end).collect(), cursor })
    }
}

/// Where the list begins in a partition, after an end in any partition.
fn begin(partition: &Partition, after: Option<Key>) -> EndPlace {
    let Some((at, index, number)) = after else { return EndPlace::Latest };
    match partition.index.cmp(&index) {
        std::cmp::Ordering::Equal => EndPlace::Before(number),
        // An end of the same time in a partition with a lower index comes later in the list.
        std::cmp::Ordering::Less => EndPlace::UpTo(at),
        std::cmp::Ordering::Greater => EndPlace::UpTo(UnixMillis::new(at.get().saturating_sub(1)).unwrap_or_default()),
    }
}
