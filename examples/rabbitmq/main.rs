//! A consumer that prints a line per message: id, lateness, properties and body.
//!
//! `rabbitmq URL EXCHANGE`: declares the exchange and a queue bound to it that is deleted with the consumer. Prints
//! `reading EXCHANGE`, and after that each new message.

use std::{
    env,
    error::Error,
    time::{SystemTime, UNIX_EPOCH},
};

use futures::StreamExt;
use lapin::{
    Connection, ConnectionProperties, ExchangeKind,
    message::Delivery,
    options::{BasicConsumeOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let (Some(url), Some(exchange)) = (arguments.next(), arguments.next()) else {
        return Err("usage: rabbitmq URL EXCHANGE".into());
    };
    let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
    let (channel, none) = (connection.create_channel().await?, FieldTable::default());
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare((&*exchange).into(), ExchangeKind::Topic, durable, none.clone()).await?;
    let own = QueueDeclareOptions { exclusive: true, auto_delete: true, ..QueueDeclareOptions::default() };
    let queue = channel.queue_declare("".into(), own, none.clone()).await?.name().clone();
    let every_key = "#".into();
    let binding = QueueBindOptions::default();
    channel.queue_bind(queue.clone(), (&*exchange).into(), every_key, binding, none.clone()).await?;
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let mut messages = channel.basic_consume(queue, "example".into(), options, none).await?;
    println!("reading {exchange}");
    while let Some(message) = messages.next().await {
        show(&message?);
    }
    Err("the broker closed the connection".into())
}

fn show(message: &Delivery) {
    let properties = &message.properties;
    let due = properties.headers().as_ref().and_then(|headers| headers.inner().get("punctual-due").cloned());
    let late = match due {
        Some(AMQPValue::LongLongInt(due)) => format!("{:+6} ms", wall_clock() - due),
        _ => "no due time".to_owned(),
    };
    let id = properties.message_id().as_ref().map_or("?", |id| id.as_str());
    let correlation = properties.correlation_id().as_ref().map_or("", |id| id.as_str());
    let body = String::from_utf8_lossy(&message.data);
    println!("rabbitmq {id:<12} {late}  {} {correlation}  {body}", message.routing_key);
}

/// Epoch milliseconds.
#[expect(clippy::disallowed_methods, reason = "compared with Redis' clock, on the same machine")]
fn wall_clock() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    i64::try_from(since).unwrap_or(i64::MAX)
}
