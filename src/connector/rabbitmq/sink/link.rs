//! One connection while it lasts, and the channels on it.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use lapin::{Connection, Error, Event, ExchangeKind, options::ExchangeDeclareOptions};
use tokio::{
    sync::{Semaphore, SemaphorePermit, oneshot},
    time::timeout,
};

use super::channel::Channel;
use crate::connector::rabbitmq::{Connected, Returns, Switch, text};

/// Channels that are published on at once: enough to hide a round trip.
const MAX_CHANNELS: usize = 4;
/// Unconfirmed messages of a channel above which another one is taken, if there may be. RabbitMQ stops reading a
/// connection once a channel has 400 messages for a queue that hangs and 400 more behind them.
const BUSY_MESSAGES: usize = 250;
/// Channels with a single message: enough to hide the time that a broker takes to write to disk.
pub const MAX_LONE_CHANNELS: usize = 16;
/// Exchanges that are remembered as there: few bytes each, and asking again costs a round trip.
const MAX_EXCHANGES: usize = 1000;
/// A closing handshake takes a round trip; a broker that does not answer it is left.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest time that a broker takes to open a channel, however busy it is, before its connection counts as lost.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(3);

pub struct Link {
    connection: Connection,
    switch: Switch,
    returns: Returns,
    /// Why the broker last said that it takes nothing (memory or disk alarm). It says so only after a publish.
    reason: Mutex<String>,
    permits: Semaphore,
    lone_permits: Semaphore,
    idle: Mutex<Vec<Arc<Channel>>>,
    /// Exchanges that were seen.
    exchanges: Mutex<HashSet<String>>,
    /// A channel that publishes nothing, because a missing exchange closes it.
    asking: tokio::sync::Mutex<Option<lapin::Channel>>,
    is_examined: AtomicBool,
}

/// A channel that no one else publishes on.
pub struct Lease<'a> {
    link: &'a Link,
    channel: Arc<Channel>,
    _permit: SemaphorePermit<'a>,
}

impl Link {
    /// The second part is over when the connection is.
    pub fn new(connected: Connected) -> (Self, oneshot::Receiver<()>) {
        let Connected { connection, switch, returns, over, .. } = connected;
        let link = Self {
            connection,
            switch,
            returns,
            reason: Mutex::default(),
            permits: Semaphore::new(MAX_CHANNELS),
            lone_permits: Semaphore::new(MAX_LONE_CHANNELS),
            idle: Mutex::default(),
            exchanges: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
            is_examined: AtomicBool::new(false),
        };
        (link, over)
    }

    /// Waits while `MAX_CHANNELS` are published on.
    ///
    /// # Errors
    /// From the broker or the connection.
    pub async fn channel(&self) -> Result<Lease<'_>, Error> {
        let permit = self.permits.acquire().await.expect("never closed");
        let channel = match self.take_idle() {
            Some(channel) => channel,
            None => Channel::open(&self.connection, &self.returns).await?,
        };
        Ok(Lease { link: self, channel, _permit: permit })
    }

    /// A channel for a single message. Waits while `MAX_LONE_CHANNELS` are in use.
    ///
    /// # Errors
    /// From the broker or the connection.
    pub async fn lone_channel(&self) -> Result<Lease<'_>, Error> {
        let permit = self.lone_permits.acquire().await.expect("never closed");
        let channel = Channel::open(&self.connection, &self.returns).await?;
        Ok(Lease { link: self, channel, _permit: permit })
    }

    /// Makes sure that `exchange` exists, as far as is known.
    ///
    /// # Errors
    /// From the broker, e.g. that there is no such exchange.
    pub async fn see(&self, exchange: &str) -> Result<(), Error> {
        if self.exchanges().contains(exchange) {
            return Ok(());
        }
        // One after the other, so that each message of an exchange finds what the first has learned.
        let mut asking = self.asking.lock().await;
        if self.exchanges().contains(exchange) {
            return Ok(());
        }
        let channel = match asking.take().filter(|channel| channel.status().connected()) {
            Some(channel) => channel,
            None => self.connection.create_channel().await?,
        };
        see_exchange(&channel, exchange).await?;
        *asking = Some(channel);
        let mut exchanges = self.exchanges();
        if exchanges.len() >= MAX_EXCHANGES {
            exchanges.clear();
        }
        exchanges.insert(exchange.to_owned());
        Ok(())
    }

    /// The next `see` asks the broker.
    pub fn forget(&self, exchange: &str) {
        self.exchanges().remove(exchange);
    }

    /// Follows what the broker says about the connection, until it is over. Returns why.
    pub async fn watch(&self, mut over: oneshot::Receiver<()>) -> String {
        let mut events = Box::pin(self.connection.events_listener());
        let mut last_error = None;
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Event::ConnectionBlocked(reason)) => {
                        tracing::warn!(reason, "the broker takes nothing");
                        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
                    }
                    Some(Event::ConnectionUnblocked) => tracing::info!("the broker takes messages again"),
                    // Of a channel or of the whole: the end of the line tells which.
                    Some(Event::Error(error)) => last_error = Some(text(&error)),
                    Some(_) => {}
                    None => break,
                },
                _ = &mut over => break,
            }
        }
        while let Some(Some(event)) = futures::FutureExt::now_or_never(events.next()) {
            if let Event::Error(error) = event {
                last_error = Some(text(&error));
            }
        }
        last_error.unwrap_or_else(|| "the connection was closed".into())
    }

    /// Why the broker takes nothing at present, if so.
    pub fn blocked(&self) -> Option<String> {
        let blocked = self.connection.status().blocked();
        blocked.then(|| self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    pub fn is_connected(&self) -> bool {
        self.connection.status().connected()
    }

    /// Bytes of the largest frame that the broker takes.
    pub fn frame_max(&self) -> usize {
        match self.connection.configuration().frame_max() {
            0 => usize::MAX,
            bytes => usize::try_from(bytes).unwrap_or(usize::MAX),
        }
    }

    /// Ends the connection at once. What is pending on it fails; whether the broker took it is unknown.
    pub fn cut(&self) {
        self.switch.cut();
    }

    /// Cuts the connection if the broker no longer answers on it, unless that said that it takes nothing: on a new
    /// connection it would take one message more before it says so. Returns at once. Must be called within a tokio runtime.
    pub fn examine(self: &Arc<Self>) {
        if self.is_examined.swap(true, Ordering::Relaxed) {
            return;
        }
        let link = Arc::clone(self);
        tokio::spawn(async move {
            let answer = timeout(ALIVE_TIMEOUT, link.connection.create_channel()).await;
            if answer.is_err() && link.blocked().is_none() {
                tracing::warn!("the broker does not answer; the connection is cut");
                link.cut();
            }
            link.is_examined.store(false, Ordering::Relaxed);
        });
    }

    /// Ends the connection by a handshake, for which a blocked one is not ready.
    pub async fn close(&self) {
        // An error says that the connection is closed already.
        let _ = timeout(CLOSE_TIMEOUT, self.connection.close(200, "done".into())).await;
        self.cut();
    }

    fn exchanges(&self) -> MutexGuard<'_, HashSet<String>> {
        self.exchanges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one with the fewest unconfirmed messages; `None` where another one should be opened.
    fn take_idle(&self) -> Option<Arc<Channel>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|channel| channel.is_usable());
        let (place, channel) = idle.iter().enumerate().min_by_key(|(_, channel)| channel.pending())?;
        let is_enough = channel.pending() < BUSY_MESSAGES || idle.len() == MAX_CHANNELS;
        is_enough.then(|| idle.swap_remove(place))
    }
}

impl Lease<'_> {
    pub fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// For others to publish on. A lease that is dropped instead closes its channel once no confirm is awaited.
    pub fn give_back(self) {
        let mut idle = self.link.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if self.channel.is_usable() && idle.len() < MAX_CHANNELS {
            idle.push(self.channel);
        }
    }
}

/// Asks whether `exchange` exists; if not, the broker closes the channel. The default exchange has no name and cannot be
/// declared: it is always there.
async fn see_exchange(channel: &lapin::Channel, exchange: &str) -> Result<(), Error> {
    if exchange.is_empty() {
        return Ok(());
    }
    let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    let name = lapin::types::ShortString::try_new(exchange)
        .map_err(|error| Error::from(std::io::Error::other(format!("exchange: {error}"))))?;
    // The kind is not looked at when passive.
    channel.exchange_declare(name, ExchangeKind::Direct, options, lapin::types::FieldTable::default()).await
}
