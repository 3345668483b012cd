use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use rdkafka::{
    ClientConfig, Message, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, CommitMode, Consumer},
    error::{KafkaError, RDKafkaErrorCode},
    message::Headers,
    metadata::MetadataTopic,
};
use tokio::{
    sync::oneshot,
    task::{JoinHandle, spawn_blocking},
    time::{Instant, sleep, timeout},
};

/// Maximum wait for an answer of a broker.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Maximum wait for an answer about partitions, which may have no leader yet.
const ANSWER: Duration = Duration::from_secs(1);

/// As a consumer reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub partition: i32,
    pub key: Option<Vec<u8>>,
    /// `None` is a tombstone.
    pub payload: Option<Vec<u8>>,
    /// In their order; those that are text.
    pub headers: Vec<(String, String)>,
    /// All of them, in their order.
    pub any_headers: Vec<(String, Option<Vec<u8>>)>,
    /// Milliseconds since the epoch.
    pub timestamp: i64,
}

impl Record {
    pub fn header(&self, name: &str) -> &str {
        let mut values = self.headers.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let value = values.next().unwrap_or_else(|| panic!("no header {name} in {:?}", self.headers));
        assert_eq!(values.next(), None, "one header {name}");
        value
    }

    pub fn id(&self) -> &str {
        self.header("punctual-id")
    }
}

/// Ready to be produced to. `settings` such as `("max.message.bytes", "10000")`.
pub async fn create_topic(brokers: &str, topic: &str, partitions: i32, settings: &[(&str, &str)]) {
    let mut new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
    for (name, value) in settings {
        new = new.set(name, value);
    }
    let created = admin(brokers).create_topics([&new], &AdminOptions::new()).await.expect("the broker answers");
    assert!(created.iter().all(Result::is_ok), "{created:?}");
    until(brokers, topic, usize::try_from(partitions).expect("some")).await;
}

/// Ready to be produced to, with `nodes[n]` as the only broker of partition n. The brokers stamp the records.
pub async fn create_topic_on(brokers: &str, topic: &str, nodes: &[i32]) {
    let assignment: Vec<&[i32]> = nodes.iter().map(std::slice::from_ref).collect();
    let partitions = i32::try_from(nodes.len()).expect("few");
    let new = NewTopic::new(topic, partitions, TopicReplication::Variable(&assignment));
    let new = new.set("message.timestamp.type", "LogAppendTime");
    let created = admin(brokers).create_topics([&new], &AdminOptions::new()).await.expect("the broker answers");
    assert!(created.iter().all(Result::is_ok), "{created:?}");
    until(brokers, topic, nodes.len()).await;
}

/// Ready to be produced to.
pub async fn add_partitions(brokers: &str, topic: &str, partitions: usize) {
    let more = NewPartitions::new(topic, partitions);
    let added = admin(brokers).create_partitions([&more], &AdminOptions::new()).await.expect("the broker answers");
    assert!(added.iter().all(Result::is_ok), "{added:?}");
    until(brokers, topic, partitions).await;
}

/// As retention does it, of partition 0.
pub async fn delete_records(brokers: &str, topic: &str, before: i64) {
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 0, Offset::Offset(before)).expect("a valid offset");
    let deleted = admin(brokers).delete_records(&list, &AdminOptions::new()).await.expect("the broker answers");
    assert!(deleted.elements().iter().all(|one| one.error().is_ok()), "{deleted:?}");
}

/// In the name of a group without members, for partition 0.
pub async fn commit(brokers: &str, group: &str, topic: &str, (offset, metadata): (i64, &'static str)) {
    let mut settings = settings(brokers);
    settings.set("group.id", group);
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 0, Offset::Offset(offset)).expect("a valid offset");
    list.find_partition(topic, 0).expect("it was added").set_metadata(metadata);
    blocking(move || {
        let consumer: BaseConsumer = settings.create().expect("valid settings");
        consumer.commit(&list, CommitMode::Sync).expect("the broker takes it");
    })
    .await;
}

/// Offsets that a group has committed, by partition.
pub async fn committed(brokers: &str, group: &str, topic: &str, partitions: i32) -> Vec<Option<i64>> {
    let mut settings = settings(brokers);
    settings.set("group.id", group);
    let mut list = TopicPartitionList::new();
    list.add_partition_range(topic, 0, partitions - 1);
    blocking(move || {
        let consumer: BaseConsumer = settings.create().expect("valid settings");
        let committed = consumer.committed_offsets(list, MAX_WAIT).expect("the broker answers");
        committed.elements().iter().map(|one| one.offset().to_raw().filter(|offset| *offset >= 0)).collect()
    })
    .await
}

/// A member of a group that reads and commits nothing.
pub struct Member {
    is_leaving: Arc<AtomicBool>,
    end: JoinHandle<()>,
}

impl Member {
    /// Returns once it has partitions.
    pub async fn join(brokers: &str, group: &str, topic: &str) -> Self {
        let mut settings = settings(brokers);
        settings.set("group.id", group);
        let (topic, is_leaving) = (topic.to_owned(), Arc::new(AtomicBool::new(false)));
        let (joined, has_joined) = oneshot::channel();
        let end = spawn_blocking({
            let is_leaving = is_leaving.clone();
            move || {
                let consumer: BaseConsumer = settings.create().expect("valid settings");
                consumer.subscribe(&[&topic]).expect("it is a topic");
                let mut joined = Some(joined);
                while !is_leaving.load(Relaxed) {
                    let _ = consumer.poll(Duration::from_millis(50));
                    let has_some = || consumer.assignment().expect("it is known").count() > 0;
                    if let Some(joined) = joined.take_if(|_| has_some()) {
                        joined.send(()).expect("it is awaited");
                    }
                }
            }
        });
        timeout(MAX_WAIT, has_joined).await.expect("partitions in time").expect("it runs");
        Self { is_leaving, end }
    }

    /// Returns once it has left.
    pub async fn leave(mut self) {
        self.is_leaving.store(true, Relaxed);
        (&mut self.end).await.expect("it does not panic");
    }
}

impl Drop for Member {
    /// The runtime of a test that failed waits for its thread.
    fn drop(&mut self) {
        self.is_leaving.store(true, Relaxed);
    }
}

/// Returns when the broker no longer knows it.
pub async fn delete_topic(brokers: &str, topic: &str) {
    let deleted = admin(brokers).delete_topics(&[topic], &AdminOptions::new()).await.expect("the broker answers");
    assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
    until(brokers, topic, 0).await;
}

/// Waits for the topic to have this number of partitions with a leader that knows that it is one.
pub async fn until(brokers: &str, topic: &str, partitions: usize) {
    let deadline = Instant::now() + MAX_WAIT;
    while leaders(brokers, topic).await != Ok(partitions) {
        assert!(Instant::now() < deadline, "{topic} does not have {partitions} partitions after {MAX_WAIT:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

async fn leaders(brokers: &str, topic: &str) -> Result<usize, KafkaError> {
    let (consumer, topic) = (consumer(brokers), topic.to_owned());
    blocking(move || {
        let metadata = consumer.fetch_metadata(Some(&topic), MAX_WAIT)?;
        let partitions = metadata.topics().iter().flat_map(MetadataTopic::partitions);
        let led = partitions.filter(|partition| partition.leader() >= 0);
        Ok(led.filter(|partition| consumer.fetch_watermarks(&topic, partition.id(), ANSWER).is_ok()).count())
    })
    .await
}

pub async fn ping(brokers: &str) -> Result<(), KafkaError> {
    let consumer = consumer(brokers);
    blocking(move || consumer.fetch_metadata(None, Duration::from_secs(1)).map(|_| ())).await
}

/// All records of a topic, in the order of their partitions.
pub async fn consume(brokers: &str, topic: &str) -> Vec<Record> {
    let (consumer, topic) = (consumer(brokers), topic.to_owned());
    blocking(move || read(&consumer, &topic)).await
}

/// How many records there are in a topic from which none was ever deleted; `None` while the broker does not answer.
pub async fn count(brokers: &str, topic: &str) -> Option<i64> {
    let (consumer, topic) = (consumer(brokers), topic.to_owned());
    let ask = move || -> Result<i64, KafkaError> {
        let metadata = consumer.fetch_metadata(Some(&topic), ANSWER)?;
        let partitions = metadata.topics().iter().flat_map(MetadataTopic::partitions);
        partitions.map(|partition| Ok(consumer.fetch_watermarks(&topic, partition.id(), ANSWER)?.1)).sum()
    };
    blocking(ask).await.ok()
}

/// How many records there are in these partitions, none of which was ever deleted.
pub async fn count_of(brokers: &str, topic: &str, partitions: Range<i32>) -> i64 {
    let (consumer, topic) = (consumer(brokers), topic.to_owned());
    let end = move |partition| consumer.fetch_watermarks(&topic, partition, MAX_WAIT).expect("it has a leader").1;
    blocking(move || partitions.map(end).sum()).await
}

fn read(consumer: &BaseConsumer, topic: &str) -> Vec<Record> {
    let metadata = consumer.fetch_metadata(Some(topic), MAX_WAIT).expect("the broker answers");
    let mut list = TopicPartitionList::new();
    let mut ends = BTreeMap::new();
    for partition in metadata.topics()[0].partitions() {
        let (low, high) = offsets(consumer, topic, partition.id());
        if high > low {
            list.add_partition_offset(topic, partition.id(), Offset::Beginning).expect("a valid offset");
            ends.insert(partition.id(), high);
        }
    }
    consumer.assign(&list).expect("it exists");
    let mut records = Vec::new();
    let deadline = Instant::now() + MAX_WAIT;
    while !ends.is_empty() {
        assert!(Instant::now() < deadline, "{topic} was not read within {MAX_WAIT:?}, {ends:?} is left");
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => {
                records.push(record(&message));
                if ends.get(&message.partition()) == Some(&(message.offset() + 1)) {
                    ends.remove(&message.partition());
                }
            }
            // The end of the log may lie behind the last record.
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                ends.remove(&partition);
            }
            Some(Err(KafkaError::MessageConsumption(RDKafkaErrorCode::BrokerTransportFailure))) | None => {}
            Some(Err(error)) => panic!("{error}"),
        }
    }
    records.sort_by_key(|record: &Record| record.partition);
    records
}

/// The first offset and the next one. A broker that has just started does not lead its partitions for a moment.
fn offsets(consumer: &BaseConsumer, topic: &str, partition: i32) -> (i64, i64) {
    let deadline = Instant::now() + MAX_WAIT;
    loop {
        match consumer.fetch_watermarks(topic, partition, MAX_WAIT) {
            Ok(offsets) => return offsets,
            Err(error) => assert!(Instant::now() < deadline, "the broker answers: {error}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn record(message: &impl Message<Headers = rdkafka::message::BorrowedHeaders>) -> Record {
    let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
    let any_headers: Vec<_> = headers.map(|one| (one.key.to_owned(), one.value.map(<[u8]>::to_vec))).collect();
    Record {
        partition: message.partition(),
        key: message.key().map(<[u8]>::to_vec),
        payload: message.payload().map(<[u8]>::to_vec),
        headers: any_headers
            .iter()
            .filter_map(|(name, value)| Some((name.clone(), str::from_utf8(value.as_ref()?).ok()?.to_owned())))
            .collect(),
        any_headers,
        timestamp: message.timestamp().to_millis().expect("a time"),
    }
}

fn consumer(brokers: &str) -> BaseConsumer {
    settings(brokers).create().expect("valid settings")
}

fn settings(brokers: &str) -> ClientConfig {
    let mut settings = ClientConfig::new();
    settings
        .set("bootstrap.servers", brokers)
        .set("group.id", "test")
        .set("enable.partition.eof", "true")
        .set("enable.auto.commit", "false")
        .set("reconnect.backoff.max.ms", "100");
    settings
}

fn admin(brokers: &str) -> AdminClient<DefaultClientContext> {
    ClientConfig::new().set("bootstrap.servers", brokers).create().expect("valid settings")
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("it does not panic")
}
