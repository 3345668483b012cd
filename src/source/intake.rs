//! The way from a source into the queue: everything that must not get lost on it.
//!
//! What cannot be scheduled becomes a dead letter with the reason. While Redis is down or full the intake waits,
//! and the source with it. A live id with other content is scheduled under a digest of both. What a source takes
//! again after a crash has the id or the record that it had, and changes nothing.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    entry::{Entry, folded},
    status::{Side, Status},
};
use crate::{
    message::{Cancellation, Limit, MessageId, NewMessage, OnConflict, StoredMessage, digest},
    metrics::SourceMetrics,
    queue::{self, Queue, QueueError},
    store::{Cancelled, Found, ScheduleStatus, StoreError},
    time::{Due, UnixMillis},
};

/// Waits between two tries while Redis cannot take messages: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];
/// Until a message that is in flight is looked at again, to be replaced or cancelled: at first, and at last.
const IN_FLIGHT_PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];
/// Until a route that is at one of its limits is asked again: at first, and at last.
const FULL_PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];
/// After so long such a wait is told: the message's sink is slow or away.
const IN_FLIGHT_SILENCE: Duration = Duration::from_secs(1);
/// Most that are scheduled in one call.
const BATCH: usize = 1000;

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

    /// Returns once Redis takes messages for the route, which `resumed` makes known.
    ///
    /// # Errors
    /// When punctual stops first.
    pub async fn until_growing(&self) -> Result<(), Stopped> {
        self.repeat(|| self.queue.check_growing(&self.route)).await
    }

    /// All is well with Redis and the source's system.
    pub fn resumed(&self) {
        self.well(Side::Redis);
        self.well(Side::System);
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

    /// Returns once Redis has all of it. Of entries that replace or cancel one id, only the last takes effect. Dropped
    /// before, it may have done any of it, and what is in the connection by then may still be done.
    ///
    /// # Errors
    /// When punctual stops first: nothing of this may be acknowledged upstream.
    pub async fn take(&self, entries: Vec<Entry>) -> Result<(), Stopped> {
        let (mut good, mut bad, mut cancelled) = (Vec::new(), Vec::new(), Vec::new());
        // What cannot be scheduled replaces nothing.
        for entry in folded(entries.into_iter().map(|entry| self.checked(entry))) {
            match entry {
                Entry::Schedule(message) => good.push(message),
                Entry::Invalid(message, error) => bad.push((message, error)),
                Entry::Cancel(cancellation) => cancelled.push(cancellation),
            }
        }
        self.bury(bad).await?;
        while !good.is_empty() {
            let rest = good.split_off(good.len().min(BATCH));
            self.schedule(good).await?;
            good = rest;
        }
        if !cancelled.is_empty() {
            self.cancel(cancelled).await?;
        }
        Ok(())
    }

    fn checked(&self, entry: Entry) -> Entry {
        let Entry::Schedule(message) = entry else { return entry };
        match self.check(&message) {
            Ok(()) => Entry::Schedule(message),
            Err(error) => Entry::Invalid(kept_apart(message), error),
        }
    }

    fn check(&self, message: &NewMessage) -> Result<(), String> {
        let (size, most) = (message.payload.len(), self.queue.max_payload(&self.route));
        if size > most {
            return Err(format!("the payload takes {size} bytes, at most {most}"));
        }
        message.metadata.validate().map_err(|(field, text)| format!("{field}: {text}"))?;
        queue::check_due(message.due).map_err(|error| error.to_string())
    }

    async fn bury(&self, mut bad: Vec<(NewMessage, String)>) -> Result<(), Stopped> {
        if !bad.is_empty() {
            self.metrics.invalid.increment(bad.len() as u64);
        }
        // Dead letters are due when they came.
        for (message, _) in &mut bad {
            message.due = Due::NOW;
        }
        while !bad.is_empty() {
            let left = self.until_done(|| self.queue.inter(&self.route, bad.clone())).await?;
            bad = Vec::new();
            for (message, error) in left {
                bad.extend(self.other_content(message).await?.map(|message| (message, error)));
            }
        }
        Ok(())
    }

    async fn schedule(&self, mut messages: Vec<NewMessage>) -> Result<(), Stopped> {
        let (begun, _asking) = (Instant::now(), Asking(&self.status, Side::Flight));
        let _limited = Asking(&self.status, Side::Limits);
        let (mut too_long, mut full_since) = (Vec::new(), None);
        while !messages.is_empty() {
            // While the route is full one message is enough to ask with.
            let rest = if full_since.is_some() { messages.split_off(1) } else { Vec::new() };
            let answers = self.until_done(|| self.queue.schedule(&self.route, &self.name, messages.clone())).await?;
            let (mut again, mut taken, mut known, mut in_flight, mut full) = (Vec::new(), 0, 0, None, None);
            for (message, answer) in messages.into_iter().zip(answers) {
                match answer.status {
                    ScheduleStatus::Scheduled | ScheduleStatus::Replaced | ScheduleStatus::Revived => taken += 1,
                    ScheduleStatus::Exists(_) => match self.other_content(message).await? {
                        Some(other) => again.push(other),
                        None => known += 1,
                    },
                    ScheduleStatus::Known | ScheduleStatus::Ended(_) => known += 1,
                    ScheduleStatus::InFlight => {
                        in_flight = Some(message.id.clone());
                        again.push(message);
                    }
                    ScheduleStatus::Over(Limit::Delay) => too_long.push(message),
                    ScheduleStatus::Over(limit) => {
                        full = Some(limit);
                        again.push(message);
                    }
                }
            }
            self.metrics.taken.increment(taken);
            self.metrics.known.increment(known);
            if let Some(id) = in_flight {
                self.wait_for(&id, "its replacement", begun).await?;
            }
            if let Some(limit) = full {
                let since = *full_since.get_or_insert_with(Instant::now);
                self.wrong(Side::Limits, limit.explain());
                let [first, last] = FULL_PAUSES;
                self.pause((since.elapsed() / 4).clamp(first, last)).await?;
            } else if full_since.take().is_some() {
                self.well(Side::Limits);
            }
            again.extend(rest);
            messages = again;
        }
        self.well(Side::Flight);
        let too_long = too_long.into_iter().map(|message| (kept_apart(message), Limit::Delay.explain().to_owned()));
        self.bury(too_long.collect()).await
    }

    async fn cancel(&self, mut cancelled: Vec<Cancellation>) -> Result<(), Stopped> {
        let (begun, _asking) = (Instant::now(), Asking(&self.status, Side::Flight));
        while !cancelled.is_empty() {
            let mut in_flight = Vec::new();
            for one in cancelled {
                match self.until_done(|| self.queue.cancel(&self.route, &one)).await? {
                    Cancelled::InFlight => in_flight.push(one),
                    Cancelled::Known => self.metrics.known.increment(1),
                    Cancelled::Cancelled | Cancelled::Purged | Cancelled::NotFound => {}
                }
            }
            if let Some(one) = in_flight.last() {
                self.wait_for(&one.id, "its cancellation", begun).await?;
            }
            cancelled = in_flight;
        }
        self.well(Side::Flight);
        Ok(())
    }

    /// A pause until a message that is in flight is looked at again, since `begun`.
    async fn wait_for(&self, id: &MessageId, what: &str, begun: Instant) -> Result<(), Stopped> {
        if begun.elapsed() >= IN_FLIGHT_SILENCE {
            self.wrong(Side::Flight, &format!("`{id}` is in flight, {what} waits"));
        }
        let [first, last] = IN_FLIGHT_PAUSES;
        self.pause((begun.elapsed() / 4).clamp(first, last)).await
    }

    /// The message under another id, unless the live one of its id is the same.
    async fn other_content(&self, message: NewMessage) -> Result<Option<NewMessage>, Stopped> {
        let live = self.until_done(|| self.queue.get(&self.route, &message.id)).await?;
        let live = match live {
            Some(Found::Live(live)) => live,
            // Delivered or cancelled meanwhile: remembered or not, scheduling it again will tell.
            Some(Found::Ended(_)) | None => return Ok(Some(message)),
        };
        match live.message {
            Ok(stored) if is_same(&stored, &message) => Ok(None),
            _ => {
                self.metrics.conflicts.increment(1);
                Ok(Some(under_digest(message)))
            }
        }
    }

    /// Repeats a call that is safe to repeat until Redis answers.
    pub async fn until_done<T, F: Future<Output = Result<T, QueueError>>>(
        &self,
        call: impl FnMut() -> F,
    ) -> Result<T, Stopped> {
        let _asking = Asking(&self.status, Side::Redis);
        let done = self.repeat(call).await?;
        self.well(Side::Redis);
        Ok(done)
    }

    async fn repeat<T, F: Future<Output = Result<T, QueueError>>>(
        &self,
        mut call: impl FnMut() -> F,
    ) -> Result<T, Stopped> {
        let [mut pause, longest] = PAUSES;
        loop {
            let error = match call().await {
                Ok(done) => return Ok(done),
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

/// What is repeated. Once nobody waits for it, that side may be well long before there is something to take again.
struct Asking<'a>(&'a Status, Side);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.forget(self.1);
    }
}

/// A delay counts from when the message was taken: taken again, the same one has another due time.
fn absolute(due: Due) -> Option<UnixMillis> {
    match due {
        Due::At(at) => Some(at),
        Due::After(_) => None,
    }
}

fn is_same(stored: &StoredMessage, message: &NewMessage) -> bool {
    stored.payload == message.payload
        && stored.metadata == message.metadata
        && absolute(message.due).is_none_or(|due| stored.due == due)
}

/// What cannot be scheduled: under the id, what it should have replaced or what comes next would hide it.
fn kept_apart(message: NewMessage) -> NewMessage {
    if message.on_conflict == OnConflict::Replace { under_digest(message) } else { message }
}

/// The same content gets the same id.
fn under_digest(message: NewMessage) -> NewMessage {
    let metadata = serde_json::to_vec(&message.metadata).expect("text and numbers always serialize");
    let due = absolute(message.due).map(|due| due.get().to_be_bytes());
    let due = due.as_ref().map_or(&[][..], |due| &due[..]);
    let id = digest(&[message.id.as_str().as_bytes(), &metadata, &message.payload, due]);
    NewMessage { id, on_conflict: OnConflict::Keep, ..message }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, collections::BTreeMap};

    use super::{super::SourceState, *};
    use crate::store::redis::{RedisStore, connection::Connection};

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
