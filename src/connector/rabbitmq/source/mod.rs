//! A queue of RabbitMQ. A message is acknowledged after Redis has it. If the connection ends before that, the broker
//! delivers the message again.
//!
//! `session` consumes over one connection, `message` converts deliveries, `due` computes due times.

mod due;
mod message;
mod session;

use std::{
    sync::{
        Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use lapin::{Channel, Queue, options::QueueDeclareOptions, types::FieldTable};
use parking_lot::Mutex;
use rand::{SeedableRng, rngs::StdRng};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use self::{
    message::MessageReader,
    session::{Session, SessionEnd, Windows},
};
use crate::{
    connector::rabbitmq::{self, Broker, BrokerConnection, RabbitMqSourceSettings, ReconnectDelay},
    source::{IdGenerator, Intake, Source, unless_stopped},
};

/// Maximum time of an attempt to connect, and maximum wait for one answer of the broker.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time that unacknowledged messages wait for Redis. It is far below RabbitMQ's consumer timeout, 30 minutes by
/// default, which returns the messages and counts the return. It is longer than a restart of Redis that loads its data.
const HOLD_LIMIT: Duration = Duration::from_mins(5);
const ADVICE: &str = "a quorum queue: set `x-delivery-limit: 1000000`. Without it RabbitMQ 4 drops a message at its 21st \
                      return. Never set -1: RabbitMQ 3.10 reads it as 0";
/// Maximum wait for the depth. A scrape of the metrics waits for it.
const DEPTH_TIMEOUT: Duration = Duration::from_secs(1);

pub struct RabbitMqSource {
    broker: Broker,
    queue: String,
    prefetch: u16,
    reader: MessageReader,
    seed: u64,
    hold_limit: Duration,
    /// The connection of the session, if there is one.
    connection: Mutex<Weak<BrokerConnection>>,
    /// The number of messages that the session holds.
    held: Mutex<Weak<AtomicU64>>,
}

impl RabbitMqSource {
    /// `generate_id` for messages without an id; `seed` for the jitter of delays by `x-death`.
    ///
    /// `run` connects.
    ///
    /// # Errors
    /// The setting that is invalid.
    pub fn new(config: &RabbitMqSourceSettings, generate_id: IdGenerator, seed: u64) -> Result<Self, String> {
        Ok(Self {
            broker: Broker::new(config.server())?,
            queue: config.queue.clone(),
            prefetch: u16::try_from(config.prefetch.0).expect("at most 65535"),
            reader: MessageReader { id_from: config.id_from, backoff: config.delay(), generate_id },
            seed,
            hold_limit: HOLD_LIMIT,
            connection: Mutex::default(),
            held: Mutex::default(),
        })
    }

    /// Sets the maximum time that unacknowledged messages wait for Redis.
    #[must_use]
    pub fn with_hold_limit(self, limit: Duration) -> Self {
        Self { hold_limit: limit, ..self }
    }

    async fn count(&self) -> lapin::Result<u64> {
        let broker = self.connection.lock().upgrade();
        let broker = broker.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotConnected))?;
        let channel = broker.connection.create_channel().await?;
        let queue = declare_passively(&channel, &self.queue).await?;
        channel.close(200, "counted".into()).await?;
        let held = self.held.lock().upgrade().map_or(0, |held| held.load(Relaxed));
        Ok(u64::from(queue.message_count()) + held)
    }
}

#[async_trait]
impl Source for RabbitMqSource {
    async fn run(&self, intake: Intake, mut stop: watch::Receiver<bool>) {
        let (mut reconnect_delay, mut rng) = (ReconnectDelay::default(), StdRng::seed_from_u64(self.seed));
        // Messages that are taken while Redis is full or down must be returned, and a quorum queue counts returns.
        while intake.until_growing().await.is_ok()
            && let Ok(window) = intake.until_capacity(self.prefetch).await
        {
            let windows = Windows { first: window, max: self.prefetch };
            let opening = Session::open(&self.broker, &self.queue, windows, self.hold_limit);
            let Some(opened) = unless_stopped(&mut stop, opening).await else { return };
            let error = match opened {
                Ok(mut session) => {
                    *self.connection.lock() = session.connection();
                    *self.held.lock() = session.held();
                    intake.resumed();
                    let end = session.consume(&self.reader, &intake, &mut rng, &mut stop).await;
                    if matches!(end, SessionEnd::Stopped | SessionEnd::HoldExpired) {
                        session.return_messages().await;
                    }
                    session.close().await;
                    // Without an acknowledged message, the broker can refuse the next session too.
                    if session.has_acknowledged {
                        reconnect_delay = ReconnectDelay::default();
                    }
                    match end {
                        SessionEnd::Stopped => return,
                        SessionEnd::HoldExpired => {
                            let (source, held) = (intake.name(), self.hold_limit);
                            tracing::warn!(source, ?held, "returned messages that redis did not take");
                            continue;
                        }
                        SessionEnd::Lost(error) => error,
                    }
                }
                Err(error) => error,
            };
            intake.failing(&format!("{}: {error}", self.broker.address()));
            if unless_stopped(&mut stop, sleep(reconnect_delay.next_delay())).await.is_none() {
                return;
            }
        }
    }

    /// Connects, and checks that the queue can be read.
    async fn check(&self) -> Result<(), String> {
        let check = async |channel| rabbitmq::check_readable(&channel, &self.queue).await;
        self.broker.on_channel(ANSWER_TIMEOUT, check).await
    }

    /// For every quorum queue: AMQP 0-9-1 does not report the delivery limit.
    async fn advice(&self) -> Option<String> {
        let mut is_quorum = false;
        let check = async |channel| {
            is_quorum = rabbitmq::is_quorum(&channel, &self.queue).await;
            Ok(())
        };
        self.broker.on_channel(ANSWER_TIMEOUT, check).await.ok()?;
        is_quorum.then(|| ADVICE.to_owned())
    }

    /// Ready messages, and unacknowledged ones of this instance. `None` while not connected.
    async fn depth(&self) -> Option<u64> {
        timeout(DEPTH_TIMEOUT, self.count()).await.ok()?.ok()
    }
}

/// If the queue does not exist, the broker closes the channel.
async fn declare_passively(channel: &Channel, queue: &str) -> lapin::Result<Queue> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.into(), options, FieldTable::default()).await
}
