//! The partitions of the sink's topics: their names as failure domains, and their number.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rdkafka::producer::Producer as _;
use tokio::{runtime::Handle, time::Instant};

use super::producer::LiveProducer;
use crate::sink::Domain;

/// Most topics that are kept. One with its partitions takes some ten KiB at most.
const MAX_TOPICS: usize = 1000;
/// Shortest time between two requests about a topic: operators add partitions, so the number seldom changes.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// Longest wait for the metadata of a topic.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(4);

#[derive(Default)]
pub struct PartitionDomains(Mutex<HashMap<Box<str>, TopicEntry>>);

#[derive(Default)]
struct TopicEntry {
    /// By partition.
    names: Vec<Option<Domain>>,
    /// Number of partitions, once a broker has answered.
    partitions: Option<usize>,
    requested: Option<Instant>,
}

impl PartitionDomains {
    /// `TOPIC/PARTITION`
    pub fn name(&self, topic: &str, partition: usize) -> Domain {
        let mut topics = self.topics();
        let names = &mut entry(&mut topics, topic).names;
        if names.len() <= partition {
            names.resize(partition + 1, None);
        }
        Arc::clone(names[partition].get_or_insert_with(|| format!("{topic}/{partition}").into()))
    }

    /// The number of partitions of a topic; `None` while it is unknown.
    pub fn partitions(&self, topic: &str) -> Option<usize> {
        self.topics().get(topic)?.partitions
    }

    /// Requests the number of partitions, at most once per `REFRESH_INTERVAL`. Returns at once.
    pub fn refresh(self: &Arc<Self>, live: &Arc<LiveProducer>, topic: &str) {
        let Ok(runtime) = Handle::try_current() else { return };
        {
            let mut topics = self.topics();
            let requested = &mut entry(&mut topics, topic).requested;
            if requested.is_some_and(|requested| requested.elapsed() < REFRESH_INTERVAL) {
                return;
            }
            *requested = Some(Instant::now());
        }
        let (domains, live, topic) = (Arc::clone(self), Arc::clone(live), topic.to_owned());
        runtime.spawn_blocking(move || {
            // Without an answer the number that is known stays.
            let Ok(metadata) = live.producer().client().fetch_metadata(Some(&topic), REFRESH_TIMEOUT) else { return };
            let found = metadata.topics().iter().find(|found| found.name() == topic);
            if let Some(count) = found.map(|found| found.partitions().len()).filter(|count| *count > 0) {
                entry(&mut domains.topics(), &topic).partitions = Some(count);
            }
        });
    }

    fn topics(&self) -> MutexGuard<'_, HashMap<Box<str>, TopicEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn entry<'a>(topics: &'a mut HashMap<Box<str>, TopicEntry>, topic: &str) -> &'a mut TopicEntry {
    if !topics.contains_key(topic) {
        if topics.len() >= MAX_TOPICS {
            topics.clear();
        }
        topics.insert(topic.into(), TopicEntry::default());
    }
    topics.get_mut(topic).expect("the topic was inserted")
}
