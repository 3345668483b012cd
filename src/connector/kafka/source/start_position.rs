//! The first offset to read of each partition.
//!
//! Offsets that the group has committed take precedence. `start` applies only to the first start of a group on a topic.
//! The start is decided once for all partitions of the topic and committed before any record is read, so that no
//! restart and no rebalance decides again. A partition or a topic that was created later is read from its first record.
//! Members of a group can decide at the same time: the first commit counts for all.

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

use super::{callbacks::Client, record::TopicPartition};
use crate::connector::kafka::Start;

/// Metadata of a committed offset, followed by the end offset.
const FIRST_READ: &str = "first read ends at ";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartPosition {
    pub partition: TopicPartition,
    /// The first offset to read.
    pub next: i64,
    /// Records below this offset are older than the group.
    pub first_read_ends: Option<i64>,
}

impl StartPosition {
    /// For `TopicPartitionListElem::set_metadata`.
    pub fn metadata(first_read_ends: i64) -> String {
        format!("{FIRST_READ}{first_read_ends}")
    }

    fn from_committed(partition: TopicPartition, next: i64, metadata: &str) -> Self {
        let ends = metadata.strip_prefix(FIRST_READ).and_then(|ends| ends.parse().ok());
        Self { partition, next, first_read_ends: ends.filter(|ends| next < *ends) }
    }

    /// `start`: `None` for a partition that is younger than the group.
    fn first(partition: TopicPartition, (low, high): (i64, i64), start: Option<Start>) -> Self {
        let (next, first_read_ends) = match start {
            Some(Start::Earliest) => (low, Some(high).filter(|high| low < *high)),
            Some(Start::Latest) => (high, None),
            None => (low, None),
        };
        Self { partition, next, first_read_ends }
    }
}

/// The positions of all `assigned` partitions. Commits those that the group did not have. `start` returns the beginning
/// of the first start on a topic, or `None` if the topic is younger than the group. Blocks for about `limit`, and for
/// one commit of each topic.
///
/// # Errors
/// Why a position is unknown. In that case no record must be read.
pub fn start_positions(
    client: &Client,
    assigned: &TopicPartitionList,
    start: impl Fn(&str) -> Option<Start>,
    limit: Duration,
) -> Result<Vec<StartPosition>, String> {
    let (positions, unknown) = resolve(client, assigned, start, Instant::now() + limit)
        .map_err(|error| format!("the start offsets of its partitions are unknown: {error}"))?;
    match unknown.first() {
        None => Ok(positions),
        Some(TopicPartition { topic, index }) => {
            Err(format!("the start offset of partition {index} of topic {topic} was not committed"))
        }
    }
}

/// The positions of `assigned`, and the partitions without a committed offset after the commit.
fn resolve(
    client: &Client,
    assigned: &TopicPartitionList,
    start: impl Fn(&str) -> Option<Start>,
    deadline: Instant,
) -> KafkaResult<(Vec<StartPosition>, BTreeSet<TopicPartition>)> {
    let (mut positions, unknown) = committed(client, assigned.clone(), deadline)?;
    let topics: BTreeSet<Arc<str>> = unknown.iter().map(|partition| partition.topic.clone()).collect();
    let mut decided = unknown.clone();
    for topic in topics {
        let all = partitions(client, &topic, deadline)?;
        let (others, mut missing) = committed(client, all.clone(), deadline)?;
        let is_first_start = others.is_empty();
        missing.retain(|partition| is_first_start || unknown.contains(partition));
        let marks = watermarks(client, &without_offsets(&missing)?, deadline)?;
        let start = if is_first_start { start(&topic) } else { None };
        // Another member might have committed in the meantime, and read already.
        let (_, still_missing) = committed(client, all, deadline)?;
        missing.retain(|partition| still_missing.contains(partition));
        let first = missing.into_iter().map(|partition| {
            let marks = marks.get(&partition).ok_or(KafkaError::OffsetFetch(RDKafkaErrorCode::NoOffset))?;
            Ok(StartPosition::first(partition, *marks, start))
        });
        let first = first.collect::<KafkaResult<Vec<StartPosition>>>()?;
        if !first.is_empty() {
            client.commit(&to_list(&first)?, CommitMode::Sync)?;
        }
        decided.extend(first.into_iter().map(|position| position.partition));
    }
    // A commit fails only if it fails for all partitions. So the committed offsets are read again, and count.
    let (known, missing) = committed(client, without_offsets(&decided)?, deadline)?;
    positions.extend(known.into_iter().filter(|position| unknown.contains(&position.partition)));
    Ok((positions, missing))
}

/// The list that librdkafka assigns or commits.
pub fn to_list(positions: &[StartPosition]) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::new();
    for StartPosition { partition, next, first_read_ends } in positions {
        list.add_partition_offset(&partition.topic, partition.index, Offset::Offset(*next))?;
        if let Some(ends) = first_read_ends
            && let Some(mut one) = list.find_partition(&partition.topic, partition.index)
        {
            one.set_metadata(StartPosition::metadata(*ends));
        }
    }
    Ok(list)
}

fn without_offsets<'a>(partitions: impl IntoIterator<Item = &'a TopicPartition>) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::new();
    for partition in partitions {
        list.add_partition_offset(&partition.topic, partition.index, Offset::Invalid)?;
    }
    Ok(list)
}

/// The committed offsets of the group, and the partitions without one.
fn committed(
    client: &Client,
    partitions: TopicPartitionList,
    deadline: Instant,
) -> KafkaResult<(Vec<StartPosition>, BTreeSet<TopicPartition>)> {
    let (mut known, mut unknown) = (Vec::new(), BTreeSet::new());
    if partitions.count() == 0 {
        return Ok((known, unknown));
    }
    for one in client.committed_offsets(partitions, time_left(deadline))?.elements() {
        one.error()?;
        let partition = TopicPartition { topic: one.topic().into(), index: one.partition() };
        match one.offset() {
            Offset::Offset(next) => known.push(StartPosition::from_committed(partition, next, one.metadata())),
            _ => {
                unknown.insert(partition);
            }
        }
    }
    Ok((known, unknown))
}

fn partitions(client: &Client, topic: &str, deadline: Instant) -> KafkaResult<TopicPartitionList> {
    let metadata = client.fetch_metadata(Some(topic), time_left(deadline))?;
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

/// The first offset and the end offset of each partition, with two requests to each broker. Blocks until `deadline` at
/// most.
///
/// # Errors
/// When an offset of any partition is unknown.
pub fn watermarks(
    client: &Client,
    partitions: &TopicPartitionList,
    deadline: Instant,
) -> KafkaResult<BTreeMap<TopicPartition, (i64, i64)>> {
    let mut marks = BTreeMap::new();
    if partitions.count() == 0 {
        return Ok(marks);
    }
    let query = |offset| {
        let mut list = partitions.clone();
        list.set_all_offsets(offset)?;
        client.offsets_for_times(list, time_left(deadline))
    };
    // librdkafka's `Beginning` and `End` are the protocol's times -2 and -1.
    let (lows, highs) = (query(Offset::Beginning)?, query(Offset::End)?);
    for (low, high) in lows.elements().iter().zip(highs.elements()) {
        low.error().and_then(|()| high.error())?;
        let (Offset::Offset(low), Offset::Offset(last)) = (low.offset(), high.offset()) else {
            return Err(KafkaError::OffsetFetch(RDKafkaErrorCode::NoOffset));
        };
        marks.insert(TopicPartition { topic: high.topic().into(), index: high.partition() }, (low, last));
    }
    Ok(marks)
}

/// At least 1 ms: librdkafka waits without limit for a timeout of 0.
pub fn time_left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

#[cfg(test)]
mod tests {
    use rdkafka::{ClientConfig, mocking::MockCluster, producer::DefaultProducerContext};

    use super::{super::callbacks::ConsumerCallbacks, *};

    const LIMIT: Duration = Duration::from_secs(20);

    fn cluster() -> MockCluster<'static, DefaultProducerContext> {
        let cluster = MockCluster::new(1).expect("a mock cluster");
        cluster.create_topic("t", 3, 1).expect("a topic");
        cluster
    }

    fn member(cluster: &MockCluster<'static, DefaultProducerContext>) -> Client {
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", cluster.bootstrap_servers()).set("group.id", "g");
        settings.create_with_context(ConsumerCallbacks::new("test".into())).expect("valid settings")
    }

    fn partition(index: i32) -> TopicPartition {
        TopicPartition { topic: "t".into(), index }
    }

    fn at(index: i32, next: i64) -> StartPosition {
        StartPosition { partition: partition(index), next, first_read_ends: None }
    }

    fn committed_of_all(client: &Client) -> Vec<StartPosition> {
        let all = without_offsets(&[0, 1, 2].map(partition)).expect("a list");
        committed(client, all, Instant::now() + LIMIT).expect("an answer").0
    }

    #[test]
    fn the_first_start_decides_for_all_partitions_and_a_later_one_for_those_that_are_assigned() {
        let cluster = cluster();
        let ours = member(&cluster);
        let latest = |_: &str| Some(Start::Latest);
        let one = without_offsets(&[partition(1)]).expect("a list");
        let positions = start_positions(&ours, &one, latest, LIMIT).expect("start positions");
        assert_eq!((positions, committed_of_all(&ours)), (vec![at(1, 0)], vec![at(0, 0), at(1, 0), at(2, 0)]));

        let cluster = self::cluster();
        let ours = member(&cluster);
        ours.commit(&to_list(&[at(0, 7)]).expect("a list"), CommitMode::Sync).expect("a commit");
        let positions = start_positions(&ours, &one, latest, LIMIT).expect("start positions");
        assert_eq!((positions, committed_of_all(&ours)), (vec![at(1, 0)], vec![at(0, 7), at(1, 0)]));
    }

    #[test]
    fn an_offset_that_another_member_commits_meanwhile_is_kept() {
        let cluster = cluster();
        let (ours, other) = (member(&cluster), member(&cluster));
        let assigned = without_offsets(&[partition(0), partition(1)]).expect("a list");
        let commit_of_other = |_: &str| {
            let theirs = to_list(&[at(1, 7), at(2, 9)]).expect("a list");
            other.commit(&theirs, CommitMode::Sync).expect("a commit");
            Some(Start::Latest)
        };
        let positions = start_positions(&ours, &assigned, commit_of_other, LIMIT).expect("start positions");
        assert_eq!(positions, [at(0, 0), at(1, 7)]);
        assert_eq!(committed_of_all(&ours), [at(0, 0), at(1, 7), at(2, 9)]);
    }

    #[test]
    fn the_end_of_a_first_read_is_committed_until_it_is_passed() {
        let partition = TopicPartition { topic: "t".into(), index: 3 };
        let first = StartPosition::first(partition.clone(), (2, 9), Some(Start::Earliest));
        assert_eq!((first.next, first.first_read_ends), (2, Some(9)));
        let list = to_list(&[first]).unwrap();
        let metadata = list.elements()[0].metadata().to_owned();
        assert_eq!(metadata, "first read ends at 9");
        let ends = |next, metadata| StartPosition::from_committed(partition.clone(), next, metadata).first_read_ends;
        assert_eq!(ends(8, &metadata), Some(9));
        assert_eq!(ends(9, &metadata), None);
        assert_eq!(ends(8, "metadata of another program"), None);
        let latest = StartPosition::first(partition.clone(), (2, 9), Some(Start::Latest));
        assert_eq!((latest.next, latest.first_read_ends), (9, None));
        let later = StartPosition::first(partition.clone(), (2, 9), None);
        assert_eq!((later.next, later.first_read_ends), (2, None), "no record is older than the group");
        assert_eq!(StartPosition::first(partition, (9, 9), Some(Start::Earliest)).first_read_ends, None);
    }
}
