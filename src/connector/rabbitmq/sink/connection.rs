//! One connection of the sink, and its channels.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, StreamExt};
use lapin::{
    Error, Event, ExchangeKind,
    options::ExchangeDeclareOptions,
    types::{FieldTable, ShortString},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

use super::channel::ConfirmChannel;
use crate::{
    connector::rabbitmq::{BrokerConnection, text},
    sink::{
        Domain,
        turns::{FairPermit, FairPermits},
    },
};

/// Maximum channels with concurrent batches: enough to hide a round trip.
const MAX_CHANNELS: usize = 4;
/// Unconfirmed messages of a channel above which another channel is used, up to `MAX_CHANNELS`. RabbitMQ stops reading a
/// connection when a channel has 400 messages for a blocked queue and 400 more behind them.
const BUSY_MESSAGES: usize = 250;
/// Maximum channels with a single message each: enough to hide the time of a broker's disk write.
pub const MAX_LONE_CHANNELS: usize = 16;
/// Maximum exchanges that are known to exist. Each takes few bytes; a declare takes a round trip.
const MAX_EXCHANGES: usize = 1000;
/// Maximum wait for a new channel before the connection counts as dead. A busy broker answers within it.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

pub struct SinkConnection {
    broker: BrokerConnection,
    /// The latest reason for which the broker blocked the connection (memory or disk alarm). It is sent after a publish.
    blocked_reason: Mutex<String>,
    permits: Arc<FairPermits>,
    lone_permits: Semaphore,
    idle: Mutex<Vec<Arc<ConfirmChannel>>>,
    /// Exchanges that are known to exist.
    exchanges: Mutex<HashSet<String>>,
    /// A channel for declares alone, because a missing exchange closes it.
    declaring: tokio::sync::Mutex<Option<lapin::Channel>>,
    is_probing: AtomicBool,
}

/// Exclusive use of a channel.
pub struct ChannelPermit<'a> {
    connection: &'a SinkConnection,
    channel: Arc<ConfirmChannel>,
    _permit: Permit<'a>,
}

enum Permit<'a> {
    Fair(#[expect(dead_code, reason = "given back on drop")] FairPermit),
    Lone(#[expect(dead_code, reason = "given back on drop")] SemaphorePermit<'a>),
}

impl SinkConnection {
    pub fn new(broker: BrokerConnection) -> Self {
        Self {
            broker,
            blocked_reason: Mutex::default(),
            permits: FairPermits::new(MAX_CHANNELS),
            lone_permits: Semaphore::new(MAX_LONE_CHANNELS),
            idle: Mutex::default(),
            exchanges: Mutex::default(),
            declaring: tokio::sync::Mutex::default(),
            is_probing: AtomicBool::new(false),
        }
    }

    /// Waits while `MAX_CHANNELS` are in use. Routes take turns, and also exchanges if messages name them.
    ///
    /// # Errors
    /// From the broker or the connection.
    pub async fn channel(&self, route: &Arc<str>, exchange: Option<Domain>) -> Result<ChannelPermit<'_>, Error> {
        let permit = self.permits.acquire(route, exchange).await;
        let channel = match self.take_idle() {
            Some(channel) => channel,
            None => ConfirmChannel::open(&self.broker).await?,
        };
        Ok(ChannelPermit { connection: self, channel, _permit: Permit::Fair(permit) })
    }

    /// Whether messages of other routes or exchanges wait for a channel.
    pub fn others_wait(&self, route: &Arc<str>, exchange: Option<&Domain>) -> bool {
        self.permits.others_wait(route, exchange)
    }

    /// A new channel for a single message. Waits while `MAX_LONE_CHANNELS` are in use.
    ///
    /// # Errors
    /// From the broker or the connection.
    pub async fn lone_channel(&self) -> Result<ChannelPermit<'_>, Error> {
        let permit = self.lone_permits.acquire().await.expect("never closed");
        let channel = ConfirmChannel::open(&self.broker).await?;
        Ok(ChannelPermit { connection: self, channel, _permit: Permit::Lone(permit) })
    }

    /// Returns when `exchange` exists, or existed when it was last declared.
    ///
    /// # Errors
    /// From the broker or the connection; from the broker if the exchange does not exist.
    pub async fn ensure_exchange(&self, exchange: &str) -> Result<(), Error> {
        if self.exchanges().contains(exchange) {
            return Ok(());
        }
        // One declare at a time: later messages of the exchange use the result of the first.
        let mut declaring = self.declaring.lock().await;
        if self.exchanges().contains(exchange) {
            return Ok(());
        }
        let channel = match declaring.take().filter(|channel| channel.status().connected()) {
            Some(channel) => channel,
            None => self.broker.connection.create_channel().await?,
        };
        declare_passively(&channel, exchange).await?;
        *declaring = Some(channel);
        let mut exchanges = self.exchanges();
        if exchanges.len() >= MAX_EXCHANGES {
            exchanges.clear();
        }
        exchanges.insert(exchange.to_owned());
        Ok(())
    }

    /// Makes the next `ensure_exchange` ask the broker.
    pub fn forget_exchange(&self, exchange: &str) {
        self.exchanges().remove(exchange);
    }

    /// Handles the broker's events until the connection is closed. Returns the reason.
    pub async fn until_closed(&self) -> String {
        let mut events = Box::pin(self.broker.connection.events_listener());
        let mut last_error = None;
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Event::ConnectionBlocked(reason)) => {
                        tracing::warn!(reason, "the broker has blocked the connection");
                        *self.blocked_reason.lock() = reason;
                    }
                    Some(Event::ConnectionUnblocked) => tracing::info!("the broker has unblocked the connection"),
                    // An error of a channel or of the connection. Only the latter is followed by the end.
                    Some(Event::Error(error)) => last_error = Some(text(&error)),
                    Some(_) => {}
                    None => break,
                },
                () = self.broker.link.closed.cancelled() => break,
            }
        }
        while let Some(Some(event)) = events.next().now_or_never() {
            if let Event::Error(error) = event {
                last_error = Some(text(&error));
            }
        }
        last_error.unwrap_or_else(|| "the connection was closed".into())
    }

    /// The reason while the broker blocks the connection.
    pub fn blocked(&self) -> Option<String> {
        let blocked = self.broker.connection.status().blocked();
        blocked.then(|| self.blocked_reason.lock().clone())
    }

    pub fn is_connected(&self) -> bool {
        self.broker.connection.status().connected()
    }

    /// Maximum frame size of the broker, in bytes.
    pub fn frame_max(&self) -> usize {
        match self.broker.connection.configuration().frame_max() {
            0 => usize::MAX,
            bytes => usize::try_from(bytes).unwrap_or(usize::MAX),
        }
    }

    /// Ends the connection at once. Unconfirmed messages fail; the broker might have some of them.
    pub fn abort(&self) {
        self.broker.link.abort.cancel();
    }

    /// Aborts the connection if the broker does not answer on it. A blocked connection stays: a new one would publish
    /// another message before the broker blocks it. Returns at once. Must be called within a tokio runtime.
    pub fn probe(self: &Arc<Self>) {
        if self.is_probing.swap(true, Ordering::Relaxed) {
            return;
        }
        let connection = Arc::clone(self);
        tokio::spawn(async move {
            let answer = timeout(PROBE_TIMEOUT, connection.broker.connection.create_channel()).await;
            if answer.is_err() && connection.blocked().is_none() {
                tracing::warn!("the broker does not answer; aborting the connection");
                connection.abort();
            }
            connection.is_probing.store(false, Ordering::Relaxed);
        });
    }

    pub async fn close(&self) {
        self.broker.close().await;
    }

    fn exchanges(&self) -> MutexGuard<'_, HashSet<String>> {
        self.exchanges.lock()
    }

    /// The idle channel with the fewest unconfirmed messages; `None` if another channel should be opened.
    fn take_idle(&self) -> Option<Arc<ConfirmChannel>> {
        let mut idle = self.idle.lock();
        idle.retain(|channel| channel.is_usable());
        let pending: Vec<usize> = idle.iter().map(ConfirmChannel::pending).collect();
        calmest(&pending).map(|index| idle.swap_remove(index))
    }
}

impl ChannelPermit<'_> {
    pub fn channel(&self) -> &Arc<ConfirmChannel> {
        &self.channel
    }

    /// Keeps the channel for later batches. The channel of a dropped permit closes after its last confirm.
    pub fn release(self) {
        let mut idle = self.connection.idle.lock();
        if self.channel.is_usable() && idle.len() < MAX_CHANNELS {
            idle.push(self.channel);
        }
    }
}

/// The channel to use, by the numbers of unconfirmed messages of all idle ones; `None` if another one should be opened.
fn calmest(pending: &[usize]) -> Option<usize> {
    let (index, fewest) = pending.iter().enumerate().min_by_key(|(_, pending)| **pending)?;
    (*fewest < BUSY_MESSAGES || pending.len() == MAX_CHANNELS).then_some(index)
}

/// If `exchange` does not exist, the broker closes the channel. The default exchange has an empty name, cannot be declared,
/// and always exists.
async fn declare_passively(channel: &lapin::Channel, exchange: &str) -> Result<(), Error> {
    if exchange.is_empty() {
        return Ok(());
    }
    let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    let name = ShortString::try_new(exchange)
        .map_err(|error| Error::from(std::io::Error::other(format!("exchange: {error}"))))?;
    // The broker ignores the kind of a passive declare.
    channel.exchange_declare(name, ExchangeKind::Direct, options, FieldTable::default()).await
}

#[test]
fn a_busy_channel_is_used_only_if_there_are_no_more() {
    assert_eq!(calmest(&[]), None);
    assert_eq!(calmest(&[3, 1, 2]), Some(1));
    assert_eq!(calmest(&[BUSY_MESSAGES, BUSY_MESSAGES - 1]), Some(1));
    assert_eq!(calmest(&[BUSY_MESSAGES; MAX_CHANNELS - 1]), None);
    assert_eq!(calmest(&[BUSY_MESSAGES + 1, BUSY_MESSAGES, 999, 999]), Some(1));
}
