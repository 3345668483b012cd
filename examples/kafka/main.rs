//! A consumer that prints a line per record: id, lateness of the write, and value.
//!
//! `kafka BROKERS TOPIC`: creates the topic if it is missing. Prints `reading TOPIC`, and after that each new record.

use std::{env, error::Error, time::Duration};

use rdkafka::{
    ClientConfig, Message, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, Consumer},
    message::{BorrowedMessage, Headers},
    metadata::MetadataTopic,
};

/// Maximum wait for the broker.
const PATIENCE: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let (Some(brokers), Some(topic)) = (arguments.next(), arguments.next()) else {
        return Err("usage: kafka BROKERS TOPIC".into());
    };
    let mut settings = ClientConfig::new();
    settings.set("bootstrap.servers", brokers).set("group.id", "punctual-example").set("enable.auto.commit", "false");
    create(&settings, &topic).await?;
    tokio::task::block_in_place(|| read(&settings.create()?, &topic))
}

async fn create(settings: &ClientConfig, topic: &str) -> Result<(), Box<dyn Error>> {
    let admin: AdminClient<DefaultClientContext> = settings.create()?;
    let options = AdminOptions::new().request_timeout(Some(PATIENCE));
    // Succeeds also if the topic exists already.
    admin.create_topics([&NewTopic::new(topic, 3, TopicReplication::Fixed(1))], &options).await?;
    Ok(())
}

fn read(consumer: &BaseConsumer, topic: &str) -> Result<(), Box<dyn Error>> {
    let metadata = consumer.fetch_metadata(Some(topic), PATIENCE)?;
    let mut list = TopicPartitionList::new();
    for partition in metadata.topics().iter().flat_map(MetadataTopic::partitions) {
        let (_, end) = consumer.fetch_watermarks(topic, partition.id(), PATIENCE)?;
        list.add_partition_offset(topic, partition.id(), Offset::Offset(end))?;
    }
    consumer.assign(&list)?;
    println!("reading {topic}");
    loop {
        match consumer.poll(PATIENCE) {
            Some(Ok(message)) => show(&message),
            Some(Err(error)) => eprintln!("{error}"),
            None => {}
        }
    }
}

fn show(message: &BorrowedMessage) {
    let header = |name| {
        let mut headers = message.headers()?.iter();
        headers.find(|header| header.key == name).and_then(|header| std::str::from_utf8(header.value?).ok())
    };
    let due = header("punctual-due").and_then(|due| due.parse::<i64>().ok());
    let late = match (due, message.timestamp().to_millis()) {
        (Some(due), Some(written)) => format!("{:+6} ms", written - due),
        _ => "no due time".to_owned(),
    };
    let value = String::from_utf8_lossy(message.payload().unwrap_or_default());
    println!("kafka {:<12} {late}  {value}", header("punctual-id").unwrap_or("?"));
}
