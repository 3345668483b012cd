//! The producer of librdkafka: one at a time, made anew when it has failed for good.
//!
//! An idempotent producer ends with a "fatal error" when it can no longer tell what the broker has (its state there
//! was lost) or may not be idempotent. What it still held was reported as failed.
//!
//! librdkafka never forgets a topic that it has once sent to: it keeps the topic and each of its partitions in memory,
//! and asks for all of them again every few minutes. So where messages name their topics, a producer that has seen many
//! of them is made anew, too; what is on its way in the old one ends there.

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

use super::{context::Context, polled::PolledProducer};
use crate::connector::kafka::made;

/// Least time between two producers: where none can work, each would fail at once.
const REBUILD_INTERVAL: Duration = Duration::from_secs(1);
/// Topics of one producer: each takes some KiB beside its partitions', and no cluster minds being asked for as many. It
/// may be exceeded by what is sent within `REBUILD_INTERVAL`.
const MAX_TOPICS: usize = 1000;
/// Longest wait for the threads of a producer to end. What was sent has been reported before.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

pub struct Producer {
    settings: ClientConfig,
    /// For the logs.
    name: String,
    current: Mutex<Current>,
}

struct Current {
    /// `None` once closed.
    live: Option<Arc<Live>>,
    made: Instant,
    /// Those that messages have named since.
    topics: HashSet<Box<str>>,
}

/// Dropping a producer blocks, so another thread does that.
pub struct Live(Option<PolledProducer>);

impl Live {
    pub fn producer(&self) -> &BaseProducer<Context> {
        self.0.as_ref().expect("only taken when it is dropped")
    }

    pub fn cause(&self) -> Option<String> {
        let client = self.producer().client();
        client.fatal_error().map(|(_, text)| text).or_else(|| client.context().cause())
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let producer = self.0.take();
        std::thread::spawn(move || drop(producer));
    }
}

impl Producer {
    /// Connects in the background.
    ///
    /// # Errors
    /// Which settings librdkafka does not take.
    pub fn new(settings: ClientConfig, name: String) -> Result<Self, String> {
        let current = Mutex::new(Current::new(make(&settings, &name)?));
        Ok(Self { settings, name, current })
    }

    /// # Errors
    /// Why there is none that could work.
    pub fn get(&self) -> Result<Arc<Live>, String> {
        self.get_for([])
    }

    /// One for records to `topics`, of which there may be many over time.
    ///
    /// # Errors
    /// Why there is none that could work.
    pub fn get_for<'a>(&self, topics: impl IntoIterator<Item = &'a str>) -> Result<Arc<Live>, String> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let mut live = current.live.clone().ok_or("the sink is closed")?;
        let may_rebuild = current.made.elapsed() >= REBUILD_INTERVAL;
        if let Some((_, error)) = live.producer().client().fatal_error() {
            if !may_rebuild {
                return Err(error);
            }
            tracing::warn!(kafka = self.name, "the producer failed and is made anew: {error}");
            live = make(&self.settings, &self.name)?;
            *current = Current::new(live.clone());
        } else if may_rebuild && current.topics.len() >= MAX_TOPICS {
            tracing::debug!(kafka = self.name, "the producer is made anew: it knows {} topics", current.topics.len());
            live = make(&self.settings, &self.name)?;
            *current = Current::new(live.clone());
        }
        for topic in topics {
            if !current.topics.contains(topic) {
                current.topics.insert(topic.into());
            }
        }
        Ok(live)
    }

    /// Waits until its threads have ended: they must not run while the process exits.
    pub async fn close(&self) {
        let live = self.current.lock().unwrap_or_else(PoisonError::into_inner).live.take();
        let producer = live.and_then(Arc::into_inner).and_then(|mut live| live.0.take());
        let ended = tokio::task::spawn_blocking(move || drop(producer));
        if timeout(CLOSE_TIMEOUT, ended).await.is_err() {
            tracing::warn!(kafka = self.name, "the producer did not end within {CLOSE_TIMEOUT:?}");
        }
    }
}

impl Current {
    fn new(live: Arc<Live>) -> Self {
        Self { live: Some(live), made: Instant::now(), topics: HashSet::new() }
    }
}

fn make(settings: &ClientConfig, name: &str) -> Result<Arc<Live>, String> {
    let producer = made(settings.create_with_context(Context::new(name.to_owned())))?;
    let polled = PolledProducer::new(producer).map_err(|error| format!("no thread: {error}"))?;
    Ok(Arc::new(Live(Some(polled))))
}
