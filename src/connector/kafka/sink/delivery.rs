//! Sends messages of a batch through one producer, and awaits their results.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use futures::future::join;
use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::BaseRecord,
};
use tokio::{
    sync::mpsc::{self, UnboundedSender},
    task::yield_now,
    time::{Duration, Instant, sleep, timeout_at},
};

use super::{
    callbacks::{RecordOpaque, RecordResult},
    producer::LiveProducer,
    restored,
};
use crate::sink::{Delivery, headers, turns::FairPermits};

/// Pause before a record is sent again to a full queue. librdkafka does not notify when the queue has capacity.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(5);

/// Maximum results that are taken at once: those of one claim.
const MAX_TOGETHER: usize = 500;

/// Records that one route or topic adds to a full queue in one turn.
const TURN_RECORDS: usize = 16;

/// Sends the messages of `batch` at `indices`, each to its topic of `topics`. Calls `report_result` for each result
/// that arrives before `deadline`. Returns the indices without a result. Waits while the queue of librdkafka
/// (`queue.buffering.max.*`) is full. In that time routes and topics take turns for its `room`.
pub async fn deliver(
    (live, room): (&LiveProducer, &Arc<FairPermits>),
    topics: &[Cow<'_, str>],
    batch: &[Delivery],
    indices: Vec<usize>,
    deadline: Instant,
    mut report_result: impl FnMut(RecordResult) + Send,
) -> Vec<usize> {
    let (results, mut reported) = mpsc::unbounded_channel();
    let mut open = vec![false; batch.len()];
    for index in &indices {
        open[*index] = true;
    }
    let producing = produce((live, room), topics, batch, indices, results);
    let reporting = async {
        // The channel closes when all opaques are dropped.
        let mut together = Vec::new();
        while reported.recv_many(&mut together, MAX_TOGETHER).await > 0 {
            for result in together.drain(..) {
                open[result.index] = false;
                report_result(result);
            }
            // Results that arrive in the meantime are reported together.
            yield_now().await;
        }
    };
    // The caller reports the timeouts.
    let _ = timeout_at(deadline, join(producing, reporting)).await;
    open.iter().enumerate().filter_map(|(index, open)| open.then_some(index)).collect()
}

async fn produce(
    (live, room): (&LiveProducer, &Arc<FairPermits>),
    topics: &[Cow<'_, str>],
    batch: &[Delivery],
    indices: Vec<usize>,
    results: UnboundedSender<RecordResult>,
) {
    // Set while the queue is full, with the number of records that are left in the turn.
    let mut turn = None;
    for index in indices {
        let key = restored::key(&batch[index].metadata);
        let opaque = RecordOpaque { index, results: results.clone() };
        let mut record = record(&topics[index], &batch[index], key.as_deref(), opaque);
        while let Err((error, refused)) = live.send(record) {
            let code = match error {
                KafkaError::MessageProduction(code) => code,
                // The name of the topic has a NUL.
                _ => RDKafkaErrorCode::InvalidTopic,
            };
            if code != RDKafkaErrorCode::QueueFull {
                refused.delivery_opaque.report(None, Some(code));
                break;
            }
            record = refused;
            if turn.is_none() {
                let permit = room.acquire(&batch[index].route, Some(topics[index].as_ref().into())).await;
                turn = Some((permit, TURN_RECORDS));
            } else {
                sleep(QUEUE_FULL_PAUSE).await;
            }
        }
        turn = after_record(turn);
    }
}

/// The turn after one of its records, with the number of records that are left. The last one ends it.
fn after_record<T>(turn: Option<(T, usize)>) -> Option<(T, usize)> {
    turn.filter(|(_, left)| *left > 1).map(|(permit, left)| (permit, left - 1))
}

/// librdkafka copies key, value and headers. An empty payload is an empty value, unless the message was a tombstone.
fn record<'a>(
    topic: &'a str,
    delivery: &'a Delivery,
    key: Option<&'a [u8]>,
    opaque: RecordOpaque,
) -> BaseRecord<'a, [u8], [u8], Box<RecordOpaque>> {
    let mut record = BaseRecord::with_opaque_to(topic, Box::new(opaque));
    let origin = delivery.metadata.origin.as_ref();
    if !(delivery.payload.is_empty() && origin.is_some_and(|origin| origin.tombstone)) {
        record = record.payload(Bytes::as_ref(&delivery.payload));
    }
    if let Some(key) = key {
        record = record.key(key);
    }
    record.headers(record_headers(delivery))
}

/// The headers of the message in their order, the content type, then the headers of punctual.
fn record_headers(delivery: &Delivery) -> OwnedHeaders {
    let (attempt, due) = (delivery.attempt.to_string(), delivery.due.get().to_string());
    let added = [
        delivery.metadata.content_type.as_deref().map(|text| ("content-type", text)),
        Some((headers::ID, delivery.shown_id())),
        Some((headers::ROUTE, &delivery.route)),
        Some((headers::ATTEMPT, &attempt)),
        Some((headers::DUE, &due)),
    ];
    let all = OwnedHeaders::new_with_capacity(delivery.metadata.headers.len() + added.len());
    let all = restored::headers(&delivery.metadata.headers, all);
    let text = |(key, value)| Header { key, value: Some(value) };
    added.into_iter().flatten().map(text).fold(all, OwnedHeaders::insert)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_has_sixteen_records() {
        let mut turn = Some(((), TURN_RECORDS));
        for record in 1..=16 {
            assert!(turn.is_some(), "record {record}");
            turn = after_record(turn);
        }
        assert_eq!(turn, None);
    }
}
