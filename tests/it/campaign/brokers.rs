//! Two brokers of Kafka and one of RabbitMQ, with what arrived there.

use std::{
    collections::HashSet,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use lapin::{
    Channel, Connection, ConnectionProperties,
    message::Delivery,
    options::{BasicAckOptions, BasicGetOptions},
    types::AMQPValue,
};
use tokio::{
    sync::Mutex as Turn,
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{history::Arrival, producers::INPUT};
use crate::{
    program::eventually,
    support::{
        RabbitMq,
        kafka::{self, Broker, Listener, Record},
        port::Port,
        proxy::Proxy,
        receiver::wall_clock,
    },
};

/// The topic, the exchange and the queue.
pub const NAME: &str = "campaign";
/// The brokers of the partitions of the topic: the second one has a partition alone.
const NODES: [i32; 3] = [1, 2, 1];
/// Partitions of the topic of the source, which are all on the first broker.
const INPUT_PARTITIONS: i32 = 3;
/// Between two looks at an empty queue.
const PAUSE: Duration = Duration::from_millis(10);
/// For one answer of RabbitMQ.
const ANSWER: Duration = Duration::from_secs(3);
/// Maximum time until the queue is read.
const MAX_READ: Duration = Duration::from_secs(30);

pub struct Brokers {
    pub kafka: Turn<Broker>,
    pub second: Turn<Broker>,
    pub rabbitmq: Turn<RabbitMq>,
    kafka_address: String,
    rabbitmq_port: u16,
    /// Between the instances and each broker of Kafka.
    pub kafka_paths: [Proxy; 2],
    /// Between the instances and RabbitMQ.
    pub rabbitmq_path: Proxy,
    /// The brokers of Kafka listen on these, behind `kafka_paths`.
    _kafka_ports: [Port; 2],
    taken: Arc<Mutex<Vec<Arrival>>>,
    taking: JoinHandle<()>,
}

impl Brokers {
    /// `None`: they are not installed.
    pub async fn start() -> Option<Self> {
        if !Path::new("/usr/lib/rabbitmq/bin/rabbitmq-server").exists() || !kafka::installed() {
            return None;
        }
        let kafka_ports = [(); 2].map(|()| Port::reserve());
        let kafka_paths = kafka_ports.each_ref().map(|port| Proxy::start(port.number()));
        let behind = |broker: usize| Listener {
            name: "INSTANCES",
            protocol: "PLAINTEXT",
            port: kafka_ports[broker].number(),
            advertised: kafka_paths[broker].port(),
        };
        let (kafka, rabbitmq) =
            (Broker::start_with(|_| (vec![behind(0)], String::new())).await?, RabbitMq::start().await);
        let kafka_address = kafka.address();
        kafka::create_topic(&kafka_address, INPUT, INPUT_PARTITIONS, &[]).await;
        let second = kafka.join(&[behind(1)]).await;
        kafka::create_topic_on(&kafka_address, NAME, &NODES).await;
        rabbitmq.declare(NAME, NAME).await;
        rabbitmq.declare(INPUT, INPUT).await;
        let (taken, rabbitmq_port) = (Arc::<Mutex<Vec<Arrival>>>::default(), rabbitmq.port());
        let taking = tokio::spawn(take(rabbitmq_port, Arc::clone(&taken)));
        Some(Self {
            kafka: Turn::new(kafka),
            second: Turn::new(second),
            rabbitmq: Turn::new(rabbitmq),
            kafka_address,
            rabbitmq_port,
            kafka_paths,
            _kafka_ports: kafka_ports,
            rabbitmq_path: Proxy::start(rabbitmq_port),
            taken,
            taking,
        })
    }

    /// The sinks, as YAML.
    pub fn sinks(&self) -> String {
        format!(
            "  topic: {{ type: kafka, brokers: [{}], topic: {NAME}, timeout: 2s }}\n  \
             queue: {{ type: rabbitmq, url: 'amqp://127.0.0.1:{}/%2f', exchange: {NAME}, routing_key: {NAME}, timeout: 2s }}\n",
            self.kafka_servers(),
            self.rabbitmq_path.port()
        )
    }

    /// Those of Kafka, as the instances know them.
    fn kafka_servers(&self) -> String {
        self.kafka_paths.each_ref().map(|path| format!("'localhost:{}'", path.port())).join(", ")
    }

    /// The sources, as YAML. The partitions of a killed instance are read again when its session ends.
    pub fn sources(&self) -> String {
        format!(
            "  from-kafka: {{ type: kafka, brokers: [{}], topics: [{INPUT}], group_id: punctual, start: earliest, \
             options: {{ session.timeout.ms: 6000 }}, route: from-kafka }}\n  \
             from-rabbitmq: {{ type: rabbitmq, url: 'amqp://127.0.0.1:{}/%2f', queue: {INPUT}, id_from: message_id, \
             route: from-rabbitmq }}\n",
            self.kafka_servers(),
            self.rabbitmq_path.port()
        )
    }

    /// The address of Kafka and the port of RabbitMQ.
    pub fn addresses(&self) -> (&str, u16) {
        (&self.kafka_address, self.rabbitmq_port)
    }

    /// All that arrived so far, of the ids with this prefix.
    pub async fn arrivals(&self, prefix: &str) -> Vec<Arrival> {
        let rabbitmq = self.rabbitmq.lock().await;
        eventually("the queue is read", MAX_READ, async || (rabbitmq.depth(NAME).await? == 0).then_some(())).await;
        sleep(PAUSE * 10).await;
        let records = kafka::consume(&self.kafka_address, NAME).await;
        let mut arrivals: Vec<Arrival> = records.iter().map(of_record).collect();
        arrivals.extend(self.taken.lock().expect("no panic under this lock").iter().cloned());
        arrivals.retain(|arrival| arrival.id.starts_with(prefix));
        // Partitions are read in sequence.
        arrivals.sort_by_key(|arrival| arrival.at);
        arrivals
    }
}

impl Drop for Brokers {
    fn drop(&mut self) {
        self.taking.abort();
    }
}

/// Takes messages from RabbitMQ, over all its outages.
async fn take(port: u16, taken: Arc<Mutex<Vec<Arrival>>>) {
    let url = format!("amqp://127.0.0.1:{port}/%2f");
    let mut ids = HashSet::new();
    let mut last_empty = wall_clock();
    loop {
        if let Ok(Ok(connection)) = timeout(ANSWER, Connection::connect(&url, ConnectionProperties::default())).await
            && let Ok(Ok(channel)) = timeout(ANSWER, connection.create_channel()).await
        {
            loop {
                let asked = wall_clock();
                let Some(got) = get(&channel).await else { break };
                let Some(delivery) = got else {
                    last_empty = asked;
                    sleep(PAUSE).await;
                    continue;
                };
                let arrival = of_delivery(&delivery, last_empty);
                // An acknowledgement can be lost: that is not a message that was sent twice.
                if ids.insert(arrival.id.clone()) || !delivery.redelivered {
                    taken.lock().expect("no panic under this lock").push(arrival);
                }
                if delivery.acker.ack(BasicAckOptions::default()).await.is_err() {
                    break;
                }
            }
        }
        sleep(PAUSE * 10).await;
    }
}

/// `None`: the connection is lost. `Some(None)`: the queue is empty.
async fn get(channel: &Channel) -> Option<Option<Delivery>> {
    let got = timeout(ANSWER, channel.basic_get(NAME.into(), BasicGetOptions::default())).await;
    Some(got.ok()?.ok()?.map(|message| message.delivery))
}

/// `since`: the queue was empty at this time.
fn of_delivery(delivery: &Delivery, since: u64) -> Arrival {
    let headers = delivery.properties.headers().as_ref().map(|table| table.inner().clone()).unwrap_or_default();
    let text = |name: &str| match headers.iter().find(|(key, _)| key.as_str() == name).map(|(_, value)| value) {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        Some(AMQPValue::LongLongInt(number)) => number.to_string(),
        _ => String::new(),
    };
    let id = delivery.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default();
    Arrival::confirmed(id, &delivery.data, [since, wall_clock()], text)
}

fn of_record(record: &Record) -> Arrival {
    let text = |name: &str| {
        record.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let at = u64::try_from(record.timestamp).expect("after 1970");
    Arrival::confirmed(record.id().to_owned(), record.payload.as_deref().unwrap_or_default(), [at; 2], text)
}
