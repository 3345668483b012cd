//! Schedules the entries of a source without loss.
//!
//! An entry that cannot be scheduled becomes a dead letter with the reason. While Redis is down or full, the intake and
//! the source wait. If a message's id is live with other content, the message gets another id: the digest of its id and
//! content. A message that a source takes again after a crash has the same id or log record, and changes nothing.

mod reporting;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    entry::{Places, SourceEntry, without_replaced},
    status::{Side, SourceHealth},
    unless_stopped,
};
use crate::{
    incidents::{Incidents, Sample},
    message::{Cancellation, Limit, MessageId, NewMessage, OnConflict, StoredMessage, digest},
    metrics::SourceMetrics,
    queue::{self, Queue, QueueError},
    store::{Cancelled, Found, ScheduleStatus, StoreError},
    time::{Due, UnixMillis},
};

/// First and maximum retry delay while Redis is down or full, a route is full, or a message to replace or cancel is in
/// flight.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];
/// Time after which a wait for a message in flight is reported: the sink of the message is slow or down.
const IN_FLIGHT_REPORT_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of messages in one call.
const MAX_BATCH_MESSAGES: usize = 1000;

/// punctual is stopping. The entries may not be in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("punctual is stopping")]
pub struct Stopped;

/// The intake of one source. Cheap to clone.
#[derive(Clone)]
pub struct Intake {
    queue: Arc<Queue>,
    name: Arc<str>,
    route: Arc<str>,
    health: Arc<SourceHealth>,
    metrics: SourceMetrics,
    incidents: Incidents,
    stop: watch::Receiver<bool>,
}

impl Intake {
    pub fn new(
        queue: Arc<Queue>,
        name: &str,
        route: Arc<str>,
        health: Arc<SourceHealth>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let (metrics, incidents) = (SourceMetrics::new(name), Incidents::default());
        Self { queue, name: name.into(), route, health, metrics, incidents, stop }
    }

    /// Reports outages and dead letters to `incidents`.
    #[must_use]
    pub fn reporting_to(self, incidents: Incidents) -> Self {
        Self { incidents, ..self }
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

    /// Waits until Redis accepts messages for the route. Does not report Redis as healthy, unlike `resumed`.
    ///
    /// # Errors
    /// When punctual stops first.
    pub async fn until_growing(&self) -> Result<(), Stopped> {
        self.repeat(|| self.queue.check_growing(&self.route)).await
    }

    /// Waits until the limits of the route permit messages. Returns the number of messages, at most `max`. Does not report
    /// Redis as healthy, like `until_growing`.
    ///
    /// # Errors
    /// When punctual stops first.
    pub async fn until_capacity(&self, max: u16) -> Result<u16, Stopped> {
        let (started, _clear) = (Instant::now(), ClearOnDrop(self, Side::Limits));
        loop {
            let Some(free) = self.repeat(|| self.queue.free_capacity(&self.route)).await? else { return Ok(max) };
            if free.messages > 0 {
                return Ok(u16::try_from(free.messages).map_or(max, |messages| messages.min(max)));
            }
            self.report_failing(Side::Limits, free.limit.explain());
            self.wait_since(started).await?;
        }
    }

    /// Returns when Redis has all entries. If several entries replace or cancel one id, only the last takes effect.
    ///
    /// `stored` gets the indices of entries as soon as Redis has them, each index once: the source can acknowledge them
    /// upstream, although others wait for a limit of the route. A dropped call may have applied any of the other
    /// entries, and requests in the connection can be applied later.
    ///
    /// # Errors
    /// When punctual stops first. The source must not acknowledge the other entries upstream.
    pub async fn take(&self, entries: Vec<SourceEntry>, mut stored: impl FnMut(Places) + Send) -> Result<(), Stopped> {
        let (mut scheduled, mut invalid, mut cancelled) = (Vec::new(), Vec::new(), Vec::new());
        // Invalid entries are found first, because they replace nothing.
        for (entry, places) in without_replaced(entries.into_iter().map(|entry| self.checked(entry))) {
            match entry {
                SourceEntry::Schedule(message) => scheduled.push((message, places)),
                SourceEntry::Invalid(message, error) => invalid.push(((message, error), places)),
                SourceEntry::Cancel(cancellation) => cancelled.push((cancellation, places)),
            }
        }
        self.bury(invalid, &mut stored).await?;
        while !scheduled.is_empty() {
            let rest = scheduled.split_off(scheduled.len().min(MAX_BATCH_MESSAGES));
            self.schedule(scheduled, &mut stored).await?;
            scheduled = rest;
        }
        self.cancel(cancelled, &mut stored).await
    }

    fn checked(&self, entry: SourceEntry) -> SourceEntry {
        let mut message = match entry {
            SourceEntry::Schedule(message) => message,
            SourceEntry::Invalid(mut message, error) => {
                message.metadata.keep_trace(None);
                return SourceEntry::Invalid(message, error);
            }
            cancellation @ SourceEntry::Cancel(_) => return cancellation,
        };
        message.metadata.keep_trace(None);
        match self.check(&message) {
            Ok(()) => SourceEntry::Schedule(message),
            Err(error) => SourceEntry::Invalid(without_conflict(message), error),
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

    async fn bury(
        &self,
        invalid: Vec<((NewMessage, String), Places)>,
        stored: &mut (impl FnMut(Places) + Send),
    ) -> Result<(), Stopped> {
        if invalid.is_empty() {
            return Ok(());
        }
        let (mut invalid, places): (Vec<_>, Vec<Places>) = invalid.into_iter().unzip();
        let sample = |(message, error): &(NewMessage, String)| Sample {
            trace: message.metadata.headers.trace().map(|context| context.trace),
            ..Sample::new(message.id.as_str(), error)
        };
        self.took_invalid(invalid.iter().map(sample));
        // The due time of a dead letter is its arrival.
        for (message, _) in &mut invalid {
            message.due = Due::NOW;
        }
        while !invalid.is_empty() {
            let conflicting = self.until_done(|| self.queue.bury(&self.route, invalid.clone())).await?;
            invalid = Vec::new();
            for (message, error) in conflicting {
                invalid.extend(self.unless_same(message).await?.map(|message| (message, error)));
            }
        }
        stored(places.concat());
        Ok(())
    }

    async fn schedule(
        &self,
        mut messages: Vec<(NewMessage, Places)>,
        stored: &mut (impl FnMut(Places) + Send),
    ) -> Result<(), Stopped> {
        let (started, _clear) = (Instant::now(), ClearOnDrop(self, Side::InFlight));
        let _clear_limits = ClearOnDrop(self, Side::Limits);
        let (mut too_long, mut full_since) = (Vec::new(), None);
        while !messages.is_empty() {
            // While the route is full, one message is enough to try.
            let rest = if full_since.is_some() { messages.split_off(1) } else { Vec::new() };
            let batch = || messages.iter().map(|(message, _)| message.clone()).collect();
            let replies = self.until_done(|| self.queue.schedule(&self.route, &self.name, batch())).await?;
            let (mut again, mut taken, mut known, mut in_flight, mut full) = (Vec::new(), 0, 0, None, None);
            let (mut done, mut existing) = (Places::new(), Vec::new());
            for ((message, places), reply) in messages.into_iter().zip(replies) {
                match reply.status {
                    ScheduleStatus::Scheduled | ScheduleStatus::Replaced | ScheduleStatus::Revived => {
                        taken += 1;
                        done.extend(places);
                    }
                    ScheduleStatus::Exists(_) => existing.push((message, places)),
                    ScheduleStatus::Known | ScheduleStatus::Ended(_) => {
                        known += 1;
                        done.extend(places);
                    }
                    ScheduleStatus::InFlight => {
                        in_flight = Some(message.id.clone());
                        again.push((message, places));
                    }
                    ScheduleStatus::Over(Limit::Delay) => too_long.push((message, places)),
                    ScheduleStatus::Over(limit) => {
                        full = Some(limit);
                        again.push((message, places));
                    }
                }
            }
            self.took(taken);
            // Before any wait, which can end this call.
            stored(done);
            for (message, places) in existing {
                if let Some(other) = self.unless_same(message).await? {
                    again.push((other, places));
                } else {
                    known += 1;
                    stored(places);
                }
            }
            self.metrics.known.increment(known);
            if let Some(id) = in_flight {
                self.wait_in_flight(&id, "its replacement", started).await?;
            }
            if let Some(limit) = full {
                let since = *full_since.get_or_insert_with(Instant::now);
                self.report_failing(Side::Limits, limit.explain());
                self.wait_since(since).await?;
            } else if full_since.take().is_some() {
                self.report_healthy(Side::Limits);
            }
            again.extend(rest);
            messages = again;
        }
        self.report_healthy(Side::InFlight);
        let too_long = too_long
            .into_iter()
            .map(|(message, places)| ((without_conflict(message), Limit::Delay.explain().to_owned()), places));
        self.bury(too_long.collect(), stored).await
    }

    async fn cancel(
        &self,
        mut cancelled: Vec<(Cancellation, Places)>,
        stored: &mut (impl FnMut(Places) + Send),
    ) -> Result<(), Stopped> {
        if cancelled.is_empty() {
            return Ok(());
        }
        let (started, _clear) = (Instant::now(), ClearOnDrop(self, Side::InFlight));
        while !cancelled.is_empty() {
            let (mut in_flight, mut absent) = (Vec::new(), 0_u64);
            for (one, places) in cancelled {
                match self.until_done(|| self.queue.cancel(&self.route, &one)).await? {
                    Cancelled::InFlight => {
                        in_flight.push((one, places));
                        continue;
                    }
                    Cancelled::Known => self.metrics.known.increment(1),
                    // The cancelled message was part of this batch.
                    Cancelled::NotFound if !one.unseen => absent += 1,
                    Cancelled::Cancelled | Cancelled::Purged | Cancelled::Dead | Cancelled::NotFound => {}
                }
                stored(places);
            }
            if absent > 0 {
                self.metrics.skipped.increment(absent);
                let source = &*self.name;
                tracing::info!(source, records = absent, "skipped cancellations of what does not wait");
            }
            if let Some((one, _)) = in_flight.last() {
                self.wait_in_flight(&one.id, "its cancellation", started).await?;
            }
            cancelled = in_flight;
        }
        self.report_healthy(Side::InFlight);
        Ok(())
    }

    /// Waits before the next attempt to replace or cancel a message in flight. `started`: time of the first attempt.
    async fn wait_in_flight(&self, id: &MessageId, what: &str, started: Instant) -> Result<(), Stopped> {
        if started.elapsed() >= IN_FLIGHT_REPORT_AFTER {
            self.report_failing(Side::InFlight, &format!("`{id}` is in flight, {what} waits"));
        }
        self.wait_since(started).await
    }

    /// Waits a quarter of the time since `started`, within `RETRY_DELAYS`.
    async fn wait_since(&self, started: Instant) -> Result<(), Stopped> {
        let [first, longest] = RETRY_DELAYS;
        self.wait((started.elapsed() / 4).clamp(first, longest)).await
    }

    /// The message to schedule again, under another id if its id is live with other content. `None` if the live message
    /// is the same.
    async fn unless_same(&self, message: NewMessage) -> Result<Option<NewMessage>, Stopped> {
        let live = self.until_done(|| self.queue.get(&self.route, &message.id)).await?;
        let live = match live {
            Some(Found::Live { snapshot, .. }) => *snapshot,
            // Completed since. The reply to the next `schedule` says whether the id is remembered.
            Some(Found::Ended { .. }) | None => return Ok(Some(message)),
        };
        match live.message {
            Ok(stored) if is_same(&stored, &message) => Ok(None),
            _ => {
                self.metrics.conflicts.increment(1);
                Ok(Some(under_digest(message)))
            }
        }
    }

    /// Repeats a call until Redis replies. The call must be safe to repeat.
    pub async fn until_done<T, F: Future<Output = Result<T, QueueError>>>(
        &self,
        call: impl FnMut() -> F,
    ) -> Result<T, Stopped> {
        let _clear = ClearOnDrop(self, Side::Redis);
        let reply = self.repeat(call).await?;
        self.report_healthy(Side::Redis);
        Ok(reply)
    }

    async fn repeat<T, F: Future<Output = Result<T, QueueError>>>(
        &self,
        mut call: impl FnMut() -> F,
    ) -> Result<T, Stopped> {
        let [mut delay, longest] = RETRY_DELAYS;
        loop {
            let error = match call().await {
                Ok(reply) => return Ok(reply),
                Err(QueueError::Store(StoreError::Unavailable { kind: "shutdown", .. })) if *self.stop.borrow() => {
                    return Err(Stopped);
                }
                Err(error) => error,
            };
            match &error {
                QueueError::Store(denied) if denied.is_denied() => self.report_denied(&error.to_string()),
                _ => self.report_failing(Side::Redis, &error.to_string()),
            }
            self.wait(delay).await?;
            delay = longest.min(delay * 2);
        }
    }

    async fn wait(&self, delay: Duration) -> Result<(), Stopped> {
        unless_stopped(&mut self.stop.clone(), sleep(delay)).await.ok_or(Stopped)
    }
}

/// Clears the error of a side when a repeated call ends, because the side may recover long before the next call.
struct ClearOnDrop<'a>(&'a Intake, Side);

impl Drop for ClearOnDrop<'_> {
    fn drop(&mut self) {
        self.0.clear(self.1);
    }
}

/// `None` for a delay: it starts when the message is taken, so the due time differs in each attempt.
fn absolute(due: Due) -> Option<UnixMillis> {
    match due {
        Due::At(at) => Some(at),
        Due::After(_) => None,
    }
}

fn is_same(stored: &StoredMessage, message: &NewMessage) -> bool {
    // A message without a flow is stored with that of its route, and a sampled one with the context of a span.
    let same_metadata = stored.metadata == message.metadata || {
        let mut metadata = [stored.metadata.clone(), message.metadata.clone()];
        if message.metadata.flow.is_none() {
            metadata[0].flow = None;
        }
        for one in &mut metadata {
            one.headers.remove_trace();
        }
        metadata[0] == metadata[1]
    };
    stored.payload == message.payload && same_metadata && absolute(message.due).is_none_or(|due| stored.due == due)
}

/// Gives the message an id of its own, if it replaces. Under its id, the replaced message or a later one would hide the
/// dead letter.
fn without_conflict(message: NewMessage) -> NewMessage {
    if message.on_conflict == OnConflict::Replace { under_digest(message) } else { message }
}

/// The message with the digest of its id and content as id.
fn under_digest(message: NewMessage) -> NewMessage {
    let metadata = serde_json::to_vec(&message.metadata).expect("text and numbers always serialize");
    let due = absolute(message.due).map(|due| due.get().to_be_bytes());
    let due = due.as_ref().map_or(&[][..], |due| &due[..]);
    let id = digest(&[message.id.as_str().as_bytes(), &metadata, &message.payload, due]);
    NewMessage { id, on_conflict: OnConflict::Keep, ..message }
}
