//! Consumes over one connection: stores deliveries batch by batch, then acknowledges them.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::{FutureExt, StreamExt};
use lapin::{
    Channel, Consumer,
    message::Delivery,
    options::{
        BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, BasicRejectOptions,
    },
};
use rand::Rng;
use tokio::{
    sync::{mpsc::unbounded_channel, watch},
    time::{Instant, sleep, timeout},
};

use super::{
    ANSWER_TIMEOUT, declare_passively,
    message::{MessageReader, return_count},
};
use crate::{
    connector::rabbitmq::{self, Broker, BrokerConnection, answer, text},
    source::{Intake, unless_stopped},
};

/// Maximum messages of a batch: the limit of one script call.
const MAX_BATCH_MESSAGES: usize = 1000;
/// Bytes at which a batch is full. The intake copies a batch a few times.
const MAX_BATCH_BYTES: usize = 8 * 1024 * 1024;
/// Maximum bytes of a message that is stored, as a message or a dead letter. A larger one is rejected: the broker drops
/// or dead-letters it.
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// Maximum wait for the return of messages on a stop.
const RETURN_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of returns from which a message is reported: half of RabbitMQ 4's default limit, beyond which RabbitMQ drops
/// the message. AMQP 0-9-1 does not report the limit of a queue.
const NEAR_LIMIT: u64 = 10;

/// Time of a batch after which the route may be at a limit.
const NEAR_LIMIT_AFTER: Duration = Duration::from_secs(1);

const LOST: &str = "the connection was lost";
const DELETED: &str = "the broker ended the consumer: the queue was deleted";

pub struct Session {
    broker: Arc<BrokerConnection>,
    channel: Channel,
    /// `None` while the session waits for room in the route.
    consumer: Option<Consumer>,
    queue: String,
    prefetch: u16,
    /// The room of the route as last read, at most the prefetch; 0 after a slow batch. While it is less than the prefetch,
    /// each batch has its own consumer, so that no more messages are delivered than the route has room for.
    room: u16,
    hold_limit: Duration,
    /// Deliveries that are in no batch yet: at most the prefetch.
    received: VecDeque<Delivery>,
    /// The number of unacknowledged deliveries.
    held: Arc<AtomicU64>,
    /// The queue was deleted: no delivery follows, and the received ones exist nowhere else.
    is_queue_deleted: bool,
    /// The warning of returned messages was logged.
    has_warned: bool,
    /// At least one message was acknowledged, or a batch rejected.
    pub has_acknowledged: bool,
}

/// Maximum numbers of unacknowledged messages.
pub struct Windows {
    /// The window of the first consumer: the room of the route.
    pub first: u16,
    /// The prefetch.
    pub max: u16,
}

/// The reason for the end of a session. The broker delivers unacknowledged messages again.
pub enum SessionEnd {
    Stopped,
    /// Redis did not take a batch within the hold limit.
    HoldExpired,
    Lost(String),
}

impl Session {
    /// # Errors
    /// Why the queue cannot be consumed.
    pub async fn open(broker: &Broker, queue: &str, windows: Windows, hold_limit: Duration) -> Result<Self, String> {
        let broker = broker.connect(ANSWER_TIMEOUT).await?;
        let opening = async {
            let channel = broker.connection.create_channel().await?;
            let consumer = consume(&channel, queue, windows.first).await?;
            Ok::<_, lapin::Error>((channel, consumer))
        };
        let opened = answer(ANSWER_TIMEOUT, opening).await;
        let (channel, consumer) = opened.inspect_err(|_| broker.link.abort.cancel())?;
        Ok(Self {
            broker: Arc::new(broker),
            channel,
            consumer: Some(consumer),
            queue: queue.to_owned(),
            prefetch: windows.max,
            room: windows.first,
            hold_limit,
            received: VecDeque::new(),
            held: Arc::default(),
            is_queue_deleted: false,
            has_warned: false,
            has_acknowledged: false,
        })
    }

    pub fn connection(&self) -> Weak<BrokerConnection> {
        Arc::downgrade(&self.broker)
    }

    /// The number of unacknowledged deliveries while the session lives.
    pub fn held(&self) -> Weak<AtomicU64> {
        Arc::downgrade(&self.held)
    }

    /// Consumes until the session ends.
    pub async fn consume(
        &mut self,
        reader: &MessageReader,
        intake: &Intake,
        rng: &mut (impl Rng + Send),
        stop: &mut watch::Receiver<bool>,
    ) -> SessionEnd {
        loop {
            match unless_stopped(stop, self.next_batch(intake)).await {
                Some(Ok(())) => {}
                Some(Err(end)) => return end,
                None => return SessionEnd::Stopped,
            }
            let begun = Instant::now();
            if let Err(end) = self.store_batch(reader, intake, rng).await {
                return end;
            }
            self.has_acknowledged = true;
            if begun.elapsed() >= NEAR_LIMIT_AFTER {
                self.room = 0;
            }
        }
    }

    /// Waits until there are deliveries for a batch.
    async fn next_batch(&mut self, intake: &Intake) -> Result<(), SessionEnd> {
        if self.consumer.is_none() && self.received.is_empty() && !self.is_queue_deleted {
            self.room = tokio::select! {
                room = intake.until_capacity(self.prefetch) => room.map_err(|_| SessionEnd::Stopped)?,
                () = self.broker.link.closed.cancelled() => return Err(SessionEnd::Lost(LOST.into())),
            };
            let consuming = consume(&self.channel, &self.queue, self.room);
            self.consumer = Some(answer(ANSWER_TIMEOUT, consuming).await.map_err(SessionEnd::Lost)?);
        }
        self.receive().await?;
        if self.room < self.prefetch && !self.is_queue_deleted {
            self.end_consumer().await?;
        }
        Ok(())
    }

    /// Ends the consumer. Deliveries that are on the way are received.
    async fn end_consumer(&mut self) -> Result<(), SessionEnd> {
        let Some(mut consumer) = self.consumer.take() else { return Ok(()) };
        let cancelling = self.channel.basic_cancel(consumer.tag(), BasicCancelOptions::default());
        answer(ANSWER_TIMEOUT, cancelling).await.map_err(SessionEnd::Lost)?;
        while let Some(event) = consumer.next().await {
            self.handle_event(Some(event), None).await?;
        }
        Ok(())
    }

    /// Returns the unacknowledged messages to the queue with one `basic.nack`, which RabbitMQ 4.3 does not count.
    pub async fn return_messages(&self) {
        let returning = async {
            if let Some(consumer) = &self.consumer {
                self.channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await?;
            }
            // Tag 0 means all messages.
            self.channel.basic_nack(0, BasicNackOptions { multiple: true, requeue: true }).await?;
            // The answer shows that the broker has processed the nack.
            self.channel.close(200, "done".into()).await
        };
        // An error means that the channel is closed, so the messages are returned already.
        let _ = timeout(RETURN_TIMEOUT, returning).await;
    }

    /// Closes with a handshake: the broker processes the last acknowledgement.
    pub async fn close(&self) {
        self.broker.close().await;
    }

    /// Waits for a delivery, then receives those that are already buffered.
    async fn receive(&mut self) -> Result<(), SessionEnd> {
        while self.received.is_empty() {
            if self.is_queue_deleted {
                return Err(SessionEnd::Lost(DELETED.into()));
            }
            let event = tokio::select! {
                biased;
                event = next_event(&mut self.consumer) => event,
                () = self.broker.link.closed.cancelled() => return Err(SessionEnd::Lost(LOST.into())),
            };
            self.handle_event(event, None).await?;
        }
        while !self.is_queue_deleted
            && let Some(event) = next_event(&mut self.consumer).now_or_never()
        {
            self.handle_event(event, None).await?;
        }
        Ok(())
    }

    /// `held_since`: the time since which a batch has waited for Redis.
    ///
    /// # Errors
    /// When the broker has returned the unacknowledged messages to the queue.
    async fn handle_event(
        &mut self,
        event: Option<lapin::Result<Delivery>>,
        held_since: Option<Instant>,
    ) -> Result<(), SessionEnd> {
        match event {
            Some(Ok(delivery)) => {
                self.held.fetch_add(1, Relaxed);
                self.received.push_back(delivery);
            }
            Some(Err(error)) => return Err(SessionEnd::Lost(text(&error))),
            None => match (self.is_deleted().await, held_since) {
                (Ok(true), _) => self.is_queue_deleted = true,
                (Ok(false), Some(since)) => {
                    let seconds = since.elapsed().as_secs_f64();
                    return Err(SessionEnd::Lost(format!(
                        "the broker ended the consumer at its consumer timeout: messages had waited {seconds:.1} s for redis"
                    )));
                }
                (Ok(false), None) => {
                    let error = "the broker ended the consumer: the queue was moved, or deleted and declared again";
                    return Err(SessionEnd::Lost(error.into()));
                }
                (Err(error), _) => return Err(SessionEnd::Lost(format!("the broker ended the consumer: {error}"))),
            },
        }
        Ok(())
    }

    /// Whether the queue was deleted. An unreachable queue does not count as deleted.
    ///
    /// # Errors
    /// The broker's text if the state of the queue is unknown.
    async fn is_deleted(&self) -> Result<bool, String> {
        let declaring = async {
            let channel = self.broker.connection.create_channel().await?;
            declare_passively(&channel, &self.queue).await
        };
        match answer(ANSWER_TIMEOUT, declaring).await {
            Ok(_) => Ok(false),
            // A queue on a node that is down gives NOT_FOUND too, with another text.
            Err(error) if error.contains("no queue") => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Stores a batch in Redis. Acknowledges each message when Redis has it, also while others wait.
    ///
    /// # Errors
    /// When one of the two failed.
    async fn store_batch(
        &mut self,
        reader: &MessageReader,
        intake: &Intake,
        rng: &mut (impl Rng + Send),
    ) -> Result<(), SessionEnd> {
        let mut received = std::iter::from_fn(|| self.received.pop_front());
        let bytes_of = |delivery: &Delivery| delivery.data.len();
        let deliveries = rabbitmq::portion(&mut received, MAX_BATCH_MESSAGES, MAX_BATCH_BYTES, bytes_of);
        self.warn_of_limit(&deliveries, intake);
        let mut entries = Vec::with_capacity(deliveries.len());
        // Delivery tags of messages that are not in Redis, by the index of their entry.
        let mut waiting = BTreeMap::new();
        for delivery in deliveries {
            let tag = delivery.delivery_tag;
            let unreadable = self.broker.link.notes.take_unreadable(tag);
            if delivery.data.len() > MAX_MESSAGE_BYTES {
                let bytes = delivery.data.len();
                tracing::error!(
                    source = intake.name(),
                    bytes,
                    "rejected a message that is too large; the broker drops it"
                );
                intake.metrics().skipped.increment(1);
                let rejecting = self.channel.basic_reject(tag, BasicRejectOptions { requeue: false });
                answer(ANSWER_TIMEOUT, rejecting).await.map_err(SessionEnd::Lost)?;
                self.held.fetch_sub(1, Relaxed);
                continue;
            }
            waiting.insert(entries.len(), tag);
            entries.push(reader.entry(delivery, unreadable, rng));
        }
        // At most one item for each entry.
        let (sender, mut stored) = unbounded_channel();
        let taking = intake.take(entries, move |indices| {
            // The receiver is dropped only with this call.
            let _ = sender.send(indices);
        });
        let (held_since, mut taking) = (Instant::now(), std::pin::pin!(taking));
        let mut limit = std::pin::pin!(sleep(self.hold_limit));
        let mut is_taken = false;
        while !waiting.is_empty() {
            tokio::select! {
                biased;
                Some(indices) = stored.recv() => self.acknowledge(&indices, &mut waiting).await?,
                taken = &mut taking, if !is_taken => {
                    taken.map_err(|_| SessionEnd::Stopped)?;
                    is_taken = true;
                }
                // Messages that the broker has returned must not be stored: it delivers them again.
                event = next_event(&mut self.consumer), if !self.is_queue_deleted => {
                    self.handle_event(event, Some(held_since)).await?;
                }
                () = self.broker.link.closed.cancelled(), if !self.is_queue_deleted => {
                    return Err(SessionEnd::Lost(LOST.into()));
                }
                () = &mut limit, if !self.is_queue_deleted => return Err(SessionEnd::HoldExpired),
            }
        }
        Ok(())
    }

    /// Acknowledges messages that are in Redis, and removes them from `waiting`.
    async fn acknowledge(&mut self, indices: &[usize], waiting: &mut BTreeMap<usize, u64>) -> Result<(), SessionEnd> {
        let tags: Vec<u64> = indices.iter().filter_map(|index| waiting.remove(index)).collect();
        self.held.fetch_sub(tags.len() as u64, Relaxed);
        if self.is_queue_deleted {
            return Ok(());
        }
        for (tag, multiple) in acknowledgements(tags, waiting.values().next().copied()) {
            let acknowledging = self.channel.basic_ack(tag, BasicAckOptions { multiple });
            answer(ANSWER_TIMEOUT, acknowledging).await.map_err(SessionEnd::Lost)?;
            self.has_acknowledged = true;
        }
        Ok(())
    }

    fn warn_of_limit(&mut self, deliveries: &[Delivery], intake: &Intake) {
        let returns = near_limit(deliveries.iter().map(return_count));
        let Some(most) = returns.iter().max() else { return };
        intake.metrics().near_limit.increment(returns.len() as u64);
        if !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!(
                source = intake.name(),
                messages = returns.len(),
                returns = most,
                "messages were returned many times. RabbitMQ 4 drops a message that a quorum queue has delivered more \
                 than 20 times, unless the queue has another limit. `x-delivery-limit: 1000000` is safe on every version"
            );
        }
    }
}

/// The numbers of returns after which a queue may soon drop a message.
fn near_limit(returns: impl Iterator<Item = u64>) -> Vec<u64> {
    returns.filter(|returns| *returns >= NEAR_LIMIT).collect()
}

/// Starts a consumer with at most `window` unacknowledged messages.
async fn consume(channel: &Channel, queue: &str, window: u16) -> lapin::Result<Consumer> {
    channel.basic_qos(window, BasicQosOptions::default()).await?;
    let options = BasicConsumeOptions::default();
    let consumer = channel.basic_consume(queue.into(), "".into(), options, rabbitmq::no_stream()).await;
    consumer.map_err(|error| rabbitmq::explained(error, queue))
}

/// The next event of the consumer; waits forever without a consumer.
async fn next_event(consumer: &mut Option<Consumer>) -> Option<lapin::Result<Delivery>> {
    match consumer {
        Some(consumer) => consumer.next().await,
        None => std::future::pending().await,
    }
}

/// The acknowledgements for `tags`, and whether each also is for all deliveries before it. Each delivery before the first waiting one
/// is acknowledged, rejected, or in `tags`.
fn acknowledgements(mut tags: Vec<u64>, first_waiting: Option<u64>) -> Vec<(u64, bool)> {
    tags.sort_unstable();
    let single = tags.split_off(tags.partition_point(|tag| first_waiting.is_none_or(|waiting| *tag < waiting)));
    let multiple = tags.last().map(|tag| (*tag, true));
    multiple.into_iter().chain(single.into_iter().map(|tag| (tag, false))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_of_several_never_contains_a_waiting_delivery() {
        assert_eq!(acknowledgements(vec![3, 1, 2], None), [(3, true)]);
        assert_eq!(acknowledgements(vec![5, 2, 1], Some(3)), [(2, true), (5, false)]);
        assert_eq!(acknowledgements(vec![6, 5], Some(4)), [(5, false), (6, false)]);
        assert_eq!(acknowledgements(Vec::new(), Some(4)), []);
    }

    #[test]
    fn messages_with_half_of_the_permitted_returns_are_reported() {
        assert_eq!(near_limit([9, 10, 0, 21].into_iter()), [10, 21]);
    }
}
