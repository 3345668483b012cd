//! The way from a source into the queue: everything that must not get lost on it.
//!
//! What cannot be scheduled becomes a dead letter with the reason. While Redis is down or full the intake waits,
//! and the source with it. A live id with other content is scheduled under a digest of both. What a source takes
//! again after a crash has the id that it had, and changes nothing.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio::{sync::watch, time::sleep};

use super::{
    id::digest,
    status::{Side, Status},
};
use crate::{
    message::{MessageId, NewMessage, OnConflict, StoredMessage},
    metrics::SourceMetrics,
    port::StoreError,
    queue::{self, Cancelled, Queue, QueueError},
};

/// Waits between two tries while Redis cannot take messages: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];
/// Until a message that is in flight is looked at again, to be replaced or cancelled.
const IN_FLIGHT_PAUSE: Duration = Duration::from_millis(50);
/// Most that are scheduled in one call.
const BATCH: usize = 1000;

/// What a source has taken.
#[derive(Clone, Debug)]
pub enum Entry {
    Schedule(NewMessage),
    /// It cannot be understood; why. Its due time does not matter.
    Invalid(NewMessage, String),
    /// No longer wanted.
    Cancel(MessageId),
}

impl Entry {
    fn id(&self) -> &MessageId {
        match self {
            Self::Schedule(message) | Self::Invalid(message, _) => &message.id,
            Self::Cancel(id) => id,
        }
    }
}

/// Punctual is stopping: what was given is not, or not known to be, in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("punctual is stopping")]
pub struct Stopped;

/// One source's way in. Cheap to clone.
#[derive(Clone)]
pub struct Intake {
    queue: Arc<Queue>,
    name: Arc<str>,
    route: Arc<str>,
    status: Arc<Status>,
    metrics: SourceMetrics,
    stop: watch::Receiver<bool>,
}

impl Intake {
    pub fn new(
        queue: Arc<Queue>,
        name: &str,
        route: Arc<str>,
        status: Arc<Status>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        Self { queue, name: name.into(), metrics: SourceMetrics::new(name), route, status, stop }
    }

    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// The source's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn route(&self) -> &Arc<str> {
        &self.route
    }

    pub fn metrics(&self) -> &SourceMetrics {
        &self.metrics
    }

    /// All is well with the source's system.
    pub fn running(&self) {
        self.well(Side::System);
    }

    /// The source's system cannot be used at present.
    pub fn failing(&self, error: &str) {
        self.wrong(Side::System, error);
    }

    fn well(&self, side: Side) {
        if self.status.set_well(side) {
            tracing::info!(source = &*self.name, "the source takes messages");
        }
    }

    fn wrong(&self, side: Side, error: &str) {
        if self.status.set_failing(side, error) {
            tracing::warn!(source = &*self.name, error, "the source cannot take messages; trying again");
        }
    }

    /// Messages are taken, but something else does not work. Whether this is news, which the caller logs.
    pub fn impaired(&self, error: &str) -> bool {
        self.status.set_failing(Side::System, error)
    }

    /// Returns once Redis has all of it. Entries of one id take effect in their order.
    ///
    /// # Errors
    /// When punctual stops first: nothing of this may be acknowledged upstream.
    pub async fn take(&self, entries: Vec<Entry>) -> Result<(), Stopped> {
        let mut part = Vec::new();
        let mut ids = HashSet::new();
        for entry in entries {
            let cancels = matches!(entry, Entry::Cancel(_));
            if cancels || part.len() == BATCH || !ids.insert(entry.id().clone()) {
                self.take_part(std::mem::take(&mut part)).await?;
                ids = HashSet::from([entry.id().clone()]);
            }
            match entry {
                Entry::Cancel(id) => self.cancel(&id).await?,
                other => part.push(other),
            }
        }
        self.take_part(part).await
    }

    /// No two of one id.
    async fn take_part(&self, entries: Vec<Entry>) -> Result<(), Stopped> {
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        for entry in entries {
            match entry {
                Entry::Schedule(message) => match self.check(&message) {
                    Ok(()) => good.push(message),
                    Err(error) => bad.push((message, error)),
                },
                Entry::Invalid(message, error) => bad.push((message, error)),
                Entry::Cancel(_) => unreachable!("cancelled one by one"),
            }
        }
        if !bad.is_empty() {
            self.metrics.invalid.increment(bad.len() as u64);
        }
        while !bad.is_empty() {
            let left = self.until_done(|| self.queue.inter(&self.route, bad.clone())).await?;
            bad = Vec::new();
            for (message, error) in left {
                bad.extend(self.other_content(message).await?.map(|message| (message, error)));
            }
        }
        while !good.is_empty() {
            good = self.schedule(good).await?;
        }
        Ok(())
    }

    fn check(&self, message: &NewMessage) -> Result<(), String> {
        let (size, most) = (message.payload.len(), self.queue.max_payload(&self.route));
        if size > most {
            return Err(format!("the payload takes {size} bytes, at most {most}"));
        }
        message.metadata.validate().map_err(|(field, text)| format!("{field}: {text}"))?;
        queue::check_due(message.due).map_err(|error| error.to_string())
    }

    /// Returns what must be tried again, in another form.
    async fn schedule(&self, messages: Vec<NewMessage>) -> Result<Vec<NewMessage>, Stopped> {
        let answers = self.until_done(|| self.queue.schedule(&self.route, &self.name, messages.clone())).await?;
        let (mut again, mut taken, mut in_flight) = (Vec::new(), 0, false);
        for (message, answer) in messages.into_iter().zip(answers) {
            match answer.status {
                queue::Status::Scheduled | queue::Status::Replaced | queue::Status::Revived => taken += 1,
                queue::Status::Exists(_) => again.extend(self.other_content(message).await?),
                // A schedule whose key is used anew is another one, though the key was remembered.
                queue::Status::Ended(_) if message.on_conflict == OnConflict::Replace => {
                    let due = format!("{:?}", message.due);
                    let id = digest(&[message.id.as_str().as_bytes(), due.as_bytes()]);
                    again.push(under_digest(NewMessage { id, ..message }));
                }
                // It was taken before.
                queue::Status::Ended(_) => {}
                queue::Status::InFlight => {
                    in_flight = true;
                    again.push(message);
                }
            }
        }
        self.metrics.taken.increment(taken);
        if in_flight {
            self.pause(IN_FLIGHT_PAUSE).await?;
        }
        Ok(again)
    }

    /// The message under another id, unless the live one of its id is the same.
    async fn other_content(&self, message: NewMessage) -> Result<Option<NewMessage>, Stopped> {
        let live = self.until_done(|| self.queue.get(&self.route, &message.id)).await?;
        let is_same = |stored: &StoredMessage| stored.payload == message.payload && stored.metadata == message.metadata;
        let live = match live {
            Some(queue::Found::Live(live)) => live,
            // Delivered or cancelled meanwhile: remembered or not, scheduling it again will tell.
            Some(queue::Found::Ended(_)) | None => return Ok(Some(message)),
        };
        match live.message {
            Ok(stored) if is_same(&stored) => Ok(None),
            _ => {
                self.metrics.conflicts.increment(1);
                Ok(Some(under_digest(message)))
            }
        }
    }

    async fn cancel(&self, id: &MessageId) -> Result<(), Stopped> {
        loop {
            match self.until_done(|| self.queue.cancel(&self.route, id)).await? {
                Cancelled::InFlight => self.pause(IN_FLIGHT_PAUSE).await?,
                Cancelled::Cancelled | Cancelled::Purged | Cancelled::NotFound => return Ok(()),
            }
        }
    }

    /// Repeats a call that is safe to repeat until Redis answers.
    pub async fn until_done<T, F: Future<Output = Result<T, QueueError>>>(
        &self,
        mut call: impl FnMut() -> F,
    ) -> Result<T, Stopped> {
        let [mut pause, longest] = PAUSES;
        let _asking = Asking(&self.status);
        loop {
            let error = match call().await {
                Ok(done) => {
                    self.well(Side::Redis);
                    return Ok(done);
                }
                Err(QueueError::Store(StoreError::Unavailable { kind: "shutdown", .. })) if *self.stop.borrow() => {
                    return Err(Stopped);
                }
                Err(error) => error,
            };
            self.wrong(Side::Redis, &error.to_string());
            self.pause(pause).await?;
            pause = longest.min(pause * 2);
        }
    }

    async fn pause(&self, pause: Duration) -> Result<(), Stopped> {
        let mut stop = self.stop.clone();
        tokio::select! {
            () = sleep(pause) => Ok(()),
            _ = stop.wait_for(|stop| *stop) => Err(Stopped),
        }
    }
}

/// A call that is repeated. Once nobody waits for it, Redis may be back long before there is something to take again.
struct Asking<'a>(&'a Status);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.forget(Side::Redis);
    }
}

/// The same content gets the same id.
fn under_digest(message: NewMessage) -> NewMessage {
    let metadata = serde_json::to_vec(&message.metadata).expect("text and numbers always serialize");
    let id = digest(&[message.id.as_str().as_bytes(), &metadata, &message.payload]);
    NewMessage { id, on_conflict: OnConflict::Keep, ..message }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, collections::BTreeMap};

    use super::{super::SourceState, *};
    use crate::{connection::Connection, store::redis::RedisStore};

    #[tokio::test(start_paused = true)]
    async fn a_call_is_given_up_only_when_punctual_stops() {
        let client = redis::Client::open("redis://127.0.0.1:1").expect("a URL");
        let connection = Arc::new(Connection::new(client, Duration::from_secs(1)));
        let queue = Arc::new(Queue::new(Arc::new(RedisStore::new(connection, "p", [])), &BTreeMap::new(), false));
        let (stop, stopping) = watch::channel(false);
        let status = Arc::<Status>::default();
        let intake = Intake::new(queue, "in", "r".into(), status.clone(), stopping);
        let calls = Cell::new(0);
        let failed =
            || QueueError::Store(StoreError::Unavailable { kind: "shutdown", text: "a task has failed".into() });
        let call = |good| {
            calls.set(calls.get() + 1);
            let answer = if calls.get() == good { Ok(()) } else { Err(failed()) };
            async move { answer }
        };
        assert_eq!(intake.until_done(|| call(3)).await, Ok(()));
        assert_eq!(status.get(), (SourceState::Running, Some(failed().to_string())));
        stop.send_replace(true);
        assert_eq!(intake.until_done(|| call(9)).await, Err(Stopped));
        assert_eq!(calls.get(), 4);
    }
}
