//! What becomes of what was read when partitions come and go, on librdkafka's own broker of one process.

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
    context::{Change, Client, Context},
    membership::Membership,
    poller::{Batch, Poller, Signal, State},
};
use crate::{
    connector::kafka::Start,
    queue::Queue,
    source::{Entry, Intake, Status},
    store::redis::{RedisStore, connection::Connection},
};

/// For what takes a moment.
const PATIENCE: Duration = Duration::from_secs(20);
const PARTITIONS: i32 = 2;
/// Records of each partition at first, and as many later.
const RECORDS: i64 = 10;

/// A poller whose batches this test takes in place of Redis.
struct Bench {
    cluster: MockCluster<'static, DefaultProducerContext>,
    client: Arc<Client>,
    batches: UnboundedReceiver<Batch>,
    signals: mpsc::Sender<Signal>,
    polling: Option<JoinHandle<()>>,
    _stop: watch::Sender<bool>,
}

impl Bench {
    /// With `RECORDS` in each partition.
    fn start() -> Self {
        let cluster = MockCluster::new(1).expect("a mock cluster");
        cluster.create_topic("t", PARTITIONS, 1).expect("a topic");
        let (signals, mailbox) = mpsc::channel();
        let mut client: Client =
            settings(&cluster).create_with_context(Context::new("test".into())).expect("valid settings");
        let ready = signals.clone();
        client.set_nonempty_callback(move || {
            // The poller has ended.
            let _ = ready.send(Signal::Ready);
        });
        let membership = Arc::new(Membership::new(["t".into()]));
        let seat = membership.join(client);
        let client = Arc::clone(&seat);
        let (batches, departing) = unbounded_channel();
        // It has nothing to do: the test takes the batches.
        let redis = redis::Client::open("redis://127.0.0.1:1").expect("a URL");
        let connection = Arc::new(Connection::new(redis, Duration::from_secs(1)));
        let queue = Arc::new(Queue::new(Arc::new(RedisStore::new(connection, "p", [])), &BTreeMap::new(), false));
        let (stop, stopping) = watch::channel(false);
        let intake = Intake::new(queue, "in", "r".into(), Arc::<Status>::default(), stopping);
        let state = State::default();
        let start = Start::Earliest;
        let poller = Poller { client: seat, membership, intake, start, max_overdue: None, batches, mailbox, state };
        let mut bench = Self { cluster, client, batches: departing, signals, polling: None, _stop: stop };
        bench.produce();
        bench.polling = Some(thread::spawn(move || poller.run().expect("it ends in order")));
        bench
    }

    fn produce(&self) {
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", self.cluster.bootstrap_servers());
        let producer: BaseProducer = settings.create().expect("valid settings");
        for n in 0..RECORDS * i64::from(PARTITIONS) {
            let partition = i32::try_from(n).expect("few") % PARTITIONS;
            producer.send(BaseRecord::<[u8], [u8]>::to("t").partition(partition).payload(b"x")).expect("room");
        }
        producer.flush(PATIENCE).expect("it takes them");
    }

    /// The next batch, with the ids of its entries: `topic:partition:offset`.
    async fn batch(&mut self) -> (Vec<String>, Batch) {
        let batch = timeout(PATIENCE, self.batches.recv()).await.expect("a batch").expect("it polls");
        let ids = batch.entries.iter().map(|entry| match entry {
            Entry::Schedule(message) | Entry::Invalid(message, _) => message.id.to_string(),
            Entry::Cancel(cancellation) => cancellation.id.to_string(),
        });
        (ids.collect(), batch)
    }

    fn landed(&self, landed: bool) {
        self.signals.send(Signal::Landed(landed)).expect("it polls");
    }

    /// Waits until the poller has read up to this offset of each partition.
    async fn read(&self, offset: i64) {
        until("it has read all", || positions(&self.client.position().expect("it is told")) == vec![Some(offset); 2])
            .await;
    }

    fn is_revoked(&self) -> bool {
        matches!(self.client.context().change(), Some(Change::Revoked(_)))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.signals.send(Signal::Stop);
        if let Some(polling) = self.polling.take() {
            let ended = polling.join();
            assert!(ended.is_ok() || thread::panicking());
        }
    }
}

/// Another member of the group, which commits nothing.
struct Other {
    has_some: Arc<AtomicBool>,
    is_leaving: Arc<AtomicBool>,
    polling: Option<JoinHandle<()>>,
}

impl Other {
    fn join(bench: &Bench) -> Self {
        let consumer: BaseConsumer = settings(&bench.cluster).create().expect("valid settings");
        let (has_some, is_leaving) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let flags = (Arc::clone(&has_some), Arc::clone(&is_leaving));
        let polling = thread::spawn(move || {
            consumer.subscribe(&["t"]).expect("it is a topic");
            while !flags.1.load(Relaxed) {
                let _ = consumer.poll(Duration::from_millis(20));
                flags.0.store(consumer.assignment().expect("it is told").count() > 0, Relaxed);
            }
        });
        Self { has_some, is_leaving, polling: Some(polling) }
    }

    fn has_some(&self) -> bool {
        self.has_some.load(Relaxed)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.is_leaving.store(true, Relaxed);
        let ended = self.polling.take().expect("it runs").join();
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
        // The mock cluster waits for so long in each rebalance, but for 3 s in the first one.
        .set("session.timeout.ms", "4000")
        .set("heartbeat.interval.ms", "100");
    settings
}

fn positions(list: &TopicPartitionList) -> Vec<Option<i64>> {
    list.elements().iter().map(|one| one.offset().to_raw().filter(|offset| *offset >= 0)).collect()
}

async fn until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_did_not_land_is_sent_again_before_what_came_later() {
    let mut bench = Bench::start();
    let (first, _batch) = bench.batch().await;
    bench.read(RECORDS).await;
    bench.landed(false);
    let (again, _batch) = bench.batch().await;
    assert_eq!(again[..first.len()], first, "{again:?}");
    assert_eq!(again.len(), 20, "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_are_given_up_when_the_batch_on_its_way_has_landed_and_what_waits_is_left_to_others() {
    let mut bench = Bench::start();
    bench.read(RECORDS).await;
    // All of the first ones are on their way, and the later ones wait.
    let (mut sent, mut batch) = bench.batch().await;
    while sent.len() < 20 {
        drop(batch);
        bench.landed(true);
        let next;
        (next, batch) = bench.batch().await;
        sent.extend(next);
    }
    bench.produce();
    bench.read(2 * RECORDS).await;
    let other = Other::join(&bench);
    until("a rebalance", || bench.is_revoked() || other.has_some()).await;
    // Time for a mistake: nothing tells that it waits.
    sleep(Duration::from_millis(500)).await;
    assert!(bench.is_revoked() && !other.has_some(), "it waits for the batch");
    bench.landed(true);
    until("the other has a share", || other.has_some()).await;
    let (later, _batch) = bench.batch().await;
    let partition = |id: &String| id.split(':').nth(1).map(str::to_owned);
    assert!(later.iter().all(|id| partition(id) == partition(&later[0])), "one partition is not ours: {later:?}");
}
