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
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rdkafka::{
    ClientConfig,
    producer::{BaseProducer, Producer as _},
};
use tokio::time::{Instant, timeout};

use super::{callbacks::ProducerCallbacks, polled::PolledProducer};
use crate::connector::kafka::made;

/// Shortest time between the creation of two producers. A new one may fail at once again.
const REBUILD_INTERVAL: Duration = Duration::from_secs(1);
/// Topics of one producer. Each takes some KiB, and metadata requests of this size are no load for a cluster. Batches
/// within `REBUILD_INTERVAL` may exceed it.
const MAX_TOPICS: usize = 1000;
/// Longest wait for the threads of a producer to end. All results were reported before.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

pub struct Producer {
    settings: ClientConfig,
    /// Brokers and topic, for the logs.
    name: String,
    current: Mutex<CurrentProducer>,
}

struct CurrentProducer {
    /// `None` once closed.
    live: Option<Arc<LiveProducer>>,
    made: Instant,
    /// The topics that messages have named since `made`.
    topics: HashSet<Box<str>>,
}

/// A producer whose drop does not block: another thread drops the inner one.
pub struct LiveProducer(Option<PolledProducer>);

impl LiveProducer {
    pub fn producer(&self) -> &BaseProducer<ProducerCallbacks> {
        self.0.as_ref().expect("only taken on drop")
    }

    /// The fatal error, or the latest connection error.
    pub fn cause(&self) -> Option<String> {
        let client = self.producer().client();
        client.fatal_error().map(|(_, text)| text).or_else(|| client.context().reports.cause())
    }
}

impl Drop for LiveProducer {
    fn drop(&mut self) {
        let producer = self.0.take();
        std::thread::spawn(move || drop(producer));
    }
}

impl Producer {
    /// Connects in the background.
    ///
    /// # Errors
    /// The settings that librdkafka rejects.
    pub fn new(settings: ClientConfig, name: String) -> Result<Self, String> {
        let current = Mutex::new(CurrentProducer::new(make(&settings, &name)?));
        Ok(Self { settings, name, current })
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
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let mut live = current.live.clone().ok_or("the sink is closed")?;
        let may_rebuild = current.made.elapsed() >= REBUILD_INTERVAL;
        if let Some((_, error)) = live.producer().client().fatal_error() {
            if !may_rebuild {
                return Err(error);
            }
            tracing::warn!(kafka = self.name, "the producer failed and is created again: {error}");
            live = make(&self.settings, &self.name)?;
            *current = CurrentProducer::new(live.clone());
        } else if may_rebuild && current.topics.len() >= MAX_TOPICS {
            tracing::debug!(kafka = self.name, topics = current.topics.len(), "the producer is replaced");
            live = make(&self.settings, &self.name)?;
            *current = CurrentProducer::new(live.clone());
        }
        for topic in topics {
            if !current.topics.contains(topic) {
                current.topics.insert(topic.into());
            }
        }
        Ok(live)
    }

    /// Waits for the end of the producer's threads: they must not run while the process exits.
    pub async fn close(&self) {
        let live = self.current.lock().unwrap_or_else(PoisonError::into_inner).live.take();
        let producer = live.and_then(Arc::into_inner).and_then(|mut live| live.0.take());
        let ended = tokio::task::spawn_blocking(move || drop(producer));
        if timeout(CLOSE_TIMEOUT, ended).await.is_err() {
            tracing::warn!(kafka = self.name, "the producer did not end within {CLOSE_TIMEOUT:?}");
        }
    }
}

impl CurrentProducer {
    fn new(live: Arc<LiveProducer>) -> Self {
        Self { live: Some(live), made: Instant::now(), topics: HashSet::new() }
    }
}

fn make(settings: &ClientConfig, name: &str) -> Result<Arc<LiveProducer>, String> {
    let producer = made(settings.create_with_context(ProducerCallbacks::new(name.to_owned())))?;
    let polled = PolledProducer::new(producer).map_err(|error| format!("no thread: {error}"))?;
    Ok(Arc::new(LiveProducer(Some(polled))))
}
