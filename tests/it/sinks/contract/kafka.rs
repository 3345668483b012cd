use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use punctual::{connector::kafka::sink::KafkaSink, sink::Sink};

use super::{Arrived, Destination};
use crate::support::kafka::{self, MockBroker, Record};

/// A topic that takes records of 1 MiB, on the shared broker, or without one on a mock of it.
pub struct Topic {
    broker: String,
    name: String,
    _mock: Option<MockBroker>,
}

impl Topic {
    pub async fn start() -> Self {
        let name = kafka::topic_name();
        if let Some(broker) = kafka::shared().await {
            kafka::create_topic(&broker, &name, 3, &[("max.message.bytes", "2000000")]).await;
            return Self { broker, name, _mock: None };
        }
        let mock = kafka::mock_broker();
        Self { broker: mock.address.clone(), name, _mock: Some(mock) }
    }
}

#[async_trait]
impl Destination for Topic {
    fn name(&self) -> &'static str {
        "kafka"
    }

    fn sink(&self, port: u16, timeout: Duration) -> Box<dyn Sink> {
        // A named broker may run elsewhere, the other ports are those of this machine.
        let broker = if port == self.port() { self.broker.clone() } else { format!("127.0.0.1:{port}") };
        let config = kafka::sink_config(&broker, &self.name, timeout, &[]);
        Box::new(KafkaSink::new(&config).expect("a valid configuration"))
    }

    fn port(&self) -> u16 {
        let (_, port) = self.broker.rsplit_once(':').expect("host:port");
        port.parse().expect("a port")
    }

    async fn arrived(&self) -> Vec<Arrived> {
        kafka::consume(&self.broker, &self.name).await.into_iter().map(arrived).collect()
    }

    fn release_slow(&self) -> bool {
        false
    }
}

fn arrived(record: Record) -> Arrived {
    assert_eq!(record.key.as_deref(), Some(b"customer 7".as_slice()));
    let number = |name| record.header(name).parse().expect("a number");
    let users = record.headers.iter().filter(|(name, _)| name.starts_with("X-"));
    let headers: BTreeMap<_, _> = users.map(|(name, value)| (name.to_lowercase(), value.clone())).collect();
    assert_eq!(record.headers.len(), headers.len() + 5, "{:?}", record.headers);
    Arrived {
        id: record.id().to_owned(),
        route: record.header("punctual-route").to_owned(),
        attempt: u32::try_from(number("punctual-attempt")).expect("it is small"),
        due: number("punctual-due"),
        content_type: Some(record.header("content-type").to_owned()),
        headers,
        payload: record.payload.expect("not a tombstone"),
    }
}
