//! A Kafka topic: each message is a record, confirmed by all in-sync replicas of its partition.
//!
//! `settings` makes librdkafka's properties, `producer` keeps the live producer, `polled` has the thread for its
//! callbacks, `delivery` hands records over and awaits their results, `restored` has what a Kafka source took that is
//! no text, `context` is what librdkafka calls back, `errors` says what a code means.
//!
//! librdkafka puts records into batches, and a broker takes or refuses a batch as a whole, for one bad record or for
//! the sum of them. So what a broker rejects is sent once more, each record alone; only that answer is final.
//!
//! A partition is what fails alone: `domains` names them, and `murmur2` tells beforehand where a key leads to.
//!
//! Where each message names its topic, a topic that is not there is the failure of its messages; the others go on.

mod context;
mod delivery;
mod domains;
mod errors;
mod murmur2;
mod polled;
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
    context::{Concluded, Failure},
    domains::Domains,
    producer::{Live, Producer},
};
use crate::sink::{Delivery, Domain, Report, Sink};
use crate::{
    connector::kafka::{KafkaSinkSettings, with_remedy},
    sink::Outcome,
};

/// Longest wait for an answer to `check`.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

pub struct KafkaSink {
    config: KafkaSinkSettings,
    shared: Producer,
    /// For records that may have been rejected for others in their batch; made when it is first needed.
    solo: OnceLock<Result<Producer, String>>,
    domains: Arc<Domains>,
    /// Whether a key's partition is that of Java's producer.
    is_murmur2: bool,
}

impl KafkaSink {
    /// Connects in the background, and again whenever it must.
    ///
    /// # Errors
    /// Which settings librdkafka does not take.
    pub fn new(config: &KafkaSinkSettings) -> Result<Self, String> {
        let settings = properties::producer(config);
        let is_murmur2 = matches!(settings.get("partitioner"), Some("murmur2" | "murmur2_random"));
        let shared = Producer::new(settings, name(config))?;
        Ok(Self { config: config.clone(), shared, solo: OnceLock::new(), domains: Arc::default(), is_murmur2 })
    }

    fn solo(&self) -> Result<&Producer, String> {
        let made = self.solo.get_or_init(|| {
            let kafka = name(&self.config);
            tracing::warn!(
                kafka,
                "a batch was rejected, its records are sent one by one; if the topic takes smaller batches than \
                 librdkafka sends, set its `batch.size` under `options`"
            );
            Producer::new(properties::solo_producer(&self.config), kafka)
        });
        made.as_ref().map_err(Clone::clone)
    }

    /// The topic of each, and the indices of those that may go there; the others are reported.
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

    /// Returns what a broker rejected, which is to be sent again alone, unless `last`.
    async fn pass(
        &self,
        producer: Result<&Producer, String>,
        (batch, topics): (&[Delivery], &[Cow<'_, str>]),
        indices: Vec<usize>,
        last: bool,
        (deadline, report): (Instant, &Report),
    ) -> Vec<usize> {
        let live = producer.and_then(|producer| match self.config.topic.as_constant() {
            Some(_) => producer.get(),
            None => producer.get_for(indices.iter().map(|index| &*topics[*index])),
        });
        let live = match live {
            Ok(live) => live,
            Err(error) => {
                for index in indices {
                    report.outcome(index, Outcome::Unavailable { error: error.clone() });
                }
                return Vec::new();
            }
        };
        let mut doubtful = Vec::new();
        let failed = |index: usize, domain: Option<Domain>, code| {
            // Without a broker, every partition is in trouble.
            let domain = domain.filter(|_| !live.producer().client().context().all_down());
            if domain.is_some() {
                // From now on it will be asked where messages lead to.
                self.domains.learn(&live, &topics[index]);
            }
            report.outcome_in(index, domain, self.outcome(code, &topics[index], &live));
        };
        let conclude = |Concluded { index, partition, result }: Concluded| {
            let domain = || partition.map(|partition| self.domains.name(&topics[index], partition));
            match result {
                Ok(()) => report.outcome_in(index, domain(), Outcome::Confirmed),
                Err(Failure { code, local: false }) if !last && errors::may_be_another_record(code) => {
                    doubtful.push(index);
                }
                Err(Failure { code, .. }) => failed(index, domain(), code),
            }
        };
        for index in delivery::deliver(&live, topics, batch, indices, deadline, conclude).await {
            failed(index, self.domain_in(&topics[index], &batch[index]), RDKafkaErrorCode::OperationTimedOut);
        }
        doubtful
    }

    /// As far as it is known how many partitions the topic has.
    fn domain_in(&self, topic: &str, delivery: &Delivery) -> Option<Domain> {
        let key = restored::key(&delivery.metadata).filter(|key| self.is_murmur2 && !key.is_empty())?;
        let partitions = self.domains.partitions(topic)?;
        Some(self.domains.name(topic, murmur2::partition(&key, partitions)))
    }

    fn outcome(&self, code: RDKafkaErrorCode, topic: &str, live: &Live) -> Outcome {
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

    fn domain(&self, delivery: &Delivery) -> Option<Domain> {
        let (route, metadata) = (&delivery.route, &delivery.metadata);
        let topic = self.config.topic.render_allowed(&self.config.allow, route, metadata).ok()?;
        // More partitions may have been added.
        self.domains.learn(&self.shared.get().ok()?, &topic);
        self.domain_in(&topic, delivery)
    }

    async fn send(&self, batch: Vec<Delivery>, report: Report) {
        let until = (Instant::now() + self.config.timeout.0, &report);
        let (topics, indices) = self.topics(&batch, &report);
        let all = (&*batch, &*topics);
        let doubtful = self.pass(Ok(&self.shared), all, indices, false, until).await;
        if !doubtful.is_empty() {
            self.pass(self.solo(), all, doubtful, true, until).await;
        }
    }

    /// Asks a broker for the topic. Where brokers create topics by themselves, that creates it, as sending would.
    /// Where the messages name it, any answer will do.
    async fn check(&self) -> Result<(), String> {
        let live = self.shared.get()?;
        let topic = self.config.topic.as_constant().map(str::to_owned);
        let limit = self.config.timeout.0.min(CHECK_TIMEOUT);
        let brokers = self.config.cluster().addresses();
        let asked = tokio::task::spawn_blocking(move || ask(&live, topic.as_deref(), &brokers, limit));
        asked.await.unwrap_or_else(|panic| Err(panic.to_string()))
    }

    async fn close(&self) {
        self.shared.close().await;
        if let Some(Ok(solo)) = self.solo.get() {
            solo.close().await;
        }
    }
}

/// Blocks for `limit` at most.
fn ask(live: &Live, topic: Option<&str>, brokers: &str, limit: Duration) -> Result<(), String> {
    let error = match live.producer().client().fetch_metadata(topic, limit) {
        // Of all topics, some may well be in trouble.
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

/// Names the likely cause when the code itself says no more than that nobody answered.
fn text(code: RDKafkaErrorCode, topic: &str, live: &Live) -> String {
    let silent = matches!(errors::outcome(code, String::new()), Outcome::Unavailable { .. });
    match live.cause().filter(|_| silent) {
        Some(cause) => format!("topic {topic}: {code}: {cause}"),
        None => format!("topic {topic}: {code}"),
    }
}

fn name(config: &KafkaSinkSettings) -> String {
    format!("{}/{}", config.cluster().addresses(), config.topic.as_constant().unwrap_or("*"))
}
