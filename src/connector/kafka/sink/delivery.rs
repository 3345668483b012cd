//! Some messages of a batch through one producer: all are handed over, then their results awaited.

use std::borrow::Cow;

use bytes::Bytes;
use futures::future::join;
use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::BaseRecord,
};
use tokio::{
    sync::mpsc::{self, UnboundedSender},
    time::{Duration, Instant, sleep, timeout_at},
};

use super::{
    context::{Concluded, Failure, Ticket},
    producer::Live,
    restored,
};
use crate::sink::Delivery;

/// Until a full queue is looked at again. librdkafka does not tell when there is room.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(5);

/// Sends those of `batch` that `indices` name, each to its topic of `topics`. Calls `conclude` once for each whose
/// result came before the deadline; returns the others.
/// What waits in librdkafka is bounded by its queue (`queue.buffering.max.*`): while it is full, this waits.
pub async fn deliver(
    live: &Live,
    topics: &[Cow<'_, str>],
    batch: &[Delivery],
    indices: Vec<usize>,
    deadline: Instant,
    mut conclude: impl FnMut(Concluded) + Send,
) -> Vec<usize> {
    let (results, mut reported) = mpsc::unbounded_channel();
    let mut open = vec![false; batch.len()];
    for index in &indices {
        open[*index] = true;
    }
    let producing = produce(live, topics, batch, indices, results);
    let concluding = async {
        // It ends when every ticket is back.
        while let Some(concluded) = reported.recv().await {
            open[concluded.index] = false;
            conclude(concluded);
        }
    };
    // What is left has its time over; what it comes to, the sink says.
    let _ = timeout_at(deadline, join(producing, concluding)).await;
    open.iter().enumerate().filter_map(|(index, open)| open.then_some(index)).collect()
}

async fn produce(
    live: &Live,
    topics: &[Cow<'_, str>],
    batch: &[Delivery],
    indices: Vec<usize>,
    results: UnboundedSender<Concluded>,
) {
    for index in indices {
        let key = restored::key(&batch[index].metadata);
        let ticket = Ticket { index, results: results.clone() };
        let mut record = record(&topics[index], &batch[index], key.as_deref(), ticket);
        while let Err((error, refused)) = live.producer().send(record) {
            let code = match error {
                KafkaError::MessageProduction(code) => code,
                // The topic holds a NUL.
                _ => RDKafkaErrorCode::InvalidTopic,
            };
            if code != RDKafkaErrorCode::QueueFull {
                refused.delivery_opaque.conclude(None, Err(Failure { code, local: true }));
                break;
            }
            record = refused;
            sleep(QUEUE_FULL_PAUSE).await;
        }
    }
}

/// librdkafka copies all of it. An empty payload is an empty value, not a tombstone.
fn record<'a>(
    topic: &'a str,
    delivery: &'a Delivery,
    key: Option<&'a [u8]>,
    ticket: Ticket,
) -> BaseRecord<'a, [u8], [u8], Box<Ticket>> {
    let mut record = BaseRecord::with_opaque_to(topic, Box::new(ticket)).payload(Bytes::as_ref(&delivery.payload));
    if let Some(key) = key {
        record = record.key(key);
    }
    record.headers(headers(delivery))
}

/// The user's, those that a source took and that fit nowhere else, then ours.
fn headers(delivery: &Delivery) -> OwnedHeaders {
    let users = &delivery.metadata.headers;
    let (attempt, due) = (delivery.attempt.to_string(), delivery.due.get().to_string());
    let ours = [
        ("punctual-id", delivery.shown_id()),
        ("punctual-route", &delivery.route),
        ("punctual-attempt", &attempt),
        ("punctual-due", &due),
    ];
    let content_type = delivery.metadata.content_type.as_deref().map(|text| ("content-type", text));
    let users = users.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let text = |(key, value)| Header { key, value: Some(value) };
    let headers = OwnedHeaders::new_with_capacity(delivery.metadata.headers.len() + ours.len() + 1);
    let headers = users.chain(content_type).map(text).fold(headers, OwnedHeaders::insert);
    let headers = restored::headers(&delivery.metadata, headers);
    ours.map(text).into_iter().fold(headers, OwnedHeaders::insert)
}
