//! A channel in confirm mode.
//!
//! One task publishes on a channel at a time, because lapin mixes up the confirms of concurrent publishes. Confirms are
//! awaited without holding the channel: one that does not come delays nothing that is published after it.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use lapin::{
    Confirmation, Connection, Error, PublisherConfirm,
    options::{BasicPublishOptions, ConfirmSelectOptions},
};

use super::message::{Prepared, Tag};
use crate::connector::rabbitmq::Returns;

pub struct Channel {
    inner: lapin::Channel,
    returns: Returns,
    /// Of the messages without a confirm; `None` for a message that cannot be told.
    returned: Mutex<HashSet<Option<Tag>>>,
    /// Messages without a confirm.
    pending: AtomicUsize,
    /// Takes no more messages: a confirm is overdue.
    worn: AtomicBool,
}

/// A message that was published and has no confirm yet. Keeps its channel open.
pub struct Pending {
    channel: Arc<Channel>,
    confirm: PublisherConfirm,
    tag: Tag,
    _count: Count,
}

/// What a broker said about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Taken,
    /// No queue takes it.
    Returned,
    /// By nack.
    Refused,
}

/// One of `pending`.
struct Count(Arc<Channel>);

impl Channel {
    pub async fn open(connection: &Connection, returns: &Returns) -> Result<Arc<Self>, Error> {
        let inner = connection.create_channel().await?;
        // The channel that had this number before may have left some.
        drop(returns.take(inner.id()));
        inner.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Arc::new(Self {
            inner,
            returns: returns.clone(),
            returned: Mutex::default(),
            pending: AtomicUsize::new(0),
            worn: AtomicBool::new(false),
        }))
    }

    /// Must not be called concurrently.
    pub async fn publish(self: &Arc<Self>, exchange: &str, message: &Prepared) -> Result<Pending, Error> {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let (key, properties) = (message.routing_key.clone(), message.properties.clone());
        let confirm = self.inner.basic_publish(exchange.into(), key, options, &message.payload, properties).await?;
        self.pending.fetch_add(1, Ordering::Relaxed);
        let count = Count(Arc::clone(self));
        Ok(Pending { channel: Arc::clone(self), confirm, tag: message.tag.clone(), _count: count })
    }

    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    pub fn is_usable(&self) -> bool {
        self.inner.status().connected() && !self.worn.load(Ordering::Relaxed)
    }

    /// Publishes nothing more. It closes once nobody awaits a confirm of it.
    pub fn retire(&self) {
        self.worn.store(true, Ordering::Relaxed);
    }

    /// Whether the broker returned a message that it has confirmed.
    fn was_returned(&self, tag: &Tag) -> bool {
        let mut returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner);
        returned.extend(self.returns.take(self.inner.id()).iter().map(Tag::of));
        // Without its headers it cannot be told which message it was, so none may count as delivered from then on.
        returned.remove(&Some(tag.clone())) || returned.contains(&None)
    }
}

impl Pending {
    /// # Errors
    /// The channel or the connection is gone; whether the broker has the message is unknown.
    pub async fn verdict(self) -> Result<Verdict, Error> {
        let confirmation = self.confirm.await?;
        // Which message lapin hands out with it says nothing.
        Ok(match (confirmation, self.channel.was_returned(&self.tag)) {
            (Confirmation::Ack(_), false) => Verdict::Taken,
            (_, true) => Verdict::Returned,
            (Confirmation::Nack(_) | Confirmation::NotRequested, false) => Verdict::Refused,
        })
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
    }
}
