//! Where the reading of each partition begins.
//!
//! What the group has committed counts. `start` is only for the first start of a group on a topic: it is decided once,
//! for all partitions of the topic, and committed before anything is read, so that no restart and no rebalance decides
//! again. A partition or a topic that came later holds only what was produced since, and is read from its first record.
//! Members of a group may decide at the same time: what one has committed counts for all.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{CommitMode, Consumer},
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
};
use tokio::time::Instant;

use super::{context::Client, record::Place};
use crate::connector::kafka::Start;

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

    /// `None`: it came later than the group.
    fn first(place: Place, (low, high): (i64, i64), start: Option<Start>) -> Self {
        match start {
            Some(Start::Earliest) => Self { place, next: low, first_read_ends: Some(high).filter(|high| low < *high) },
            Some(Start::Latest) => Self { place, next: high, first_read_ends: None },
            None => Self { place, next: low, first_read_ends: None },
        }
    }
}

/// Of all that are `assigned`; the group knows them afterwards. `start` is asked where the first start on a topic
/// begins, which is `None` if the topic came later. Blocks for about `limit`, and for a commit of each topic.
///
/// # Errors
/// Why that cannot be told: nothing may be read then.
pub fn beginnings(
    client: &Client,
    assigned: &TopicPartitionList,
    start: impl Fn(&str) -> Option<Start>,
    limit: Duration,
) -> Result<Vec<Beginning>, String> {
    let (begun, unknown) = begin(client, assigned, start, Instant::now() + limit)
        .map_err(|error| format!("where its partitions begin is not known: {error}"))?;
    match unknown.first() {
        None => Ok(begun),
        Some(Place { topic, partition }) => {
            Err(format!("where partition {partition} of topic {topic} begins was not committed"))
        }
    }
}

/// Those of `assigned`, and of which partitions the group knows nothing though it should.
fn begin(
    client: &Client,
    assigned: &TopicPartitionList,
    start: impl Fn(&str) -> Option<Start>,
    deadline: Instant,
) -> KafkaResult<(Vec<Beginning>, BTreeSet<Place>)> {
    let (mut beginnings, unknown) = committed(client, assigned.clone(), deadline)?;
    let topics: BTreeSet<Arc<str>> = unknown.iter().map(|place| place.topic.clone()).collect();
    let mut decided = unknown.clone();
    for topic in topics {
        let all = partitions(client, &topic, deadline)?;
        let (others, mut begun) = committed(client, all.clone(), deadline)?;
        let is_first = others.is_empty();
        begun.retain(|place| is_first || unknown.contains(place));
        let marks = watermarks(client, &listed(begun.iter().map(|place| (place, None)))?, deadline)?;
        let start = if is_first { start(&topic) } else { None };
        // Another member may have begun meanwhile, and read already.
        let (_, unbegun) = committed(client, all, deadline)?;
        begun.retain(|place| unbegun.contains(place));
        let begun = begun.into_iter().map(|place| {
            let marks = marks.get(&place).ok_or(KafkaError::OffsetFetch(RDKafkaErrorCode::NoOffset))?;
            Ok(Beginning::first(place, *marks, start))
        });
        let begun = begun.collect::<KafkaResult<Vec<Beginning>>>()?;
        if !begun.is_empty() {
            client.commit(&list(&begun)?, CommitMode::Sync)?;
        }
        decided.extend(begun.into_iter().map(|begun| begun.place));
    }
    // A commit fails only when it fails for all partitions, so what the group knows now counts.
    let (known, missed) = committed(client, listed(decided.iter().map(|place| (place, None)))?, deadline)?;
    beginnings.extend(known.into_iter().filter(|begun| unknown.contains(&begun.place)));
    Ok((beginnings, missed))
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
            return Err(KafkaError::OffsetFetch(RDKafkaErrorCode::NoOffset));
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
    use rdkafka::{ClientConfig, mocking::MockCluster};

    use super::{super::context::Context, *};

    #[test]
    fn what_another_member_commits_while_this_one_decides_stays() {
        let cluster = MockCluster::new(1).expect("a mock cluster");
        cluster.create_topic("t", 3, 1).expect("a topic");
        let member = || -> Client {
            let mut settings = ClientConfig::new();
            settings.set("bootstrap.servers", cluster.bootstrap_servers()).set("group.id", "g");
            settings.create_with_context(Context::new("test".into())).expect("valid settings")
        };
        let (ours, other) = (member(), member());
        let place = |partition| Place { topic: "t".into(), partition };
        let at = |partition, next| Beginning { place: place(partition), next, first_read_ends: None };
        let assigned = listed([place(0), place(1)].iter().map(|place| (place, None))).expect("a list");
        let meanwhile = |_: &str| {
            let theirs = list(&[at(1, 7), at(2, 9)]).expect("a list");
            other.commit(&theirs, CommitMode::Sync).expect("it is committed");
            Some(Start::Latest)
        };
        let limit = Duration::from_secs(20);
        let begun = beginnings(&ours, &assigned, meanwhile, limit).expect("they begin");
        assert_eq!(begun, [at(0, 0), at(1, 7)]);
        let all = listed((0..3).map(place).collect::<Vec<_>>().iter().map(|place| (place, None))).expect("a list");
        let (known, _) = committed(&ours, all, Instant::now() + limit).expect("an answer");
        assert_eq!(known, [at(0, 0), at(1, 7), at(2, 9)]);
    }

    #[test]
    fn a_first_read_is_told_with_its_offset_until_it_ends() {
        let place = Place { topic: "t".into(), partition: 3 };
        let first = Beginning::first(place.clone(), (2, 9), Some(Start::Earliest));
        assert_eq!((first.next, first.first_read_ends), (2, Some(9)));
        let list = list(&[first]).unwrap();
        let told = list.elements()[0].metadata().to_owned();
        assert_eq!(told, "first read ends at 9");
        assert_eq!(Beginning::committed(place.clone(), 8, &told).first_read_ends, Some(9));
        assert_eq!(Beginning::committed(place.clone(), 9, &told).first_read_ends, None);
        assert_eq!(Beginning::committed(place.clone(), 8, "somebody's own").first_read_ends, None);
        let latest = Beginning::first(place.clone(), (2, 9), Some(Start::Latest));
        assert_eq!((latest.next, latest.first_read_ends), (9, None));
        let later = Beginning::first(place.clone(), (2, 9), None);
        assert_eq!((later.next, later.first_read_ends), (2, None), "nothing was there before the group");
        assert_eq!(Beginning::first(place, (9, 9), Some(Start::Earliest)).first_read_ends, None);
    }
}
