use clap::Args;
use lapin::{
    Connection, ConnectionProperties, ExchangeKind,
    options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions, QueuePurgeOptions},
    types::FieldTable,
};
use serde_json::{Value, json};

use crate::Result;

#[derive(Args)]
pub struct Options {
    #[arg(long)]
    url: String,
    #[arg(long)]
    name: String,
}

/// `messages` is the number of messages that were in the queue.
pub async fn run(options: &Options) -> Result<Value> {
    let connection = Connection::connect(&options.url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let (name, nothing) = (&*options.name, FieldTable::default);
    let exchange = ExchangeDeclareOptions { durable: true, ..Default::default() };
    channel.exchange_declare(name.into(), ExchangeKind::Direct, exchange, nothing()).await?;
    let queue = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare(name.into(), queue, nothing()).await?;
    channel.queue_bind(name.into(), name.into(), name.into(), QueueBindOptions::default(), nothing()).await?;
    let messages = channel.queue_purge(name.into(), QueuePurgeOptions::default()).await?;
    connection.close(200, "done".into()).await?;
    Ok(json!({ "messages": messages }))
}
