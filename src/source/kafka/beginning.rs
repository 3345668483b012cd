//! Where the reading of each partition begins.
//!
//! What the group has committed counts. `start` is only for the first start of a group on a topic: it is decided once,
//! for all partitions of the topic, and committed before anything is read, so that no restart and no rebalance decides
//! again. A partition that came later holds only what was produced since, and is read from its first record.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{CommitMode, Consumer},
    error::{KafkaError, KafkaResult},
};
use tokio::time::Instant;

use super::{context::Client, record::Place};
use crate::config::Start;

/// Kept with the committed offset, followed by an offset.
const FIRST_READ: &str = "first read ends at ";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beginning {
    pub place: Place,
    /// The first offset to read.
    pub next: i64,
    /// What is below was there before the group was.
    pub first_read_ends: Option<i64>,
}

impl Beginning {
    /// For `TopicPartitionListElem::set_metadata`.
    pub fn metadata(first_read_ends: i64) -> String {
        format!("{FIRST_READ}{first_read_ends}")
    }

    fn committed(place: Place, next: i64, metadata: &str) -> Self {
        let ends = metadata.strip_prefix(FIRST_READ).and_then(|ends| ends.parse().ok());
        Self { place, next, first_read_ends: ends.filter(|ends| next < *ends) }
    }

    fn first(place: Place, (low, high): (i64, i64), start: Start) -> Self {
        match start {
            Start::Earliest => Self { place, next: low, first_read_ends: Some(high).filter(|high| low < *high) },
            Start::Latest => Self { place, next: high, first_read_ends: None },
        }
    }
}

/// Of `assigned`; the group knows them afterwards. Blocks for about `limit`, and for a commit.
///
/// # Errors
/// Why that cannot be told: nothing may be read then.
pub fn beginnings(
    client: &Client,
    assigned: &TopicPartitionList,
    start: Start,
    limit: Duration,
) -> Result<Vec<Beginning>, String> {
    begin(client, assigned, start, Instant::now() + limit)
        .map_err(|error| format!("where its partitions begin is not known: {error}"))
}

fn begin(
    client: &Client,
    assigned: &TopicPartitionList,
    start: Start,
    deadline: Instant,
) -> KafkaResult<Vec<Beginning>> {
    let (mut beginnings, unknown) = committed(client, assigned.clone(), deadline)?;
    let topics: BTreeSet<Arc<str>> = unknown.iter().map(|place| place.topic.clone()).collect();
    for topic in topics {
        let (others, mut begun) = committed(client, partitions(client, &topic, deadline)?, deadline)?;
        let is_first = others.is_empty();
        begun.retain(|place| is_first || unknown.contains(place));
        let marks = watermarks(client, &listed(begun.iter().map(|place| (place, None)))?, deadline)?;
        let start = if is_first { start } else { Start::Earliest };
        let begun: Vec<Beginning> = begun
            .into_iter()
            .filter_map(|place| marks.get(&place).map(|marks| Beginning::first(place.clone(), *marks, start)))
            .map(|begun| Beginning { first_read_ends: begun.first_read_ends.filter(|_| is_first), ..begun })
            .collect();
        if !begun.is_empty() {
            client.commit(&list(&begun)?, CommitMode::Sync)?;
        }
        // Of a first start, ours only. What another member began meanwhile is among the others.
        beginnings.extend(others.into_iter().chain(begun).filter(|begun| unknown.contains(&begun.place)));
    }
    Ok(beginnings)
}

/// As librdkafka assigns and commits them.
pub fn list(beginnings: &[Beginning]) -> KafkaResult<TopicPartitionList> {
    let list = listed(beginnings.iter().map(|begun| (&begun.place, Some(begun.next))))?;
    for begun in beginnings {
        if let Some(ends) = begun.first_read_ends
            && let Some(mut one) = list.find_partition(&begun.place.topic, begun.place.partition)
        {
            one.set_metadata(Beginning::metadata(ends));
        }
    }
    Ok(list)
}

fn listed<'a>(places: impl Iterator<Item = (&'a Place, Option<i64>)>) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::new();
    for (place, offset) in places {
        let offset = offset.map_or(Offset::Invalid, Offset::Offset);
        list.add_partition_offset(&place.topic, place.partition, offset)?;
    }
    Ok(list)
}

/// What the group has committed of them, and of which it has nothing.
fn committed(
    client: &Client,
    asked: TopicPartitionList,
    deadline: Instant,
) -> KafkaResult<(Vec<Beginning>, BTreeSet<Place>)> {
    let (mut known, mut unknown) = (Vec::new(), BTreeSet::new());
    if asked.count() == 0 {
        return Ok((known, unknown));
    }
    for one in client.committed_offsets(asked, left(deadline))?.elements() {
        one.error()?;
        let place = Place { topic: one.topic().into(), partition: one.partition() };
        match one.offset() {
            Offset::Offset(next) => known.push(Beginning::committed(place, next, one.metadata())),
            _ => {
                unknown.insert(place);
            }
        }
    }
    Ok((known, unknown))
}

fn partitions(client: &Client, topic: &str, deadline: Instant) -> KafkaResult<TopicPartitionList> {
    let metadata = client.fetch_metadata(Some(topic), left(deadline))?;
    let mut list = TopicPartitionList::new();
    for found in metadata.topics() {
        if let Some(error) = found.error() {
            return Err(KafkaError::MetadataFetch(error.into()));
        }
        for partition in found.partitions() {
            list.add_partition(found.name(), partition.id());
        }
    }
    Ok(list)
}

/// The first offset of each partition and the one after its last, with two requests to each broker. Blocks until
/// `deadline` at most.
///
/// # Errors
/// When those of one partition cannot be told.
pub fn watermarks(
    client: &Client,
    of: &TopicPartitionList,
    deadline: Instant,
) -> KafkaResult<BTreeMap<Place, (i64, i64)>> {
    let mut marks = BTreeMap::new();
    if of.count() == 0 {
        return Ok(marks);
    }
    let ask = |offset| {
        let mut list = of.clone();
        list.set_all_offsets(offset)?;
        client.offsets_for_times(list, left(deadline))
    };
    // The times -2 and -1 of the protocol are what librdkafka calls these offsets.
    let (lows, highs) = (ask(Offset::Beginning)?, ask(Offset::End)?);
    for (low, high) in lows.elements().iter().zip(highs.elements()) {
        low.error().and_then(|()| high.error())?;
        let (Offset::Offset(low), Offset::Offset(last)) = (low.offset(), high.offset()) else {
            return Err(KafkaError::OffsetFetch(rdkafka::error::RDKafkaErrorCode::NoOffset));
        };
        marks.insert(Place { topic: high.topic().into(), partition: high.partition() }, (low, last));
    }
    Ok(marks)
}

/// librdkafka takes zero for ever where it asks brokers.
pub fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_read_is_told_with_its_offset_until_it_ends() {
        let place = Place { topic: "t".into(), partition: 3 };
        let first = Beginning::first(place.clone(), (2, 9), Start::Earliest);
        assert_eq!((first.next, first.first_read_ends), (2, Some(9)));
        let list = list(&[first]).unwrap();
        let told = list.elements()[0].metadata().to_owned();
        assert_eq!(told, "first read ends at 9");
        assert_eq!(Beginning::committed(place.clone(), 8, &told).first_read_ends, Some(9));
        assert_eq!(Beginning::committed(place.clone(), 9, &told).first_read_ends, None);
        assert_eq!(Beginning::committed(place.clone(), 8, "somebody's own").first_read_ends, None);
        let latest = Beginning::first(place.clone(), (2, 9), Start::Latest);
        assert_eq!((latest.next, latest.first_read_ends), (9, None));
        assert_eq!(Beginning::first(place, (9, 9), Start::Earliest).first_read_ends, None);
    }
}
