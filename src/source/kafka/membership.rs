//! What others may know of the consumer while it runs.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rdkafka::{
    Offset,
    consumer::Consumer,
    error::{KafkaError, RDKafkaErrorCode},
    metadata::MetadataTopic,
};
use tokio::time::Instant;

use super::{context::Client, positions::Positions, record::Place};
use crate::config::Start;

pub struct Membership {
    topics: Vec<String>,
    start: Start,
    client: Mutex<Option<Arc<Client>>>,
    positions: Mutex<Positions>,
}

impl Membership {
    pub fn new(topics: &[String], start: Start) -> Self {
        Self { topics: topics.to_vec(), start, client: Mutex::default(), positions: Mutex::default() }
    }

    pub fn join(&self, client: &Arc<Client>) {
        *self.positions() = Positions::default();
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = Some(client.clone());
    }

    pub fn leave(&self) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub fn positions(&self) -> MutexGuard<'_, Positions> {
        self.positions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks for `limit` at most: whether all topics are there.
    ///
    /// # Errors
    /// What is wrong, for a person.
    pub fn ask(&self, client: &Client, limit: Duration) -> Result<(), String> {
        let deadline = Instant::now() + limit;
        for topic in &self.topics {
            let error = match client.fetch_metadata(Some(topic), left(deadline)) {
                Ok(metadata) => match metadata.topics().iter().find_map(MetadataTopic::error) {
                    Some(error) => RDKafkaErrorCode::from(error).to_string(),
                    None => continue,
                },
                Err(KafkaError::MetadataFetch(code)) => code.to_string(),
                Err(other) => other.to_string(),
            };
            return Err(format!("topic {topic}: {error}"));
        }
        Ok(())
    }

    /// Blocks for about `limit` at most: the records of our partitions that are not in Redis.
    pub fn lag(&self, limit: Duration) -> Option<u64> {
        let deadline = Instant::now() + limit;
        let client = self.client.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let assigned = client.assignment().ok()?;
        if assigned.count() == 0 {
            return Some(0);
        }
        let committed = client.committed_offsets(assigned, left(deadline)).ok()?;
        let mut lag = 0;
        for one in committed.elements() {
            let place = Place { topic: one.topic().into(), partition: one.partition() };
            let (low, high) = client.fetch_watermarks(one.topic(), one.partition(), left(deadline)).ok()?;
            let taken = self.positions().next(&place);
            let next = match (taken, one.offset()) {
                (Some(next), _) | (None, Offset::Offset(next)) => next,
                (None, _) => match self.start {
                    Start::Earliest => low,
                    Start::Latest => high,
                },
            };
            lag += u64::try_from(high - next.max(low)).unwrap_or(0);
        }
        Some(lag)
    }
}

/// librdkafka takes zero for ever where it asks brokers.
fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}
