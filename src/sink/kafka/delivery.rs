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
    super::Delivery,
    context::{Failure, Ticket},
    producer::Live,
};

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
    mut conclude: impl FnMut(usize, Result<(), Failure>) + Send,
) -> Vec<usize> {
    let (results, mut reported) = mpsc::unbounded_channel();
    let mut open = vec![false; batch.len()];
    for index in &indices {
        open[*index] = true;
    }
    let producing = produce(live, topics, batch, indices, results);
    let concluding = async {
        // It ends when every ticket is back.
        while let Some((index, result)) = reported.recv().await {
            open[index] = false;
            conclude(index, result);
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
    results: UnboundedSender<(usize, Result<(), Failure>)>,
) {
    for index in indices {
        let mut record = record(&topics[index], &batch[index], Ticket { index, results: results.clone() });
        while let Err((error, refused)) = live.producer().send(record) {
            let code = match error {
                KafkaError::MessageProduction(code) => code,
                // The topic holds a NUL.
                _ => RDKafkaErrorCode::InvalidTopic,
            };
            if code != RDKafkaErrorCode::QueueFull {
                refused.delivery_opaque.conclude(Err(Failure { code, local: true }));
                break;
            }
            record = refused;
            sleep(QUEUE_FULL_PAUSE).await;
        }
    }
}

/// librdkafka copies all of it. An empty payload is an empty value, not a tombstone.
fn record<'a>(topic: &'a str, delivery: &'a Delivery, ticket: Ticket) -> BaseRecord<'a, str, [u8], Box<Ticket>> {
    let mut record = BaseRecord::with_opaque_to(topic, Box::new(ticket)).payload(Bytes::as_ref(&delivery.payload));
    if let Some(key) = &delivery.metadata.key {
        record = record.key(key.as_str());
    }
    record.headers(headers(delivery))
}

/// The user's, then ours. No user's header has one of our names.
fn headers(delivery: &Delivery) -> OwnedHeaders {
    let users = &delivery.metadata.headers;
    let (attempt, due) = (delivery.attempt.to_string(), delivery.due.get().to_string());
    let ours = [
        ("punctual-id", delivery.id.as_str()),
        ("punctual-route", &delivery.route),
        ("punctual-attempt", &attempt),
        ("punctual-due", &due),
    ];
    let content_type = delivery.metadata.content_type.as_deref().map(|text| ("content-type", text));
    let users = users.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    users.chain(content_type).chain(ours).fold(
        OwnedHeaders::new_with_capacity(delivery.metadata.headers.len() + ours.len() + 1),
        |headers, (key, value)| headers.insert(Header { key, value: Some(value) }),
    )
}
