use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use clap::Args;
use rdkafka::{
    ClientConfig, ClientContext,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    error::{KafkaError, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{Result, lateness, message};

/// Pause before a record is sent again because librdkafka's queue was full.
const FULL: Duration = Duration::from_micros(200);
/// Maximum wait for a broker that starts, and for the last confirmations.
const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Args)]
pub struct TopicOptions {
    #[arg(long)]
    brokers: String,
    #[arg(long)]
    topic: String,
    #[arg(long, default_value_t = 4)]
    partitions: i32,
}

pub async fn create(options: &TopicOptions) -> Result<Value> {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", &options.brokers).set("log_level", "2").create()?;
    let topic = NewTopic::new(&options.topic, options.partitions, TopicReplication::Fixed(1));
    let patience = AdminOptions::new().operation_timeout(Some(PATIENCE)).request_timeout(Some(PATIENCE));
    for result in admin.create_topics([&topic], &patience).await? {
        result.map_err(|(topic, code)| format!("{topic}: {code}"))?;
    }
    Ok(json!({ "topic": options.topic }))
}

#[derive(Args)]
pub struct ProduceOptions {
    #[arg(long)]
    brokers: String,
    #[arg(long)]
    topic: String,
    #[arg(long)]
    count: u64,
    /// Bytes of a payload
    #[arg(long, default_value_t = 100)]
    size: usize,
}

struct Confirmed(Arc<AtomicU64>);

impl ClientContext for Confirmed {}

impl ProducerContext for Confirmed {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_ok() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Produces with the defaults of librdkafka, except idempotence. Records have the headers that punctual sends.
pub async fn produce(options: &ProduceOptions) -> Result<Value> {
    let confirmed = Arc::new(AtomicU64::new(0));
    let producer: ThreadedProducer<Confirmed> = ClientConfig::new()
        .set("bootstrap.servers", &options.brokers)
        .set("enable.idempotence", "true")
        .set("partitioner", "murmur2_random")
        .create_with_context(Confirmed(confirmed.clone()))?;
    // Connects first, so that the start is not measured.
    producer.client().fetch_metadata(Some(&options.topic), PATIENCE)?;
    let due = lateness::now() / 1000;
    let payload = message::payload(0, due, options.size);
    let due = due.to_string();
    let started = Instant::now();
    for number in 0..options.count {
        let id = message::id(usize::try_from(number)?);
        let header = |headers: OwnedHeaders, key, value| headers.insert(Header { key, value: Some(value) });
        let mut headers = OwnedHeaders::new_with_capacity(5);
        headers = header(headers, "content-type", "application/json");
        headers = header(headers, "punctual-id", &id);
        headers = header(headers, "punctual-route", "r0");
        headers = header(headers, "punctual-attempt", "1");
        headers = header(headers, "punctual-due", &due);
        let mut record = BaseRecord::<str, str>::to(&options.topic).payload(&payload).headers(headers);
        while let Err((error, same)) = producer.send(record) {
            if !matches!(error, KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)) {
                return Err(error.into());
            }
            record = same;
            tokio::time::sleep(FULL).await;
        }
    }
    producer.flush(PATIENCE)?;
    let seconds = started.elapsed().as_secs_f64();
    let count = confirmed.load(Ordering::Relaxed);
    if count != options.count {
        return Err(format!("{count} of {} records were confirmed", options.count).into());
    }
    Ok(json!({ "count": count, "seconds": seconds, "rate": count as f64 / seconds }))
}
