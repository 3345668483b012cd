//! The live producer of librdkafka, created again after a fatal error.
//!
//! An idempotent producer ends with a fatal error when the broker has lost its state or denies it idempotence. librdkafka
//! reports its queued messages as failed.
//!
//! librdkafka keeps every topic that it has sent to in memory, with each partition, and requests their metadata every few
//! minutes. So a producer is also replaced after many topics, if messages name them. Records in flight finish in the old
//! producer.

use std::{
    collections::HashSet,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use parking_lot::Mutex;
use rdkafka::{
    ClientConfig,
    producer::{BaseProducer, Producer as _},
};
use tokio::time::{Instant, timeout};

use crate::{
    connector::kafka::{Callbacks, made},
    sink::turns::FairPermits,
};

/// Minimum time between the creation of two producers. A new one can fail at once again.
pub const REBUILD_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum topics of one producer. Each takes some KiB, and metadata requests of this size cost a cluster little.
/// Batches within `REBUILD_INTERVAL` can exceed the number.
const MAX_TOPICS: usize = 1000;
/// Maximum wait for the threads of a producer to end. All results were reported before.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum time until a producer's thread notices that the producer is no longer used. Callbacks run at once. rdkafka's
/// `ThreadedProducer` polls for 100 ms and spins through the last millisecond of each poll: an idle process would use
/// CPU time.
const POLL: Duration = Duration::from_secs(1);

/// A producer. Its thread runs its callbacks, and drops it after its last user, because the drop blocks.
pub type LiveProducer = BaseProducer<Callbacks>;

pub struct Producer {
    settings: ClientConfig,
    /// Brokers and topic, for the logs.
    name: String,
    current: Mutex<CurrentProducer>,
    /// Permits for routes and topics that wait while the queue of librdkafka is full.
    pub room: Arc<FairPermits>,
}

struct CurrentProducer {
    /// The producer and its thread. `None` once closed.
    live: Option<(Arc<LiveProducer>, JoinHandle<()>)>,
    made: Instant,
    /// The topics that messages have named since `made`.
    topics: HashSet<Box<str>>,
}

impl Producer {
    /// Connects in the background.
    ///
    /// # Errors
    /// The settings that librdkafka rejects.
    pub fn new(settings: ClientConfig, name: String) -> Result<Self, String> {
        let current = Mutex::new(CurrentProducer::new(&settings, &name)?);
        Ok(Self { settings, name, current, room: FairPermits::new(1) })
    }

    /// # Errors
    /// The fatal error of the producer, or why no other can be created.
    pub fn get(&self) -> Result<Arc<LiveProducer>, String> {
        self.get_for([])
    }

    /// A producer for records to `topics`, which count towards `MAX_TOPICS`.
    ///
    /// # Errors
    /// As `get`.
    pub fn get_for<'a>(&self, topics: impl IntoIterator<Item = &'a str>) -> Result<Arc<LiveProducer>, String> {
        let mut current = self.current.lock();
        let (live, _) = current.live.as_ref().ok_or("the sink is closed")?;
        let may_rebuild = current.made.elapsed() >= REBUILD_INTERVAL;
        if let Some((_, error)) = live.client().fatal_error() {
            if !may_rebuild {
                return Err(error);
            }
            tracing::warn!(kafka = self.name, "the producer failed and is created again: {error}");
            *current = CurrentProducer::new(&self.settings, &self.name)?;
        } else if may_rebuild && current.topics.len() >= MAX_TOPICS {
            tracing::debug!(kafka = self.name, topics = current.topics.len(), "the producer is replaced");
            *current = CurrentProducer::new(&self.settings, &self.name)?;
        }
        for topic in topics {
            if !current.topics.contains(topic) {
                current.topics.insert(topic.into());
            }
        }
        let (live, _) = current.live.as_ref().ok_or("the sink is closed")?;
        Ok(live.clone())
    }

    /// Waits for the end of the producer's threads: they must not run while the process exits.
    pub async fn close(&self) {
        let live = self.current.lock().live.take();
        let Some((producer, thread)) = live else { return };
        drop(producer);
        // The panic hook has reported a panic.
        let ended = tokio::task::spawn_blocking(|| thread.join());
        if timeout(CLOSE_TIMEOUT, ended).await.is_err() {
            tracing::warn!(kafka = self.name, "the producer did not end within {CLOSE_TIMEOUT:?}");
        }
    }
}

impl CurrentProducer {
    fn new(settings: &ClientConfig, name: &str) -> Result<Self, String> {
        let live: Arc<LiveProducer> = Arc::new(made(settings.create_with_context(Callbacks::new(name.to_owned())))?);
        let polled = live.clone();
        let poll = move || {
            while Arc::strong_count(&polled) > 1 {
                polled.poll(POLL);
            }
        };
        let thread = thread::Builder::new().name("kafka-callbacks".into()).spawn(poll);
        let thread = thread.map_err(|error| format!("no thread: {error}"))?;
        Ok(Self { live: Some((live, thread)), made: Instant::now(), topics: HashSet::new() })
    }
}
