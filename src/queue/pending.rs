//! Cancels and moves pending messages in bulk.

use std::time::Duration;

use futures::future::try_join_all;
use tokio::time::Instant;

use super::{Bulk, Queue, QueueError, check_due, cursor};
use crate::{
    message::{MessageId, State},
    metrics,
    store::{
        BulkProgress, Filter, NewDue, Order, PageRequest, Partition, PendingAction, PendingWork, Rescheduled,
        Selection, StoreError,
        redis::{FILTERED_BYTES, ListedPart, MAX_BATCH, Named},
    },
    time::UnixMillis,
};

/// Messages that are moved at once: each takes a call of a script, and their replies are small.
pub(super) const MOVED_AT_ONCE: usize = 50;

/// How far the clock of a caller can be ahead of that of Redis.
const MAX_AHEAD: Duration = Duration::from_secs(1);

/// Messages that cannot be moved there, and why; at most about `MAX_BATCH` of a call.
pub type Refused = Vec<(MessageId, Rescheduled)>;

/// A selection of pending messages to cancel.
#[derive(Clone, Copy, Debug)]
pub struct Purge<'a> {
    /// `None`: the first due ones of each partition.
    pub ids: Option<&'a [MessageId]>,
    /// With ids: only messages that were accepted or moved last before this time.
    pub before: Option<UnixMillis>,
    /// Maximum number.
    pub limit: u64,
    /// Only counts the messages.
    pub dry_run: bool,
    /// The name of the token that cancels.
    pub by: Option<&'a str>,
}

impl Queue {
    /// Cancels, moves or counts pending messages, in order of their due times, starting at `cursor`. Messages in flight
    /// and of schedules are kept. `bulk` is correct after an error, too, except for the effect of the failed call.
    ///
    /// # Errors
    /// `Invalid` unless `change_pending` made the cursor.
    pub async fn change_pending(
        &self,
        route: &str,
        work: &PendingWork<'_>,
        cursor: Option<&str>,
        bulk: &mut Bulk,
        refused: &mut Refused,
    ) -> Result<(), QueueError> {
        let PendingWork { action, selection, before, limit, dry_run, deadline, by } = *work;
        if let PendingAction::Move(NewDue::At(due)) = action {
            check_due(due)?;
        }
        let result = match (action, selection) {
            (PendingAction::Cancel, Selection::Ids { ids, .. }) => {
                let purge = Purge { ids: Some(ids), before, limit, dry_run, by };
                self.purge_pending(route, purge, deadline, bulk).await
            }
            (PendingAction::Move(_), Selection::Ids { ids, .. }) if dry_run => {
                bulk.before = Some(self.bound(route, before).await?);
                let purge = Purge { ids: Some(ids), before: bulk.before, limit, dry_run, by };
                self.purge_pending(route, purge, deadline, bulk).await
            }
            (PendingAction::Move(due), Selection::Ids { ids, .. }) => {
                if before.is_some() {
                    bulk.before = Some(self.bound(route, before).await?);
                }
                self.move_named(route, ids, due, work, bulk, refused).await
            }
            (PendingAction::Cancel, Selection::Where(filter))
                if *filter == Filter::default() && before.is_none() && cursor.is_none() =>
            {
                self.purge_pending(route, Purge { ids: None, before: None, limit, dry_run, by }, deadline, bulk).await
            }
            (_, Selection::Where(filter)) => self.change_filtered(route, filter, work, cursor, bulk, refused).await,
        };
        result?;
        self.was_current(route).await
    }

    /// The time before which a message must have been accepted or moved last, so that a call changes it: `given`, or the
    /// present. A message that is moved counts as moved at this time or later, so that a repeated call leaves it.
    ///
    /// # Errors
    /// `Refused` if it is too far ahead: later calls would leave the messages, too.
    pub(super) async fn bound(&self, route: &str, given: Option<UnixMillis>) -> Result<UnixMillis, QueueError> {
        let (store, found) = (self.store(), self.route(route)?);
        let stats = try_join_all(found.partitions.iter().map(|(partition, _)| store.stats(partition))).await?;
        let now = stats.iter().map(|part| part.now / 1000).max().unwrap_or(0);
        // Messages of this millisecond were accepted before the call too.
        let before = given.or(UnixMillis::new(now + 1)).unwrap_or_default();
        let ahead = Duration::from_millis(before.get().saturating_sub(now));
        if ahead > MAX_AHEAD {
            let text = format!("`before` is {ahead:?} later than the clock of Redis, at most {MAX_AHEAD:?}");
            return Err(StoreError::Refused { slug: "invalid-before".into(), text }.into());
        }
        Ok(before)
    }

    async fn move_named(
        &self,
        route: &str,
        ids: &[MessageId],
        due: NewDue,
        work: &PendingWork<'_>,
        bulk: &mut Bulk,
        refused: &mut Refused,
    ) -> Result<(), QueueError> {
        let found = self.route(route)?;
        for (partition, _) in &found.partitions {
            for some in found.own(partition, ids).chunks(MOVED_AT_ONCE) {
                let room = usize::try_from(work.limit - bulk.count).unwrap_or(usize::MAX);
                if Instant::now() >= work.deadline || room == 0 {
                    bulk.more = true;
                    return Ok(());
                }
                let some = &some[..some.len().min(room)];
                bulk.count += self.move_listed(partition, some, due, (work.before, true), refused).await?;
            }
        }
        Ok(())
    }

    async fn change_filtered(
        &self,
        route: &str,
        filter: &Filter,
        work: &PendingWork<'_>,
        cursor: Option<&str>,
        bulk: &mut Bulk,
        refused: &mut Refused,
    ) -> Result<(), QueueError> {
        let found = self.route(route)?;
        let (first, mut done) = cursor.map_or(Ok((0, BulkProgress::default())), cursor::decode_bulk)?;
        let before = match (done.until, work.action, work.before) {
            (Some(until), ..) => until,
            (None, PendingAction::Cancel, Some(before)) => before,
            (None, ..) => self.bound(route, work.before).await?,
        };
        done.until = Some(before);
        for (partition, _) in found.partitions.iter().filter(|(partition, _)| partition.index >= first) {
            let result = self.change_part(partition, (filter, before), work, &mut done, refused).await;
            (bulk.count, bulk.more, bulk.before) = (done.count, done.more, done.until);
            bulk.scanned = Some(done.scanned);
            result?;
            if done.more {
                bulk.cursor = Some(cursor::encode_bulk(partition.index, &done));
                break;
            }
            done.place = None;
        }
        Ok(())
    }

    /// Changes the matching messages of one partition from the place in `done` on, which were accepted or moved last before
    /// a time.
    async fn change_part(
        &self,
        partition: &Partition,
        (filter, before): (&Filter, UnixMillis),
        work: &PendingWork<'_>,
        done: &mut BulkProgress,
        refused: &mut Refused,
    ) -> Result<(), QueueError> {
        loop {
            let room = usize::try_from(work.limit - done.count).unwrap_or(usize::MAX);
            if Instant::now() >= work.deadline || refused.len() >= MAX_BATCH {
                done.more = true;
                return Ok(());
            }
            let page = PageRequest {
                state: State::Pending,
                filter,
                order: Order::Ascending,
                limit: room.clamp(1, MAX_BATCH),
                max_bytes: FILTERED_BYTES,
                after: done.place.as_ref(),
            };
            let ListedPart { scanned, listed, reached, .. } = self.store().list(partition, &page).await?;
            let is_old = |accepted: UnixMillis| accepted < before;
            let ids: Vec<MessageId> = listed
                .into_iter()
                .map(|one| one.snapshot)
                .filter(|one| one.id.schedule().is_none())
                .filter(|one| one.message.as_ref().map_or(true, |message| is_old(message.accepted)))
                .map(|one| one.id)
                .collect();
            if room == 0 && !ids.is_empty() {
                done.more = true;
                return Ok(());
            }
            done.scanned += scanned;
            match work.action {
                _ if work.dry_run => done.count += ids.len() as u64,
                PendingAction::Cancel => {
                    let named = Named { ids: &ids, before: Some(before) };
                    let (count, _) =
                        self.store().purge_named(partition, named, ids.len() as u64, false, work.by).await?;
                    done.count += count;
                    // Counted now, because the rest may fail or the caller may disconnect.
                    metrics::cancelled(&partition.route, count);
                }
                PendingAction::Move(due) => {
                    for some in ids.chunks(MOVED_AT_ONCE) {
                        if Instant::now() >= work.deadline {
                            // The next call looks at this page again, and leaves what was moved.
                            done.more = true;
                            return Ok(());
                        }
                        done.count += self.move_listed(partition, some, due, (Some(before), false), refused).await?;
                    }
                }
            }
            match reached {
                Some(place) => done.place = Some(place),
                None => return Ok(()),
            }
        }
    }

    /// Moves messages, at most `MOVED_AT_ONCE`. Returns how many were moved. `before`: only those that were accepted or
    /// moved last before this time. `are_named`: messages that are not pending are refused too.
    async fn move_listed(
        &self,
        partition: &Partition,
        ids: &[MessageId],
        due: NewDue,
        (before, are_named): (Option<UnixMillis>, bool),
        refused: &mut Refused,
    ) -> Result<u64, QueueError> {
        let mut count = 0;
        let results = self.move_each(partition, ids.iter(), due, before.map(|before| ("", before))).await?;
        for (id, result) in ids.iter().zip(results) {
            match result {
                Rescheduled::Done(_) => count += 1,
                Rescheduled::Later => {}
                // It left the state after it was listed.
                Rescheduled::NotFound | Rescheduled::Dead | Rescheduled::InFlight if !are_named => {}
                other => refused.push((id.clone(), other)),
            }
        }
        Ok(count)
    }

    /// Moves messages in their order: in an ordered flow each is before the next. `only`: that of `reschedule_if`.
    pub(super) async fn move_each<'a>(
        &self,
        partition: &Partition,
        ids: impl Iterator<Item = &'a MessageId>,
        due: NewDue,
        only: Option<(&str, UnixMillis)>,
    ) -> Result<Vec<Rescheduled>, QueueError> {
        let store = &self.store();
        let moved = ids.map(|id| self.registry.when_open(move || store.reschedule_if(partition, id, due, only)));
        Ok(try_join_all(moved).await?)
    }

    /// Cancels pending messages. Messages in flight are kept. No partition is started after `deadline`. `purged` is
    /// increased; it is correct after an error, too, except for the effect of the failed call.
    pub async fn purge_pending(
        &self,
        route: &str,
        purge: Purge<'_>,
        deadline: Instant,
        purged: &mut Bulk,
    ) -> Result<(), QueueError> {
        let ids = purge.ids;
        let found = self.route(route)?;
        // Sequential, so that each script and all of them together are bounded.
        for (partition, _) in &found.partitions {
            let named = ids.map(|ids| found.own(partition, ids));
            let parts: Vec<Option<&[MessageId]>> = match &named {
                None => vec![None],
                Some(ids) => ids.chunks(MAX_BATCH).map(Some).collect(),
            };
            for part in parts {
                if Instant::now() >= deadline {
                    purged.more = true;
                    return Ok(());
                }
                self.purge_part(partition, part, purge, purged).await?;
            }
        }
        Ok(())
    }

    async fn purge_part(
        &self,
        partition: &Partition,
        part: Option<&[MessageId]>,
        Purge { before, limit, dry_run, by, .. }: Purge<'_>,
        purged: &mut Bulk,
    ) -> Result<(), QueueError> {
        let store = self.store();
        let call = async |limit, dry_run| match part {
            Some(ids) => store.purge_named(partition, Named { ids, before }, limit, dry_run, by).await,
            None => store.purge_pending(partition, None, limit, dry_run, by).await,
        };
        loop {
            let left = limit - purged.count;
            if left == 0 {
                let (count, _) = call(1, true).await?;
                purged.more |= count > 0;
                return Ok(());
            }
            let (count, rest) = call(left, dry_run).await?;
            purged.count += count;
            if !dry_run {
                // Counted now, because the rest may fail or the caller may disconnect.
                metrics::cancelled(&partition.route, count);
            }
            if rest == 0 || dry_run || count == 0 {
                purged.more |= rest > 0;
                return Ok(());
            }
        }
    }
}
