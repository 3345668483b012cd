//! One connection while it lasts: takes what the queue has, batch by batch, and acknowledges it.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures::{FutureExt, StreamExt};
use lapin::{
    Channel, Connection, Consumer,
    message::Delivery,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions},
    types::FieldTable,
};
use rand::Rng;
use tokio::{
    sync::{oneshot, watch},
    time::timeout,
};

use super::{ANSWER_TIMEOUT, asked, message::Reader, see_queue};
use crate::{
    amqp::{Broker, Connected, Notes, Switch, text},
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

const LOST: &str = "the connection was lost";

pub struct Session {
    connection: Arc<Connection>,
    channel: Channel,
    consumer: Consumer,
    switch: Switch,
    notes: Notes,
    over: oneshot::Receiver<()>,
    /// Whether the broker was told of any message.
    pub acknowledged: bool,
}

/// Why a session ended. What it had not acknowledged the broker gives out again.
pub enum End {
    Stopped,
    Lost(String),
}

/// What the broker has sent.
#[derive(Default)]
struct Batch {
    deliveries: Vec<Delivery>,
    bytes: usize,
    /// The consumer is no longer one, but the channel takes acknowledgements.
    ended: bool,
}

impl Session {
    /// # Errors
    /// Why nothing can be consumed.
    pub async fn open(broker: &Broker, queue: &str, prefetch: u16) -> Result<Self, String> {
        let Connected { connection, switch, notes, over, .. } = broker.connect(ANSWER_TIMEOUT).await?;
        let opening = async {
            let channel = connection.create_channel().await?;
            see_queue(&channel, queue).await?;
            channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
            let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
            let consumer = channel.basic_consume(queue.into(), "".into(), options, none).await?;
            Ok::<_, lapin::Error>((channel, consumer))
        };
        let error = match timeout(ANSWER_TIMEOUT, opening).await {
            Ok(Ok((channel, consumer))) => {
                return Ok(Self {
                    connection: Arc::new(connection),
                    channel,
                    consumer,
                    switch,
                    notes,
                    over,
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
            let first = tokio::select! {
                biased;
                () = asked(stop) => return End::Stopped,
                first = self.consumer.next() => first,
                _ = &mut self.over => return End::Lost(LOST.into()),
            };
            let Batch { deliveries, ended, .. } = match self.gather(first) {
                Ok(batch) => batch,
                Err(error) => return End::Lost(text(&error)),
            };
            if !deliveries.is_empty() {
                if let Err(end) = self.enter(deliveries, reader, intake, rng).await {
                    return end;
                }
                self.acknowledged = true;
            }
            if ended {
                return End::Lost("the broker ended the consumer: the queue was deleted or moved".into());
            }
        }
    }

    /// By a handshake, so that the last acknowledgement arrives and the rest is given out again at once.
    pub async fn close(&self) {
        // An error says that the connection is closed already.
        let _ = timeout(CLOSE_TIMEOUT, self.connection.close(200, "done".into())).await;
        self.switch.cut();
    }

    /// What is there already, without waiting for more.
    ///
    /// # Errors
    /// When the channel is gone: the broker gives out again what came before, and would not hear that it is taken.
    fn gather(&mut self, first: Option<lapin::Result<Delivery>>) -> lapin::Result<Batch> {
        let (mut batch, mut next) = (Batch::default(), Some(first));
        while let Some(one) = next {
            let Some(delivery) = one.transpose()? else {
                batch.ended = true;
                break;
            };
            batch.bytes += delivery.data.len();
            batch.deliveries.push(delivery);
            if batch.deliveries.len() == MAX_BATCH_MESSAGES || batch.bytes >= MAX_BATCH_BYTES {
                break;
            }
            next = self.consumer.next().now_or_never();
        }
        Ok(batch)
    }

    /// Returns when no acknowledgement would arrive any more.
    async fn lost(&mut self) {
        // Before the look, or what happens between the two would go unheard. It tells of other channels, too.
        let mut events = std::pin::pin!(self.connection.events_listener());
        while self.channel.status().connected() {
            tokio::select! {
                event = events.next() => if event.is_none() { return },
                _ = &mut self.over => return,
            }
        }
    }

    fn why_lost(&mut self) -> String {
        loop {
            match self.consumer.next().now_or_never().flatten() {
                // The broker gives it out again.
                Some(Ok(_)) => {}
                Some(Err(error)) => return text(&error),
                None => return LOST.into(),
            }
        }
    }

    /// Returns once Redis has them and the broker is told so.
    ///
    /// # Errors
    /// When one of the two did not happen.
    async fn enter(
        &mut self,
        deliveries: Vec<Delivery>,
        reader: &Reader,
        intake: &Intake,
        rng: &mut (impl Rng + Send),
    ) -> Result<(), End> {
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
        // It waits for as long as Redis is away, and the broker for no longer than its consumer timeout.
        let taken = tokio::select! {
            biased;
            taken = intake.take(entries) => taken.map_err(|_| End::Stopped),
            () = self.lost() => Err(End::Lost(self.why_lost())),
        };
        taken?;
        // All that came before was acknowledged, is in this batch, or was rejected.
        answered(self.channel.basic_ack(last, BasicAckOptions { multiple: true })).await
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
