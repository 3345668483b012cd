//! Producers of the sources: records of Kafka, messages of RabbitMQ, members of sorted sets in Redis. Each of them knows of a
//! message whether its system has confirmed it.

use std::time::Duration;

use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldTable, ShortString},
};
use rdkafka::{
    ClientConfig, ClientContext,
    message::{Header, OwnedHeaders},
    producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer},
};
use redis::aio::MultiplexedConnection;
use tokio::{
    sync::{Mutex, oneshot},
    time::timeout,
};

use super::writers::Writers;

/// The topic, and the queue of RabbitMQ.
pub const INPUT: &str = "campaign-in";
/// The sorted set, in milliseconds.
pub const SET: &str = "campaign:set";
/// The queue of the Go library, in seconds.
pub const QUEUE: &str = "campaign";
/// Begin of the key that is written before `WAIT`.
const FENCE: &str = "campaign:fence";
/// For one answer of a system.
const ANSWER: Duration = Duration::from_secs(5);
/// Maximum time until replicas have a write, in milliseconds.
const REPLICATED: u64 = 1000;

/// The state of a message as its producer knows it.
pub enum Known {
    Confirmed,
    /// It was not sent.
    Refused,
    Unknown(String),
}

/// A message of a producer.
pub struct Input<'a> {
    pub id: &'a str,
    pub payload: &'a str,
    /// Epoch milliseconds.
    pub due: u64,
}

pub struct Producers {
    kafka: Option<ThreadedProducer<Reports>>,
    rabbitmq: Option<Mutex<Publisher>>,
    writers: Writers,
    /// The number of replicas that have a write before it is confirmed.
    replicas: usize,
}

impl Producers {
    /// `brokers`: the address of Kafka and the port of RabbitMQ.
    pub fn new(brokers: Option<(&str, u16)>, writers: Writers, replicas: usize) -> Self {
        let kafka = brokers.map(|(address, _)| {
            ClientConfig::new()
                .set("bootstrap.servers", address)
                // A record that is sent twice is stored once.
                .set("enable.idempotence", "true")
                .set("message.timeout.ms", "30000")
                .create_with_context(Reports)
                .expect("valid settings")
        });
        let rabbitmq = brokers.map(|(_, port)| Mutex::new(Publisher { port, link: None }));
        Self { kafka, rabbitmq, writers, replicas }
    }

    /// Sends a message to the source of this route.
    pub async fn send(&self, route: &str, input: &Input<'_>) -> Known {
        match route {
            "from-kafka" => self.produce(input).await,
            "from-rabbitmq" => self.rabbitmq.as_ref().expect("it is used").lock().await.publish(input).await,
            _ => self.write(route, input).await,
        }
    }

    async fn produce(&self, input: &Input<'_>) -> Known {
        let producer = self.kafka.as_ref().expect("it is used");
        let (report, reported) = oneshot::channel();
        let due = input.due.to_string();
        let headers = OwnedHeaders::new()
            .insert(Header { key: "punctual-deliver-at", value: Some(&due) })
            .insert(Header { key: "X-Version", value: Some("1") });
        let record =
            BaseRecord::with_opaque_to(INPUT, Box::new(report)).key(input.id).payload(input.payload).headers(headers);
        if let Err((error, _)) = producer.send(record) {
            return Known::Unknown(error.to_string());
        }
        match reported.await {
            Ok(Ok(())) => Known::Confirmed,
            Ok(Err(error)) => Known::Unknown(error),
            Err(_) => Known::Unknown("no report".into()),
        }
    }

    /// Adds a member to the sorted set of the source, on the first of the servers that takes writes.
    async fn write(&self, route: &str, input: &Input<'_>) -> Known {
        let mut known = Known::Refused;
        for port in self.writers.ports().await {
            let Some(mut link) = connection(port).await else { continue };
            let mut pipe = redis::pipe();
            pipe.atomic();
            if route == "from-set" {
                pipe.cmd("ZADD").arg(SET).arg(input.due).arg(input.payload);
            } else {
                let key = |name: &str| format!("dp:{QUEUE}:{name}");
                pipe.cmd("SET").arg(key(&format!("msg:{}", input.id))).arg(input.payload).arg("PX").arg(3_600_000);
                pipe.cmd("HSET").arg(key("retry:cnt")).arg(input.id).arg(1000);
                pipe.cmd("ZADD").arg(key("pending")).arg(input.due / 1000).arg(input.id);
            }
            let written = timeout(ANSWER, pipe.exec_async(&mut link)).await;
            known = match written {
                Ok(Ok(())) => self.replicated(&mut link, "").await,
                Ok(Err(error)) if is_refusal(&error) => Known::Refused,
                Ok(Err(error)) => Known::Unknown(error.to_string()),
                Err(_) => Known::Unknown("no answer".into()),
            };
            if !matches!(known, Known::Refused) {
                break;
            }
        }
        known
    }

    /// Waits until all replicas have what this connection has read or written. WAIT counts the last write of its connection: a
    /// call that finds its message has none. `tag`: the hash tag of what was written, on a cluster.
    pub async fn replicated(&self, link: &mut MultiplexedConnection, tag: &str) -> Known {
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg(format!("{FENCE}{tag}")).arg("").ignore().cmd("WAIT").arg(self.replicas).arg(REPLICATED);
        match timeout(ANSWER, pipe.query_async::<(usize,)>(link)).await {
            Ok(Ok((replicas,))) if replicas >= self.replicas => Known::Confirmed,
            other => Known::Unknown(format!("on the primary alone: {other:?}")),
        }
    }
}

/// `None`: the server does not answer.
pub async fn connection(port: u16) -> Option<MultiplexedConnection> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}/0")).expect("a valid address");
    timeout(ANSWER, client.get_multiplexed_async_connection()).await.ok()?.ok()
}

/// Whether the server has taken nothing.
pub fn is_refusal(error: &redis::RedisError) -> bool {
    let is_elsewhere = matches!(error.code(), Some("MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN"));
    let text = error.to_string();
    is_elsewhere
        || ["OOM", "READONLY", "ReadOnly", "LOADING", "BusyLoading", "MASTERDOWN", "MasterDown", "refused"]
            .iter()
            .any(|word| text.contains(word))
}

/// One connection. Its channel has one message that is not confirmed.
struct Publisher {
    port: u16,
    link: Option<(Connection, Channel)>,
}

impl Publisher {
    async fn publish(&mut self, input: &Input<'_>) -> Known {
        if self.link.is_none() {
            let url = format!("amqp://127.0.0.1:{}/%2f", self.port);
            let connecting = async {
                let connection = Connection::connect(&url, ConnectionProperties::default()).await.ok()?;
                let channel = connection.create_channel().await.ok()?;
                channel.confirm_select(ConfirmSelectOptions::default()).await.ok()?;
                Some((connection, channel))
            };
            self.link = timeout(ANSWER, connecting).await.ok().flatten();
        }
        let Some((_, channel)) = &self.link else { return Known::Refused };
        let mut headers = FieldTable::default();
        headers.insert("x-deliver-at".into(), AMQPValue::LongLongInt(i64::try_from(input.due).expect("a time")));
        headers.insert("X-Version".into(), AMQPValue::LongString("1".into()));
        let properties = BasicProperties::default()
            .with_message_id(ShortString::from(input.id))
            .with_delivery_mode(2)
            .with_headers(headers);
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let publishing = async {
            let payload = input.payload.as_bytes();
            channel.basic_publish("".into(), INPUT.into(), options, payload, properties).await?.await
        };
        let confirmed = timeout(ANSWER, publishing).await;
        match confirmed {
            Ok(Ok(Confirmation::Ack(None))) => Known::Confirmed,
            other => {
                self.link = None;
                Known::Unknown(format!("{other:?}"))
            }
        }
    }
}

/// Gives each report of a delivery to the task that waits for it.
struct Reports;

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<oneshot::Sender<Result<(), String>>>;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: Self::DeliveryOpaque) {
        let _ = opaque.send(result.as_ref().map(|_| ()).map_err(|(error, _)| error.to_string()));
    }
}

impl Drop for Producers {
    fn drop(&mut self) {
        if let Some(kafka) = &self.kafka {
            kafka.purge(rdkafka::producer::PurgeConfig::default().queue().inflight());
        }
    }
}
