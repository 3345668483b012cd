//! The partitions of the sink's topics: their names as failure domains, and how many a topic has.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rdkafka::producer::Producer as _;
use tokio::{runtime::Handle, time::Instant};

use super::producer::Live;
use crate::sink::Domain;

/// Topics that are remembered, with their partitions: some ten KiB of each at most.
const MAX_TOPICS: usize = 1000;
/// Least time between two questions about a topic: partitions are added by hand.
const LEARN_INTERVAL: Duration = Duration::from_secs(5);
/// Longest time for an answer.
const LEARN_TIMEOUT: Duration = Duration::from_secs(4);

#[derive(Default)]
pub struct Domains(Mutex<HashMap<Box<str>, Topic>>);

#[derive(Default)]
struct Topic {
    /// By partition.
    names: Vec<Option<Domain>>,
    /// Unknown until asked for.
    partitions: Option<usize>,
    asked: Option<Instant>,
}

impl Domains {
    /// `TOPIC/PARTITION`
    pub fn name(&self, topic: &str, partition: usize) -> Domain {
        let mut topics = self.topics();
        let names = &mut entry(&mut topics, topic).names;
        if names.len() <= partition {
            names.resize(partition + 1, None);
        }
        Arc::clone(names[partition].get_or_insert_with(|| format!("{topic}/{partition}").into()))
    }

    /// How many partitions a topic has; `None` while that is not known.
    pub fn partitions(&self, topic: &str) -> Option<usize> {
        self.topics().get(topic)?.partitions
    }

    /// Asks for the number of partitions, unless that was done a moment ago. Returns at once.
    pub fn learn(self: &Arc<Self>, live: &Arc<Live>, topic: &str) {
        let Ok(runtime) = Handle::try_current() else { return };
        {
            let mut topics = self.topics();
            let asked = &mut entry(&mut topics, topic).asked;
            if asked.is_some_and(|asked| asked.elapsed() < LEARN_INTERVAL) {
                return;
            }
            *asked = Some(Instant::now());
        }
        let (domains, live, topic) = (Arc::clone(self), Arc::clone(live), topic.to_owned());
        runtime.spawn_blocking(move || {
            // Without an answer what was known before stands.
            let Ok(metadata) = live.producer().client().fetch_metadata(Some(&topic), LEARN_TIMEOUT) else { return };
            let found = metadata.topics().iter().find(|found| found.name() == topic);
            if let Some(count) = found.map(|found| found.partitions().len()).filter(|count| *count > 0) {
                entry(&mut domains.topics(), &topic).partitions = Some(count);
            }
        });
    }

    fn topics(&self) -> MutexGuard<'_, HashMap<Box<str>, Topic>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn entry<'a>(topics: &'a mut HashMap<Box<str>, Topic>, topic: &str) -> &'a mut Topic {
    if !topics.contains_key(topic) {
        if topics.len() >= MAX_TOPICS {
            topics.clear();
        }
        topics.insert(topic.into(), Topic::default());
    }
    topics.get_mut(topic).expect("it is there")
}
