//! A queue of RabbitMQ. A message is acknowledged after Redis has it, and given out again by the broker when the
//! connection ends before.
//!
//! `session` consumes over one connection, `message` reads what comes, `due` tells when it is due.

mod due;
mod message;
mod session;

use std::{
    sync::{Mutex, PoisonError, Weak},
    time::Duration,
};

use async_trait::async_trait;
use lapin::{Channel, Connection, Queue, options::QueueDeclareOptions, types::FieldTable};
use rand::{SeedableRng, rngs::StdRng};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use self::{
    message::Reader,
    session::{End, Session},
};
use crate::{
    connector::rabbitmq::{self, Broker, RabbitMqSourceSettings, ReconnectDelay},
    source::{Intake, NewId, Source},
};

/// Longest attempt to connect, and longest wait for any single answer of the broker.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for which messages are held that Redis does not take: far below RabbitMQ's consumer timeout, 30
/// minutes by default, at which it would take them back itself, and count it; and longer than the restart of a Redis
/// that loads its data.
const HOLD_LIMIT: Duration = Duration::from_mins(5);
const ADVICE: &str = "a quorum queue: it should have `x-delivery-limit: 1000000`, without which RabbitMQ 4 drops a message \
                      at its 21st return; never -1, which RabbitMQ 3.10 takes for 0";
/// Of the depth, for which a scrape waits.
const DEPTH_TIMEOUT: Duration = Duration::from_secs(1);

pub struct RabbitMqSource {
    broker: Broker,
    queue: String,
    prefetch: u16,
    reader: Reader,
    seed: u64,
    hold_limit: Duration,
    /// While there is one.
    connection: Mutex<Weak<Connection>>,
}

impl RabbitMqSource {
    /// `new_id` for messages that bring none; `seed` for the jitter of delays by `x-death`.
    ///
    /// # Errors
    /// Which setting cannot be used; nothing is connected yet.
    pub fn new(config: &RabbitMqSourceSettings, new_id: NewId, seed: u64) -> Result<Self, String> {
        Ok(Self {
            broker: Broker::new(config.server())?,
            queue: config.queue.clone(),
            prefetch: u16::try_from(config.prefetch.0).expect("at most 65535"),
            reader: Reader { id_from: config.id_from, backoff: config.delay(), new_id },
            seed,
            hold_limit: HOLD_LIMIT,
            connection: Mutex::default(),
        })
    }

    /// Holds messages for `limit` at most while Redis does not take them.
    #[must_use]
    pub fn with_hold_limit(self, limit: Duration) -> Self {
        Self { hold_limit: limit, ..self }
    }

    async fn count(&self) -> lapin::Result<u64> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        let connection = connection.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotConnected))?;
        let channel = connection.create_channel().await?;
        let queue = see_queue(&channel, &self.queue).await?;
        channel.close(200, "counted".into()).await?;
        Ok(queue.message_count().into())
    }
}

#[async_trait]
impl Source for RabbitMqSource {
    async fn run(&self, intake: Intake, mut stop: watch::Receiver<bool>) {
        let (mut reconnect_delay, mut rng) = (ReconnectDelay::default(), StdRng::seed_from_u64(self.seed));
        // What is taken while Redis is full or down goes back in the end, and a quorum queue counts that.
        while intake.until_growing().await.is_ok() {
            let opened = tokio::select! {
                opened = Session::open(&self.broker, &self.queue, self.prefetch, self.hold_limit) => opened,
                () = asked(&mut stop) => return,
            };
            let error = match opened {
                Ok(mut session) => {
                    *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = session.connection();
                    intake.resumed();
                    let end = session.consume(&self.reader, &intake, &mut rng, &mut stop).await;
                    if matches!(end, End::Stopped | End::Held) {
                        session.give_back().await;
                    }
                    session.close().await;
                    // A connection that takes nothing before it ends is no sign that all is well.
                    if session.acknowledged {
                        reconnect_delay = ReconnectDelay::default();
                    }
                    match end {
                        End::Stopped => return,
                        End::Held => {
                            let (source, held) = (intake.name(), self.hold_limit);
                            tracing::warn!(source, ?held, "what redis did not take goes back to the broker");
                            continue;
                        }
                        End::Lost(error) => error,
                    }
                }
                Err(error) => error,
            };
            intake.failing(&format!("{}: {error}", self.broker.address()));
            tokio::select! {
                () = sleep(reconnect_delay.next_delay()) => {}
                () = asked(&mut stop) => return,
            }
        }
    }

    /// Connects, and asks whether the queue can be read.
    async fn check(&self) -> Result<(), String> {
        let look = async |channel| rabbitmq::check_readable(&channel, &self.queue).await;
        self.broker.visit(ANSWER_TIMEOUT, look).await
    }

    /// The limit itself cannot be asked for.
    async fn advice(&self) -> Option<String> {
        let mut quorum = false;
        let look = async |channel| {
            quorum = rabbitmq::is_quorum(&channel, &self.queue).await;
            Ok(())
        };
        self.broker.visit(ANSWER_TIMEOUT, look).await.ok()?;
        quorum.then(|| ADVICE.to_owned())
    }

    /// Messages that are ready; what an instance has taken and not acknowledged yet is not among them. `None` while
    /// not connected.
    async fn depth(&self) -> Option<u64> {
        timeout(DEPTH_TIMEOUT, self.count()).await.ok()?.ok()
    }
}

/// Asks about the queue; if there is none, the broker closes the channel.
async fn see_queue(channel: &Channel, queue: &str) -> lapin::Result<Queue> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.into(), options, FieldTable::default()).await
}

async fn asked(stop: &mut watch::Receiver<bool>) {
    // A sender that is gone asks, too.
    let _ = stop.wait_for(|stop| *stop).await;
}
