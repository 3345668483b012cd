//! A channel in confirm mode.
//!
//! One task at a time publishes on a channel, because lapin mixes up the confirms of concurrent publishes. A task that
//! awaits confirms does not hold the channel, so a missing confirm does not delay later messages.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Waker},
};

use futures::future::maybe_done;
use lapin::{
    Confirmation, Error, PublisherConfirm,
    options::{BasicPublishOptions, ConfirmSelectOptions},
};
use parking_lot::Mutex;

use super::message::{MessageTag, PreparedMessage};
use crate::connector::rabbitmq::{BrokerConnection, FrameNotes, portion};

/// Maximum messages that were given to lapin and are not sent yet. They are sent even after their batch has timed out.
/// The number is high enough that waiting for them costs little for each.
const MAX_AHEAD_MESSAGES: usize = 64;
/// Maximum bytes of payload of these messages, beyond one message: lapin has a copy of each.
const MAX_AHEAD_BYTES: usize = 256 * 1024;

pub struct ConfirmChannel {
    inner: lapin::Channel,
    notes: FrameNotes,
    /// Returned messages that are not confirmed yet. `None`: a message with unreadable headers.
    returned: Mutex<HashSet<Option<MessageTag>>>,
    /// No more messages are published, because a confirm is overdue.
    retired: AtomicBool,
}

/// A published message without a confirm. Keeps its channel open.
pub struct PendingConfirm {
    channel: Arc<ConfirmChannel>,
    confirm: PublisherConfirm,
    tag: MessageTag,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfirmVerdict {
    Accepted,
    /// No queue is bound for the routing key.
    Returned,
    Nacked,
}

impl ConfirmChannel {
    pub async fn open(broker: &BrokerConnection) -> Result<Arc<Self>, Error> {
        let (inner, notes) = (broker.connection.create_channel().await?, &broker.link.notes);
        // An earlier channel of this number might have left returned messages.
        drop(notes.take_returned(inner.id()));
        inner.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Arc::new(Self { inner, notes: notes.clone(), returned: Mutex::default(), retired: AtomicBool::new(false) }))
    }

    /// Publishes the first of `messages` in their order, as many as can be on their way to the socket at once. Returns
    /// the sent messages, and the error of the next one. Must not be called concurrently.
    pub async fn publish_some<'m>(
        self: &Arc<Self>,
        exchange: &str,
        messages: &mut impl Iterator<Item = &'m PreparedMessage>,
    ) -> (Vec<PendingConfirm>, Option<Error>) {
        let mut publishing = Vec::new();
        for message in portion(messages, MAX_AHEAD_MESSAGES, MAX_AHEAD_BYTES, |message| message.payload.len()) {
            let mut one = Box::pin(maybe_done(self.publish(exchange, message)));
            // The first poll queues the message in lapin. Nothing waits for it yet, so nothing is woken when it is sent.
            let _ = one.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            publishing.push(one);
        }
        // Messages are sent in order. When the last one was sent, all were, and the task is woken once.
        for one in publishing.iter_mut().rev() {
            one.await;
        }
        let mut pending = Vec::with_capacity(publishing.len());
        for mut one in publishing {
            match one.as_mut().take_output().expect("it was awaited") {
                Ok(confirm) => pending.push(confirm),
                Err(error) => return (pending, Some(error)),
            }
        }
        (pending, None)
    }

    /// Must not be called concurrently.
    pub async fn publish(self: &Arc<Self>, exchange: &str, message: &PreparedMessage) -> Result<PendingConfirm, Error> {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let (key, properties) = (message.routing_key.clone(), message.properties.clone());
        let confirm = self.inner.basic_publish(exchange.into(), key, options, &message.payload, properties).await?;
        Ok(PendingConfirm { channel: Arc::clone(self), confirm, tag: message.tag.clone() })
    }

    /// The number of messages without a confirm, plus a few other users: each of them keeps the channel.
    pub fn pending(self: &Arc<Self>) -> usize {
        Arc::strong_count(self)
    }

    pub fn is_usable(&self) -> bool {
        self.inner.status().connected() && !self.retired.load(Ordering::Relaxed)
    }

    /// Stops publishing. The channel closes after its last confirm.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// Whether the broker returned a message that it has confirmed.
    fn was_returned(&self, tag: &MessageTag) -> bool {
        let mut returned = self.returned.lock();
        returned.extend(self.notes.take_returned(self.inner.id()).iter().map(MessageTag::of));
        // A returned message with unreadable headers can be any message, so no later one counts as delivered.
        returned.remove(&Some(tag.clone())) || returned.contains(&None)
    }
}

impl PendingConfirm {
    /// # Errors
    /// When the channel or the connection is closed. The broker might have the message.
    pub async fn verdict(self) -> Result<ConfirmVerdict, Error> {
        let confirmation = self.confirm.await?;
        // The message that lapin attaches to the confirm can be another one.
        Ok(match (confirmation, self.channel.was_returned(&self.tag)) {
            (Confirmation::Ack(_), false) => ConfirmVerdict::Accepted,
            (_, true) => ConfirmVerdict::Returned,
            (Confirmation::Nack(_) | Confirmation::NotRequested, false) => ConfirmVerdict::Nacked,
        })
    }
}
