//! The RabbitMQ sink against real brokers.

mod delivery;
mod destinations;
mod exchanges;
mod outages;
mod partial;
mod partial_program;
mod pipeline;
mod program;
mod refusals;
mod rights;
mod tls;
mod unroutable;

use punctual::{
    connector::rabbitmq::{RabbitMqSinkSettings, sink::RabbitMqSink},
    message::MessageId,
    sink::{Delivery, Outcome},
};

use crate::support::rabbitmq::Got;

fn sink(config: &RabbitMqSinkSettings) -> RabbitMqSink {
    RabbitMqSink::new(config).expect("a valid configuration")
}

/// A message with this routing key.
fn message(id: &str, key: &str) -> Delivery {
    let mut delivery = crate::support::delivery(id, format!("payload of {id}"));
    delivery.metadata.key = Some(key.to_owned());
    delivery
}

/// `count` messages with this routing key and with ids that begin with `prefix`.
fn messages(prefix: &str, count: usize, key: &str) -> Vec<Delivery> {
    (0..count).map(|n| message(&format!("{prefix}{n}"), key)).collect()
}

fn ids<'a>(got: impl IntoIterator<Item = &'a Got>) -> Vec<String> {
    let mut ids: Vec<String> = got.into_iter().map(|got| got.id.clone()).collect();
    ids.sort();
    ids
}

fn kinds(outcomes: &[Outcome]) -> Vec<Option<&'static str>> {
    outcomes.iter().map(Outcome::failure_kind).collect()
}

/// Those of `batch` that were not confirmed.
fn unconfirmed(batch: Vec<Delivery>, outcomes: &[Outcome]) -> Vec<Delivery> {
    batch.into_iter().zip(outcomes).filter(|(_, outcome)| **outcome != Outcome::Confirmed).map(|(one, _)| one).collect()
}

fn id(text: &str) -> MessageId {
    MessageId::parse(text).expect("a valid id")
}
