//! The partitions of the sink's topics: their names as failure domains, and their number.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use rdkafka::producer::Producer as _;
use tokio::{runtime::Handle, time::Instant};

use super::producer::LiveProducer;
use crate::sink::Domain;

/// Maximum topics that are kept: some hundred KiB with their names.
const MAX_TOPICS: usize = 1000;
/// Minimum time between two requests about a topic: operators add partitions, so the number seldom changes.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum wait for the metadata of a topic.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(4);

/// `TOPIC/PARTITION`
pub fn domain(topic: &str, partition: usize) -> Domain {
    format!("{topic}/{partition}").into()
}

/// The domains of one batch: each name is made once while the topic stays the same.
#[derive(Default)]
pub struct BatchDomains<'a> {
    topic: &'a str,
    known: BTreeMap<usize, Domain>,
}

impl<'a> BatchDomains<'a> {
    pub fn get(&mut self, topic: &'a str, number: usize) -> Domain {
        if self.topic != topic {
            (self.topic, self.known) = (topic, BTreeMap::new());
        }
        Arc::clone(self.known.entry(number).or_insert_with(|| domain(topic, number)))
    }
}

/// The number of partitions of topics.
#[derive(Default)]
pub struct PartitionCounts(Mutex<HashMap<Box<str>, TopicEntry>>);

struct TopicEntry {
    requested: Instant,
    /// `None` until a broker has answered.
    partitions: Option<usize>,
}

impl PartitionCounts {
    /// The number of partitions of a topic; `None` while it is unknown.
    pub fn get(&self, topic: &str) -> Option<usize> {
        self.topics().get(topic)?.partitions
    }

    /// Requests the number of partitions, at most once per `REFRESH_INTERVAL`. Returns at once.
    pub fn refresh(self: &Arc<Self>, live: &Arc<LiveProducer>, topic: &str) {
        let Ok(runtime) = Handle::try_current() else { return };
        if !self.begin_request(topic, Instant::now()) {
            return;
        }
        let (counts, live, topic) = (Arc::clone(self), Arc::clone(live), topic.to_owned());
        runtime.spawn_blocking(move || {
            // Without an answer, the known number stays.
            let Ok(metadata) = live.client().fetch_metadata(Some(&topic), REFRESH_TIMEOUT) else { return };
            let found = metadata.topics().iter().find(|found| found.name() == topic);
            if let Some(count) = found.map(|found| found.partitions().len()).filter(|count| *count > 0)
                && let Some(entry) = counts.topics().get_mut(&*topic)
            {
                entry.partitions = Some(count);
            }
        });
    }

    /// Notes that the number is requested now. Returns false if the last request is too recent.
    fn begin_request(&self, topic: &str, now: Instant) -> bool {
        let mut topics = self.topics();
        match topics.get_mut(topic) {
            Some(entry) if now.duration_since(entry.requested) < REFRESH_INTERVAL => return false,
            Some(entry) => entry.requested = now,
            None => {
                if topics.len() >= MAX_TOPICS {
                    topics.clear();
                }
                topics.insert(topic.into(), TopicEntry { requested: now, partitions: None });
            }
        }
        true
    }

    fn topics(&self) -> MutexGuard<'_, HashMap<Box<str>, TopicEntry>> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_partition_of_each_topic_is_a_domain() {
        let mut domains = BatchDomains::default();
        for (topic, number, name) in [("a", 1, "a/1"), ("a", 2, "a/2"), ("b", 1, "b/1"), ("a", 1, "a/1")] {
            assert_eq!(&*domains.get(topic, number), name);
        }
        let kept = domains.get("a", 1);
        assert!(Arc::ptr_eq(&kept, &domains.get("a", 1)), "it is made once");
    }

    #[test]
    fn the_partitions_of_a_topic_are_requested_at_most_every_five_seconds() {
        let (counts, began) = (PartitionCounts::default(), Instant::now());
        let requested = [("a", 0), ("b", 1), ("a", 4999), ("a", 5000), ("b", 5000), ("a", 5001), ("b", 6001)];
        let requested = requested.map(|(topic, at)| counts.begin_request(topic, began + Duration::from_millis(at)));
        assert_eq!(requested, [true, true, false, true, false, false, true]);
    }

    #[test]
    fn a_bounded_number_of_topics_is_known() {
        let (counts, now) = (PartitionCounts::default(), Instant::now());
        for topic in 0..MAX_TOPICS {
            assert!(counts.begin_request(&topic.to_string(), now));
        }
        assert!(!counts.begin_request("0", now));
        assert!(counts.begin_request("one more", now) && counts.begin_request("0", now));
        assert_eq!(counts.topics().len(), 2);
    }
}
