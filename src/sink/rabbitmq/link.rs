//! One connection while it lasts, and the channels on it.
//!
//! A channel serves one batch for one exchange at a time, because a missing exchange closes the channel and fails
//! all that is pending on it, and because lapin credits returned messages wrongly when two share a channel
//! (`publish`). It goes back to the others only after every confirm has come. Where messages name their exchange,
//! the same few channels serve all of them, one after the other.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use lapin::{
    Channel, Connection, Event, ExchangeKind,
    options::{ConfirmSelectOptions, ExchangeDeclareOptions},
};
use tokio::{
    sync::{Semaphore, SemaphorePermit, oneshot},
    time::timeout,
};

use crate::amqp::{Connected, Switch, text};

/// Batches under way at once on one connection: enough to hide the time that a broker takes to write to disk.
pub const MAX_CHANNELS: usize = 4;
/// A closing handshake takes a round trip; a broker that does not answer it is left.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

pub struct Link {
    connection: Connection,
    switch: Switch,
    /// Why the broker last said that it takes nothing (memory or disk alarm). It says so only after a publish.
    reason: Mutex<String>,
    permits: Semaphore,
    idle: Mutex<Vec<Ready>>,
}

/// A channel in confirm mode, with nothing pending.
struct Ready {
    channel: Channel,
    /// The exchange that was last seen to exist.
    exchange: String,
}

/// A channel for one batch.
pub struct Lease<'a> {
    link: &'a Link,
    ready: Ready,
    _permit: SemaphorePermit<'a>,
}

impl Link {
    /// The second part is over when the connection is.
    pub fn new(connected: Connected) -> (Self, oneshot::Receiver<()>) {
        let Connected { connection, switch, over, .. } = connected;
        let permits = Semaphore::new(MAX_CHANNELS);
        (Self { connection, switch, reason: Mutex::default(), permits, idle: Mutex::default() }, over)
    }

    /// A channel on which `exchange` was seen. Waits while `MAX_CHANNELS` are in use.
    ///
    /// # Errors
    /// From the broker, e.g. that there is no such exchange.
    pub async fn channel(&self, exchange: &str) -> Result<Lease<'_>, lapin::Error> {
        let permit = self.permits.acquire().await.expect("never closed");
        let mut ready = if let Some(ready) = self.take_idle(exchange) {
            ready
        } else {
            let channel = self.connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ready { channel, exchange: String::new() }
        };
        // The default exchange has no name and cannot be declared: it is always there.
        if ready.exchange != exchange && !exchange.is_empty() {
            see_exchange(&ready.channel, exchange).await?;
        }
        exchange.clone_into(&mut ready.exchange);
        Ok(Lease { link: self, ready, _permit: permit })
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

    /// Ends the connection at once. What is pending on it fails; whether the broker took it is unknown.
    pub fn cut(&self) {
        self.switch.cut();
    }

    /// Ends the connection by a handshake, for which a blocked one is not ready.
    pub async fn close(&self) {
        // An error says that the connection is closed already.
        let _ = timeout(CLOSE_TIMEOUT, self.connection.close(200, "done".into())).await;
        self.cut();
    }

    fn take_idle(&self, exchange: &str) -> Option<Ready> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|ready| ready.channel.status().connected());
        let place = idle.iter().position(|ready| ready.exchange == exchange);
        place.map(|place| idle.swap_remove(place)).or_else(|| idle.pop())
    }
}

impl Lease<'_> {
    pub fn channel(&self) -> &Channel {
        &self.ready.channel
    }

    /// Only when every confirm has come. A lease that is dropped closes its channel.
    pub fn give_back(self) {
        self.link.idle.lock().unwrap_or_else(PoisonError::into_inner).push(self.ready);
    }
}

/// Asks whether `exchange` exists; if not, the broker closes the channel.
pub async fn see_exchange(channel: &Channel, exchange: &str) -> Result<(), lapin::Error> {
    let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    let name = lapin::types::ShortString::try_new(exchange)
        .map_err(|error| lapin::Error::from(std::io::Error::other(format!("exchange: {error}"))))?;
    // The kind is not looked at when passive.
    channel.exchange_declare(name, ExchangeKind::Direct, options, lapin::types::FieldTable::default()).await
}
