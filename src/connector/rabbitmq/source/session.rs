//! One connection while it lasts: takes what the queue has, batch by batch, and acknowledges it.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::Duration,
};

use futures::{FutureExt, StreamExt};
use lapin::{
    Channel, Connection, Consumer,
    message::Delivery,
    options::{
        BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, BasicRejectOptions,
    },
};
use rand::Rng;
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, sleep, timeout},
};

use super::{
    ANSWER_TIMEOUT, asked,
    message::{Reader, deliveries_before},
    see_queue,
};
use crate::{
    connector::rabbitmq::{self, Broker, Connected, Notes, Switch, text},
    source::Intake,
};

/// Most messages that go to Redis at once: as many as one script call takes.
const MAX_BATCH_MESSAGES: usize = 1000;
/// Bytes after which a batch is full, so that several calls' worth of copies is the most that it costs.
const MAX_BATCH_BYTES: usize = 8 * 1024 * 1024;
/// Largest message in bytes that is kept as a dead letter. What is larger goes back to the broker, which drops it, or
/// dead-letters it if the queue says so.
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// A closing handshake takes a round trip; a broker that does not answer it is left.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Returns of a message from which on they are told: half of RabbitMQ 4's default limit, beyond which it drops the
/// message. AMQP 0-9-1 does not tell the limit of a queue.
const NEAR_LIMIT: u64 = 10;

const LOST: &str = "the connection was lost";
const DELETED: &str = "the broker ended the consumer: the queue was deleted";

pub struct Session {
    connection: Arc<Connection>,
    channel: Channel,
    consumer: Consumer,
    queue: String,
    switch: Switch,
    notes: Notes,
    over: oneshot::Receiver<()>,
    hold_limit: Duration,
    /// What came and is not being entered yet: never more than the prefetch.
    ahead: VecDeque<Delivery>,
    /// The queue is deleted, so that nothing more comes, and what came is nowhere else.
    deleted: bool,
    /// Whether it was told that messages come back again and again.
    warned: bool,
    /// Whether the broker was told of any message.
    pub acknowledged: bool,
}

/// Why a session ended. What it had not acknowledged the broker gives out again.
pub enum End {
    Stopped,
    /// Redis has not taken messages for the longest time for which they are held.
    Held,
    Lost(String),
}

impl Session {
    /// # Errors
    /// Why nothing can be consumed.
    pub async fn open(broker: &Broker, queue: &str, prefetch: u16, hold_limit: Duration) -> Result<Self, String> {
        let Connected { connection, switch, notes, over, .. } = broker.connect(ANSWER_TIMEOUT).await?;
        let opening = async {
            let channel = connection.create_channel().await?;
            channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
            let options = BasicConsumeOptions::default();
            let consumer = channel.basic_consume(queue.into(), "".into(), options, rabbitmq::no_stream()).await;
            let consumer = consumer.map_err(|error| rabbitmq::explained(error, queue))?;
            Ok::<_, lapin::Error>((channel, consumer))
        };
        let error = match timeout(ANSWER_TIMEOUT, opening).await {
            Ok(Ok((channel, consumer))) => {
                return Ok(Self {
                    connection: Arc::new(connection),
                    channel,
                    consumer,
                    queue: queue.to_owned(),
                    switch,
                    notes,
                    over,
                    hold_limit,
                    ahead: VecDeque::new(),
                    deleted: false,
                    warned: false,
                    acknowledged: false,
                });
            }
            Ok(Err(error)) => text(&error),
            Err(_) => late(),
        };
        switch.cut();
        Err(error)
    }

    pub fn connection(&self) -> Weak<Connection> {
        Arc::downgrade(&self.connection)
    }

    pub async fn consume(
        &mut self,
        reader: &Reader,
        intake: &Intake,
        rng: &mut (impl Rng + Send),
        stop: &mut watch::Receiver<bool>,
    ) -> End {
        loop {
            let came = tokio::select! {
                biased;
                () = asked(stop) => Err(End::Stopped),
                came = self.wait() => came,
            };
            let entered = match came {
                Ok(()) => self.enter(reader, intake, rng).await,
                Err(end) => Err(end),
            };
            match entered {
                Ok(()) => self.acknowledged = true,
                Err(end) => return end,
            }
        }
    }

    /// Hands back what came and is not acknowledged, at once, so that RabbitMQ from 4.3 on does not count it.
    pub async fn give_back(&self) {
        let returning = async {
            self.channel.basic_cancel(self.consumer.tag(), BasicCancelOptions::default()).await?;
            // Tag 0 stands for all of them.
            self.channel.basic_nack(0, BasicNackOptions { multiple: true, requeue: true }).await?;
            // Its answer tells that the broker has read that.
            self.channel.close(200, "done".into()).await
        };
        // An error says that the channel is closed, and all of it given back already.
        let _ = timeout(CLOSE_TIMEOUT, returning).await;
    }

    /// By a handshake, so that the last acknowledgement arrives and the rest is given out again at once.
    pub async fn close(&self) {
        // An error says that the connection is closed already.
        let _ = timeout(CLOSE_TIMEOUT, self.connection.close(200, "done".into())).await;
        self.switch.cut();
    }

    /// Returns once a message is ahead, and what else came by then.
    async fn wait(&mut self) -> Result<(), End> {
        while self.ahead.is_empty() {
            if self.deleted {
                return Err(End::Lost(DELETED.into()));
            }
            let event = tokio::select! {
                biased;
                event = self.consumer.next() => event,
                _ = &mut self.over => return Err(End::Lost(LOST.into())),
            };
            self.note(event, None).await?;
        }
        while !self.deleted
            && let Some(event) = self.consumer.next().now_or_never()
        {
            self.note(event, None).await?;
        }
        Ok(())
    }

    /// `held`: since when messages have waited for Redis.
    ///
    /// # Errors
    /// When the broker has taken back what it had given out.
    async fn note(&mut self, event: Option<lapin::Result<Delivery>>, held: Option<Instant>) -> Result<(), End> {
        match event {
            Some(Ok(delivery)) => self.ahead.push_back(delivery),
            Some(Err(error)) => return Err(End::Lost(text(&error))),
            None => match (self.is_deleted().await, held) {
                (Ok(true), _) => self.deleted = true,
                (Ok(false), Some(since)) => {
                    let text = "the broker ended the consumer and took back what had waited for redis for";
                    let since = since.elapsed().as_secs_f64();
                    return Err(End::Lost(format!("{text} {since:.1} s: its consumer timeout was over")));
                }
                (Ok(false), None) => {
                    return Err(End::Lost("the broker ended the consumer: the queue moved or was made anew".into()));
                }
                (Err(error), _) => return Err(End::Lost(format!("the broker ended the consumer: {error}"))),
            },
        }
        Ok(())
    }

    /// Whether the queue is no more, rather than out of reach.
    ///
    /// # Errors
    /// The broker's words where it does not tell.
    async fn is_deleted(&self) -> Result<bool, String> {
        let asking = async {
            let channel = self.connection.create_channel().await?;
            see_queue(&channel, &self.queue).await
        };
        match timeout(ANSWER_TIMEOUT, asking).await {
            Ok(Ok(_)) => Ok(false),
            // A queue whose node is down is not found either.
            Ok(Err(error)) if text(&error).contains("no queue") => Ok(true),
            Ok(Err(error)) => Err(text(&error)),
            Err(_) => Err(late()),
        }
    }

    /// The next batch of what is ahead.
    fn batch(&mut self) -> Vec<Delivery> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < MAX_BATCH_MESSAGES
            && bytes < MAX_BATCH_BYTES
            && let Some(delivery) = self.ahead.pop_front()
        {
            bytes += delivery.data.len();
            batch.push(delivery);
        }
        batch
    }

    /// Returns once Redis has a batch and the broker is told so.
    ///
    /// # Errors
    /// When one of the two did not happen.
    async fn enter(&mut self, reader: &Reader, intake: &Intake, rng: &mut (impl Rng + Send)) -> Result<(), End> {
        let deliveries = self.batch();
        self.warn_of_limit(&deliveries, intake);
        let (mut entries, mut last) = (Vec::with_capacity(deliveries.len()), None);
        for delivery in deliveries {
            let tag = delivery.delivery_tag;
            let unreadable = self.notes.take(tag);
            if delivery.data.len() > MAX_MESSAGE_BYTES {
                let bytes = delivery.data.len();
                tracing::error!(source = intake.name(), bytes, "too large to be kept: rejected, the broker drops it");
                intake.metrics().skipped.increment(1);
                answered(self.channel.basic_reject(tag, BasicRejectOptions { requeue: false })).await?;
                continue;
            }
            entries.push(reader.entry(delivery, unreadable, rng));
            last = Some(tag);
        }
        let Some(last) = last else { return Ok(()) };
        let (held, mut taking) = (Instant::now(), std::pin::pin!(intake.take(entries)));
        let mut limit = std::pin::pin!(sleep(self.hold_limit));
        loop {
            tokio::select! {
                biased;
                taken = &mut taking => break taken.map_err(|_| End::Stopped)?,
                // What the broker took back must not be scheduled: it comes again.
                event = self.consumer.next(), if !self.deleted => self.note(event, Some(held)).await?,
                _ = &mut self.over, if !self.deleted => return Err(End::Lost(LOST.into())),
                () = &mut limit, if !self.deleted => return Err(End::Held),
            }
        }
        if self.deleted {
            return Ok(());
        }
        // All that came before was acknowledged, is in this batch, or was rejected.
        answered(self.channel.basic_ack(last, BasicAckOptions { multiple: true })).await
    }

    fn warn_of_limit(&mut self, deliveries: &[Delivery], intake: &Intake) {
        let returns = deliveries.iter().map(deliveries_before).filter(|returns| *returns >= NEAR_LIMIT);
        let (count, most) = returns.fold((0, 0), |(count, most), returns| (count + 1, most.max(returns)));
        intake.metrics().near_limit.increment(count);
        if count > 0 && !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(
                source = intake.name(),
                messages = count,
                returns = most,
                "messages come back again and again: RabbitMQ 4 drops what a quorum queue gave out more than 20 times, \
                 unless the queue has another limit; `x-delivery-limit: 1000000` is safe on every version"
            );
        }
    }
}

async fn answered(answer: impl Future<Output = lapin::Result<()>>) -> Result<(), End> {
    match timeout(ANSWER_TIMEOUT, answer).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(End::Lost(text(&error))),
        Err(_) => Err(End::Lost(late())),
    }
}

fn late() -> String {
    format!("no answer within {ANSWER_TIMEOUT:?}")
}
