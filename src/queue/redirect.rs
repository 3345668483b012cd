//! Redrives dead letters into another route.
//!
//! A message is scheduled on the other route with its own id, then it is deleted here. If the process ends in between, it
//! is on both routes, and a repeated call finds it on the other one.

use std::time::Duration;

use futures::future::try_join_all;
use tokio::time::Instant;

use super::{Bulk, Queue, QueueError, cursor};
use crate::{
    message::{Limit, MessageId, Metadata, NewMessage, OnConflict, Rate, State, StoredMessage},
    store::{
        BulkProgress, DeadAction, DeadWork, Expiry, Filter, Found, Order, PageRequest, Partition, ScheduleStatus,
        Scheduled, Selection, Snapshot, Spread, redis::FILTERED_BYTES,
    },
    time::{Due, UnixMillis},
};

/// Dead letters of one step: each is read, scheduled and deleted before the next step.
const REDIRECTED_AT_ONCE: usize = 100;

/// Dead letters that are read by their ids at once.
const READ_AT_ONCE: usize = 20;

/// Maximum time of the deletion of messages that are scheduled on the other route: they must not stay.
const DELETION: Duration = Duration::from_secs(10);

/// A dead letter that stays, and why: a word for programs, and a text.
#[derive(Clone, Debug)]
pub struct Stayed {
    pub id: MessageId,
    pub reason: &'static str,
    pub detail: String,
}

/// A redrive into the route `to`.
struct Redirect<'a> {
    to: &'a str,
    work: &'a DeadWork<'a>,
    expiry: Expiry,
}

impl Queue {
    /// Schedules selected dead letters on the route `to`, and deletes them here. `stayed`: those that the other route does
    /// not take. `bulk` is correct after an error, too.
    ///
    /// # Errors
    /// `Full` when the other route is at a limit: the rest stays.
    pub async fn redrive_to(
        &self,
        route: &str,
        to: &str,
        work: &DeadWork<'_>,
        cursor: Option<&str>,
        bulk: &mut Bulk,
        stayed: &mut Vec<Stayed>,
    ) -> Result<(), QueueError> {
        let found = self.route(route)?;
        self.route(to)?;
        let expiry = if let DeadAction::Redrive(expiry) = work.action { expiry } else { Expiry::Drop };
        let redirect = Redirect { to, work, expiry };
        let (first, mut done) = cursor.map_or(Ok((0, BulkProgress::default())), cursor::decode_bulk)?;
        for (partition, _) in found.partitions.iter().filter(|(partition, _)| partition.index >= first) {
            let result = match work.selection {
                Selection::Ids { ids, until } => {
                    let own = found.own(partition, ids);
                    self.redirect_named(partition, &redirect, &own, *until, &mut done, stayed).await
                }
                Selection::Where(filter) => self.redirect_part(partition, &redirect, filter, &mut done, stayed).await,
            };
            bulk.reach(partition.index, work.selection, &done);
            result?;
            if done.more {
                break;
            }
            done.place = None;
        }
        self.was_current(route).await
    }

    async fn redirect_named(
        &self,
        partition: &Partition,
        redirect: &Redirect<'_>,
        ids: &[MessageId],
        until: Option<UnixMillis>,
        done: &mut BulkProgress,
        stayed: &mut Vec<Stayed>,
    ) -> Result<(), QueueError> {
        for some in ids.chunks(REDIRECTED_AT_ONCE) {
            let room = usize::try_from(redirect.work.limit - done.count).unwrap_or(usize::MAX);
            if Instant::now() >= redirect.work.deadline || room == 0 {
                done.more = true;
                return Ok(());
            }
            let (mut dead, mut latest) = (Vec::new(), done.until.or(until));
            for some in some.chunks(READ_AT_ONCE) {
                for found in try_join_all(some.iter().map(|id| self.get(&partition.route, id))).await? {
                    let Some(Found::Live { snapshot, now, .. }) = found else { continue };
                    let end = *latest.get_or_insert(after(now));
                    if snapshot.state == State::Dead && snapshot.died_at.is_some_and(|at| at < end) {
                        dead.push(*snapshot);
                    }
                }
            }
            done.more |= dead.len() > room;
            dead.truncate(room);
            let Some(end) = latest else { continue };
            done.until = Some(end);
            self.redirect_all(partition, redirect, dead, end, done, stayed).await?;
        }
        Ok(())
    }

    async fn redirect_part(
        &self,
        partition: &Partition,
        redirect: &Redirect<'_>,
        filter: &Filter,
        done: &mut BulkProgress,
        stayed: &mut Vec<Stayed>,
    ) -> Result<(), QueueError> {
        let store = self.store();
        loop {
            if Instant::now() >= redirect.work.deadline {
                done.more = true;
                return Ok(());
            }
            let filter = Filter { until: done.until.or(filter.until), ..filter.clone() };
            let room = usize::try_from(redirect.work.limit - done.count).unwrap_or(usize::MAX);
            let page = PageRequest {
                state: State::Dead,
                filter: &filter,
                order: Order::Ascending,
                limit: room.clamp(1, REDIRECTED_AT_ONCE),
                max_bytes: FILTERED_BYTES,
                after: done.place.as_ref(),
            };
            let part = store.list(partition, &page).await?;
            if room == 0 && !part.listed.is_empty() {
                done.more = true;
                return Ok(());
            }
            done.scanned += part.scanned;
            let end = filter.until.unwrap_or(after(part.now));
            done.until = Some(end);
            let dead = part.listed.into_iter().map(|one| one.snapshot).collect();
            self.redirect_all(partition, redirect, dead, end, done, stayed).await?;
            match part.reached {
                Some(place) => done.place = Some(place),
                None => return Ok(()),
            }
        }
    }

    /// `end`: messages that died at this time or later are not deleted.
    async fn redirect_all(
        &self,
        partition: &Partition,
        redirect: &Redirect<'_>,
        dead: Vec<Snapshot>,
        end: UnixMillis,
        done: &mut BulkProgress,
        stayed: &mut Vec<Stayed>,
    ) -> Result<(), QueueError> {
        let Redirect { to, work, expiry } = *redirect;
        let most = self.max_payload(to);
        let mut messages = Vec::new();
        for Snapshot { id, message, .. } in dead {
            let mut stays = |reason, detail| stayed.push(Stayed { id: id.clone(), reason, detail });
            match message {
                Err(error) => stays("unreadable", error),
                Ok(message) if message.payload.len() > most => {
                    stays("too_large", format!("its payload takes {} bytes, at most {most}", message.payload.len()));
                }
                Ok(message) => messages.push((id, message)),
            }
        }
        if messages.is_empty() {
            return Ok(());
        }
        if work.dry_run {
            done.count += messages.len() as u64;
            return Ok(());
        }
        let mut place = Place::new(self.now(to).await?, done.next, work.spread);
        let new = |(id, message): &(MessageId, StoredMessage)| place.message(id, message, expiry);
        let new: Vec<NewMessage> = messages.iter().map(new).collect();
        let answers = self.schedule(to, VIA, new).await?;
        let (mut moved, mut full) = (Vec::new(), None);
        for ((id, message), Scheduled { status, .. }) in messages.iter().zip(answers) {
            match status {
                ScheduleStatus::Over(limit) => full = Some(limit),
                ScheduleStatus::Exists(_) if !self.is_there(to, id, message).await? => stayed.push(Stayed {
                    id: id.clone(),
                    reason: "exists",
                    detail: format!("`{to}` has another message with this id"),
                }),
                ScheduleStatus::Ended(ending) => stayed.push(Stayed {
                    id: id.clone(),
                    reason: ending.as_str(),
                    detail: format!("`{to}` remembers this id as {}", ending.as_str()),
                }),
                _ => moved.push(id.clone()),
            }
        }
        done.next = place.next();
        if !moved.is_empty() {
            let selection = Selection::Ids { ids: moved, until: Some(end) };
            let deadline = Instant::now() + DELETION;
            let deletion = DeadWork { action: DeadAction::Purge, selection: &selection, deadline, ..*work };
            let mut part = BulkProgress::default();
            let result = self.store().act_on_dead(partition, &deletion, &mut part).await;
            done.count += part.count;
            result?;
        }
        full.map_or(Ok(()), |limit: Limit| Err(QueueError::Full(limit)))
    }

    /// Whether the live message `id` of a route is this one.
    async fn is_there(&self, route: &str, id: &MessageId, message: &StoredMessage) -> Result<bool, QueueError> {
        let Some(Found::Live { snapshot, .. }) = self.get(route, id).await? else { return Ok(false) };
        let content = |message: &StoredMessage| {
            let Metadata { headers, key, content_type, properties, group, .. } = message.metadata.clone();
            (headers, key, content_type, properties, group, message.payload.clone())
        };
        Ok(snapshot.message.is_ok_and(|other| content(&other) == content(message)))
    }
}

/// The label `via` of messages that were redriven from another route.
const VIA: &str = "dead";

/// The due times of redirected messages.
struct Place {
    now: u64,
    first: u64,
    spread: Spread,
    count: u64,
}

impl Place {
    /// `next`: that after the messages before.
    fn new(now: u64, next: Option<UnixMillis>, spread: Spread) -> Self {
        let first = next.or(spread.start).map_or(now, |start| start.get().max(now));
        Self { now, first, spread, count: 0 }
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "few messages, as lua/redrive.lua computes it"
    )]
    fn due(&self) -> u64 {
        self.first + (self.count as f64 * self.spread.rate.map_or(0.0, Rate::interval) / 1000.0) as u64
    }

    /// The due time after the last message; `None` if all are due at once.
    fn next(&self) -> Option<UnixMillis> {
        (self.spread != Spread::default()).then(|| UnixMillis::new(self.due())).flatten()
    }

    fn message(&mut self, id: &MessageId, message: &StoredMessage, expiry: Expiry) -> NewMessage {
        let due = self.due();
        self.count += 1;
        let mut metadata = message.metadata.clone();
        metadata.expires_at = match expiry {
            Expiry::Keep => metadata.expires_at,
            Expiry::Drop => None,
            Expiry::After(millis) => Some(due.max(self.now) + millis),
        };
        let due = if due <= self.now { Due::NOW } else { UnixMillis::new(due).map_or(Due::NOW, Due::At) };
        NewMessage {
            id: id.clone(),
            due,
            payload: message.payload.clone(),
            metadata,
            on_conflict: OnConflict::Keep,
            debounce: None,
            record: None,
        }
    }
}

fn after(now: UnixMillis) -> UnixMillis {
    UnixMillis::new(now.get() + 1).unwrap_or(now)
}
