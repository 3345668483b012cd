//! A Kafka topic: each message is a record, confirmed by all in-sync replicas of its partition.
//!
//! `properties` has librdkafka's properties, `producer` the live producer with the thread for its callbacks (`callbacks`).
//! `delivery` sends records and awaits their results, `restored` makes keys and headers, `errors` classifies
//! error codes.
//!
//! librdkafka puts records into batches. A broker accepts or refuses a batch as a whole, because of one record or of the
//! total size. So a rejected record is sent once more in a batch of its own; only that result is final.
//!
//! The failure domain is the partition: `domains` has names and numbers, `murmur2` computes the partition of a key.
//!
//! If each message names its topic, a missing topic fails its own messages only.

mod callbacks;
mod delivery;
mod domains;
mod errors;
mod murmur2;
mod producer;
mod properties;
mod restored;

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode},
    metadata::MetadataTopic,
    producer::Producer as _,
};
use tokio::time::Instant;

use self::{
    callbacks::RecordResult,
    domains::{BatchDomains, PartitionCounts, domain},
    producer::{LiveProducer, Producer},
};
use crate::sink::{Delivery, Domain, Report, Sink};
use crate::{
    connector::kafka::{KafkaSinkSettings, blocking, with_remedy},
    sink::Outcome,
};

/// Maximum wait for an answer to `check`.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

pub struct KafkaSink {
    config: KafkaSinkSettings,
    shared: Producer,
    /// Sends rejected records again, each in a batch of its own. Created on first use.
    solo: OnceLock<Result<Producer, String>>,
    partitions: Arc<PartitionCounts>,
    /// Whether librdkafka chooses the partition of a key as the Java producer does.
    is_murmur2: bool,
}

impl KafkaSink {
    /// Connects and reconnects in the background.
    ///
    /// # Errors
    /// The settings that librdkafka rejects.
    pub fn new(config: &KafkaSinkSettings) -> Result<Self, String> {
        let settings = properties::producer(config);
        let is_murmur2 = matches!(settings.get("partitioner"), Some("murmur2" | "murmur2_random"));
        let shared = Producer::new(settings, name(config))?;
        Ok(Self { config: config.clone(), shared, solo: OnceLock::new(), partitions: Arc::default(), is_murmur2 })
    }

    /// How librdkafka chooses the partition of a key.
    pub fn partitioner(config: &KafkaSinkSettings) -> String {
        // The defaults have a partitioner, so there always is one.
        properties::producer(config).get("partitioner").unwrap_or_default().to_owned()
    }

    fn solo(&self) -> Result<&Producer, String> {
        let made = self.solo.get_or_init(|| {
            let kafka = name(&self.config);
            tracing::warn!(
                kafka,
                "a batch was rejected; its records are sent one by one. If the topic accepts only smaller batches than \
                 librdkafka sends, set `batch.size` under `options`"
            );
            Producer::new(properties::solo_producer(&self.config), kafka)
        });
        made.as_ref().map_err(Clone::clone)
    }

    /// The topic of each message, and the indices of the messages that are allowed to be sent. The others are reported.
    fn topics(&self, batch: &[Delivery], report: &Report) -> (Vec<Cow<'_, str>>, Vec<usize>) {
        let mut indices = Vec::with_capacity(batch.len());
        let topics = batch.iter().enumerate().map(|(index, delivery)| {
            match self.config.topic.render_allowed(&self.config.allow, &delivery.route, &delivery.metadata) {
                Ok(topic) => {
                    indices.push(index);
                    topic
                }
                Err(error) => {
                    report.outcome(index, Outcome::Unsendable { error });
                    Cow::default()
                }
            }
        });
        (topics.collect(), indices)
    }

    /// Sends and reports the messages at `indices`. Returns, unreported, those to send again in batches of their own.
    /// With `last` there are none.
    async fn send_through(
        &self,
        producer: Result<&Producer, String>,
        (batch, topics): (&[Delivery], &[Cow<'_, str>]),
        indices: Vec<usize>,
        last: bool,
        (deadline, report): (Instant, &Report),
    ) -> Vec<usize> {
        let live = producer.and_then(|producer| {
            let live = match self.config.topic.as_constant() {
                Some(_) => producer.get(),
                None => producer.get_for(indices.iter().map(|index| &*topics[*index])),
            };
            live.map(|live| (live, &producer.room))
        });
        let (live, room) = match live {
            Ok(live) => live,
            Err(error) => {
                for index in indices {
                    report.outcome(index, Outcome::Unavailable { error: error.clone() });
                }
                return Vec::new();
            }
        };
        let mut rejected = Vec::new();
        let failed = |index: usize, domain: Option<Domain>, code| {
            // If all brokers are down, the failure concerns the sink, not one partition.
            let domain = domain.filter(|_| !live.client().context().all_down());
            if domain.is_some() {
                // The breaker asks for the domains of later messages.
                self.partitions.refresh(&live, &topics[index]);
            }
            report.outcome_in(index, domain, self.outcome(code, &topics[index], &live));
        };
        let mut domains = BatchDomains::default();
        let report_result = |RecordResult { index, partition, error }: RecordResult| {
            let domain = partition.map(|partition| domains.get(&topics[index], partition));
            match error {
                None => report.outcome_in(index, domain, Outcome::Confirmed),
                Some(code) if !last && domain.is_some() && errors::may_be_another_record(code) => rejected.push(index),
                Some(code) => failed(index, domain, code),
            }
        };
        for index in delivery::deliver((&live, room), topics, batch, indices, deadline, report_result).await {
            failed(index, self.domain_in(&topics[index], &batch[index]), RDKafkaErrorCode::OperationTimedOut);
        }
        rejected
    }

    /// `None` while the number of partitions is unknown, or if the key does not decide the partition.
    fn domain_in(&self, topic: &str, delivery: &Delivery) -> Option<Domain> {
        let key = restored::key(&delivery.metadata).filter(|key| self.is_murmur2 && !key.is_empty())?;
        Some(domain(topic, murmur2::partition(&key, self.partitions.get(topic)?)))
    }

    fn outcome(&self, code: RDKafkaErrorCode, topic: &str, live: &LiveProducer) -> Outcome {
        let error = text(code, topic, live);
        if self.config.topic.as_constant().is_none() && errors::concerns_topic(code) {
            return Outcome::Failed { error, retry_after: None };
        }
        errors::outcome(code, error)
    }
}

#[async_trait]
impl Sink for KafkaSink {
    fn timeout(&self) -> Duration {
        self.config.timeout.0
    }

    fn has_destinations(&self) -> bool {
        self.config.topic.as_constant().is_none()
    }

    fn domain(&self, delivery: &Delivery) -> Option<Domain> {
        let (route, metadata) = (&delivery.route, &delivery.metadata);
        let topic = self.config.topic.render_allowed(&self.config.allow, route, metadata).ok()?;
        // Operators might have added partitions.
        self.partitions.refresh(&self.shared.get().ok()?, &topic);
        self.domain_in(&topic, delivery)
    }

    async fn send(&self, batch: Vec<Delivery>, report: Report) {
        let until = (Instant::now() + self.config.timeout.0, &report);
        let (topics, indices) = self.topics(&batch, &report);
        let all = (&*batch, &*topics);
        let rejected = self.send_through(Ok(&self.shared), all, indices, false, until).await;
        if !rejected.is_empty() {
            self.send_through(self.solo(), all, rejected, true, until).await;
        }
    }

    /// Looks up the topic. Brokers that create topics automatically create it, as sending would. If the messages name
    /// the topic, any answer of a broker suffices.
    async fn check(&self) -> Result<(), String> {
        let live = self.shared.get()?;
        let topic = self.config.topic.as_constant().map(str::to_owned);
        let limit = self.config.timeout.0.min(CHECK_TIMEOUT);
        let brokers = self.config.cluster().addresses();
        blocking(move || check_topic(&live, topic.as_deref(), &brokers, limit)).await.unwrap_or_else(Err)
    }

    async fn close(&self) {
        self.shared.close().await;
        if let Some(Ok(solo)) = self.solo.get() {
            solo.close().await;
        }
    }
}

/// Blocks for `limit` at most.
fn check_topic(live: &LiveProducer, topic: Option<&str>, brokers: &str, limit: Duration) -> Result<(), String> {
    let error = match live.client().fetch_metadata(topic, limit) {
        // Errors of single topics do not count when all topics are looked up.
        Ok(_) if topic.is_none() => return Ok(()),
        Ok(metadata) => match metadata.topics().iter().find_map(MetadataTopic::error) {
            Some(error) => RDKafkaErrorCode::from(error),
            None => return Ok(()),
        },
        Err(KafkaError::MetadataFetch(code)) => code,
        Err(other) => return Err(other.to_string()),
    };
    let topic = topic.unwrap_or("of the message");
    Err(with_remedy(text(error, topic, live), error, brokers, topic))
}

/// Adds the likely cause if the code only says that the destination is unavailable.
fn text(code: RDKafkaErrorCode, topic: &str, live: &LiveProducer) -> String {
    let is_unavailable = matches!(errors::outcome(code, String::new()), Outcome::Unavailable { .. });
    let client = live.client();
    let cause = client.fatal_error().map(|(_, text)| text).or_else(|| client.context().cause());
    match cause.filter(|_| is_unavailable) {
        Some(cause) => format!("topic {topic}: {code}: {cause}"),
        None => format!("topic {topic}: {code}"),
    }
}

fn name(config: &KafkaSinkSettings) -> String {
    format!("{}/{}", config.cluster().addresses(), config.topic.as_constant().unwrap_or("*"))
}

#[cfg(test)]
mod tests;
