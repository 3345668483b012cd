//! The Kafka sink against real brokers, and against a mock of one for the errors that a real one does not give.

mod destinations;
mod errors;
mod faults;
mod load;
mod partial;
mod pipeline;
mod records;
mod refusals;
mod security;

use std::time::Duration;

use punctual::connector::kafka::sink::KafkaSink;

use crate::support::kafka;

/// Timeout of a sink with a broker that answers.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A topic of the test's own on the shared broker.
struct Topic {
    broker: String,
    name: String,
}

impl Topic {
    /// `None`: the test cannot run.
    async fn create(partitions: i32, settings: &[(&str, &str)]) -> Option<Self> {
        let topic = Self::missing().await?;
        kafka::create_topic(&topic.broker, &topic.name, partitions, settings).await;
        Some(topic)
    }

    /// A name, but no topic.
    async fn missing() -> Option<Self> {
        Some(Self { broker: kafka::shared().await?, name: kafka::topic_name() })
    }

    fn sink(&self, timeout: Duration, options: &[(&str, &str)]) -> KafkaSink {
        sink(&self.broker, &self.name, timeout, options)
    }

    async fn records(&self) -> Vec<kafka::Record> {
        kafka::consume(&self.broker, &self.name).await
    }
}

fn sink(broker: &str, topic: &str, timeout: Duration, options: &[(&str, &str)]) -> KafkaSink {
    KafkaSink::new(&kafka::sink_config(broker, topic, timeout, options)).expect("a valid configuration")
}
