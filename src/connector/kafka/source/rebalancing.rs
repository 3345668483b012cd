//! Tests of the poller during rebalances, on librdkafka's mock cluster.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rdkafka::{
    ClientConfig, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, Consumer},
    mocking::MockCluster,
    producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer},
};
use tokio::{
    sync::{
        mpsc::{UnboundedReceiver, unbounded_channel},
        watch,
    },
    time::{Instant, sleep, timeout},
};

use super::{
    batch::FetchedBatch,
    callbacks::{Client, ConsumerCallbacks, Rebalance},
    membership::Membership,
    poller::{Poller, PollerState, Signal},
};
use crate::{
    connector::kafka::{Start, Tombstones},
    queue::Queue,
    source::{Intake, SourceEntry, SourceHealth},
    store::redis::{RedisStore, connection::Connection},
};

const TIMEOUT: Duration = Duration::from_secs(20);
const PARTITIONS: i32 = 2;
/// Records of each partition that one call of `produce` adds.
const RECORDS: i64 = 10;

/// A poller that does not run yet, and what it is connected to.
pub struct IdlePoller {
    pub poller: Poller,
    pub health: Arc<SourceHealth>,
    pub batches: UnboundedReceiver<FetchedBatch>,
    signals: mpsc::Sender<Signal>,
    stop: watch::Sender<bool>,
}

impl IdlePoller {
    /// Reads the topic `t`. `options`: properties of the consumer.
    pub fn new(cluster: &MockCluster<'static, DefaultProducerContext>, options: &[(&str, &str)]) -> Self {
        let (sender, signals) = mpsc::channel();
        let mut settings = settings(cluster);
        for (name, value) in options {
            settings.set(*name, *value);
        }
        let mut client: Client =
            settings.create_with_context(ConsumerCallbacks::new("test".into())).expect("valid settings");
        let ready = sender.clone();
        client.set_nonempty_callback(move || {
            // The poller has ended.
            let _ = ready.send(Signal::Ready);
        });
        let membership = Arc::new(Membership::new(["t".into()]));
        let client = membership.join(client);
        let (batches, received) = unbounded_channel();
        let (stop, stopping) = watch::channel(false);
        let health = Arc::<SourceHealth>::default();
        let (intake, state) = (unused_intake(&health, stopping), PollerState::default());
        let (start, tombstones, max_overdue) = (Start::Earliest, Tombstones::Cancel, None);
        let poller = Poller { client, membership, intake, start, tombstones, max_overdue, batches, signals, state };
        Self { poller, health, batches: received, signals: sender, stop }
    }
}

/// An intake that gets no messages: no Redis is there.
pub fn unused_intake(health: &Arc<SourceHealth>, stopping: watch::Receiver<bool>) -> Intake {
    let redis = redis::Client::open("redis://127.0.0.1:1").expect("a URL");
    let connection = Arc::new(Connection::new(redis, Duration::from_secs(1)));
    let queue = Arc::new(Queue::new(Arc::new(RedisStore::new(connection, "p", [])), &BTreeMap::new(), false));
    Intake::new(queue, "in", "r".into(), Arc::clone(health), stopping)
}

/// A poller that sends its batches to the test in place of the intake.
struct PollerHarness {
    cluster: MockCluster<'static, DefaultProducerContext>,
    client: Arc<Client>,
    batches: UnboundedReceiver<FetchedBatch>,
    signals: mpsc::Sender<Signal>,
    polling: Option<JoinHandle<()>>,
    _stop: watch::Sender<bool>,
}

impl PollerHarness {
    /// Starts with `RECORDS` records in each partition.
    fn start() -> Self {
        let cluster = MockCluster::new(1).expect("a mock cluster");
        cluster.create_topic("t", PARTITIONS, 1).expect("a topic");
        let IdlePoller { poller, batches, signals, stop, .. } = IdlePoller::new(&cluster, &[]);
        let client = Arc::clone(&poller.client);
        let mut harness = Self { cluster, client, batches, signals, polling: None, _stop: stop };
        harness.produce();
        harness.polling = Some(thread::spawn(move || poller.run().expect("no error")));
        harness
    }

    fn produce(&self) {
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", self.cluster.bootstrap_servers());
        let producer: BaseProducer = settings.create().expect("valid settings");
        for n in 0..RECORDS * i64::from(PARTITIONS) {
            let partition = i32::try_from(n).expect("few") % PARTITIONS;
            producer.send(BaseRecord::<[u8], [u8]>::to("t").partition(partition).payload(b"x")).expect("capacity");
        }
        producer.flush(TIMEOUT).expect("delivered");
    }

    /// The next batch, with the ids of its entries: `topic:partition:offset`.
    async fn batch(&mut self) -> (Vec<String>, FetchedBatch) {
        let batch = timeout(TIMEOUT, self.batches.recv()).await.expect("a batch").expect("a running poller");
        let ids = batch.entries.iter().map(|entry| match entry {
            SourceEntry::Schedule(message) | SourceEntry::Invalid(message, _) => message.id.to_string(),
            SourceEntry::Cancel(cancellation) => cancellation.id.to_string(),
        });
        (ids.collect(), batch)
    }

    fn finish_batch(&self, stored: bool) {
        self.signals.send(Signal::BatchDone(stored)).expect("a running poller");
    }

    /// Waits until the poller has read up to this offset of each partition.
    async fn until_read(&self, offset: i64) {
        until("all is read", || positions(&self.client.position().expect("positions")) == vec![Some(offset); 2]).await;
    }

    fn is_revoked(&self) -> bool {
        matches!(self.client.context().next_rebalance(), Some(Rebalance::Revoked(_)))
    }
}

impl Drop for PollerHarness {
    fn drop(&mut self) {
        // The poller might have ended already.
        let _ = self.signals.send(Signal::Stop);
        if let Some(polling) = self.polling.take() {
            let ended = polling.join();
            assert!(ended.is_ok() || thread::panicking());
        }
    }
}

/// Another member of the group, which commits nothing.
struct OtherMember {
    has_partitions: Arc<AtomicBool>,
    is_leaving: Arc<AtomicBool>,
    polling: Option<JoinHandle<()>>,
}

impl OtherMember {
    fn join(harness: &PollerHarness) -> Self {
        let consumer: BaseConsumer = settings(&harness.cluster).create().expect("valid settings");
        let (has_partitions, is_leaving) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let flags = (Arc::clone(&has_partitions), Arc::clone(&is_leaving));
        let polling = thread::spawn(move || {
            consumer.subscribe(&["t"]).expect("a subscription");
            while !flags.1.load(Relaxed) {
                let _ = consumer.poll(Duration::from_millis(20));
                flags.0.store(consumer.assignment().expect("an assignment").count() > 0, Relaxed);
            }
        });
        Self { has_partitions, is_leaving, polling: Some(polling) }
    }

    fn has_partitions(&self) -> bool {
        self.has_partitions.load(Relaxed)
    }
}

impl Drop for OtherMember {
    fn drop(&mut self) {
        self.is_leaving.store(true, Relaxed);
        let ended = self.polling.take().expect("a thread").join();
        assert!(ended.is_ok() || thread::panicking());
    }
}

fn settings(cluster: &MockCluster<'static, DefaultProducerContext>) -> ClientConfig {
    let mut settings = ClientConfig::new();
    settings
        .set("bootstrap.servers", cluster.bootstrap_servers())
        .set("group.id", "g")
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        // The mock cluster waits for the session timeout in each rebalance, and for 3 s in the first one.
        .set("session.timeout.ms", "4000")
        .set("heartbeat.interval.ms", "100")
        // As in `client_config`: some log lines have an effect.
        .set_log_level(RDKafkaLogLevel::Debug);
    settings
}

fn positions(list: &TopicPartitionList) -> Vec<Option<i64>> {
    list.elements().iter().map(|one| one.offset().to_raw().filter(|offset| *offset >= 0)).collect()
}

async fn until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !done() {
        assert!(Instant::now() < deadline, "not within {TIMEOUT:?}: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_was_not_stored_is_sent_again_before_later_records() {
    let mut harness = PollerHarness::start();
    let (first, _batch) = harness.batch().await;
    harness.until_read(RECORDS).await;
    harness.finish_batch(false);
    let (again, _batch) = harness.batch().await;
    assert_eq!(again[..first.len()], first, "{again:?}");
    assert_eq!(again.len(), 20, "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_waits_for_the_batch_in_flight_and_drops_buffered_records_of_the_partition() {
    let mut harness = PollerHarness::start();
    harness.until_read(RECORDS).await;
    // Puts the last of the first records in flight. The later ones are buffered.
    let (mut sent, mut batch) = harness.batch().await;
    while sent.len() < 20 {
        drop(batch);
        harness.finish_batch(true);
        let next;
        (next, batch) = harness.batch().await;
        sent.extend(next);
    }
    harness.produce();
    harness.until_read(2 * RECORDS).await;
    let other = OtherMember::join(&harness);
    until("a rebalance", || harness.is_revoked() || other.has_partitions()).await;
    // No event shows that the poller waits. A wrong poller would have given the partition away by now.
    sleep(Duration::from_millis(500)).await;
    assert!(harness.is_revoked() && !other.has_partitions(), "the revocation waits for the batch");
    harness.finish_batch(true);
    until("the other member has a partition", || other.has_partitions()).await;
    let (later, _batch) = harness.batch().await;
    let partition = |id: &String| id.split(':').nth(1).map(str::to_owned);
    assert!(later.iter().all(|id| partition(id) == partition(&later[0])), "one partition was revoked: {later:?}");
}
