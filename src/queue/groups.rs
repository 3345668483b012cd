//! Groups: messages of a route that are listed, cancelled and moved together.

use tokio::time::Instant;

use super::{Page, Queue, QueueError, check_due, cursor, pending::MOVED_AT_ONCE};
use crate::{
    message::{MessageId, State},
    metrics,
    store::{
        NewDue, PARKED, Partition, Rescheduled,
        redis::{GroupMember, GroupMembers, MAX_BATCH, MAX_BODIES_BYTES},
    },
    time::UnixMillis,
};

/// A change of the pending messages of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupAction {
    Cancel,
    Move(NewDue),
}

/// The progress of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupWork {
    /// The number of changed messages.
    pub count: u64,
    /// Messages in flight, which stay as they are.
    pub in_flight: Vec<MessageId>,
    /// Messages that cannot be moved there, and why.
    pub refused: Vec<(MessageId, Rescheduled)>,
    /// Only messages that were accepted or moved before this time are moved; by default the time of the call.
    pub before: Option<UnixMillis>,
    /// The name of the token that cancels.
    pub by: Option<String>,
    /// Where the next call continues, if messages remain. Opaque.
    pub cursor: Option<String>,
}

impl GroupWork {
    /// The number of messages that the call can still change or name.
    fn room(&self) -> usize {
        MAX_BATCH.saturating_sub(
            usize::try_from(self.count).unwrap_or(MAX_BATCH) + self.in_flight.len() + self.refused.len(),
        )
    }
}

/// A place in a group: a partition, and the last id there.
struct Place {
    partition: usize,
    after: Option<MessageId>,
}

impl Queue {
    /// The messages of a group, in order of partition and id. `limit` is 1 to 1000. A page has fewer messages if their
    /// bodies exceed `max_bytes`, at most 7 MiB.
    ///
    /// # Errors
    /// `Invalid` unless `group` made the cursor.
    pub async fn group(
        &self,
        route: &str,
        group: &str,
        limit: usize,
        max_bytes: u64,
        cursor: Option<&str>,
    ) -> Result<Page, QueueError> {
        let store = self.store();
        let partitions = self.all_partitions(route)?;
        let (Place { partition: first, mut after }, _) = place(&partitions, cursor)?;
        let mut page = Page { messages: Vec::new(), scanned: 0, cursor: None };
        let mut bytes = max_bytes.min(MAX_BODIES_BYTES);
        for partition in &partitions[first..] {
            let left = limit - page.messages.len();
            if left == 0 || bytes == 0 {
                page.cursor = Some(encoded(partition, None, None));
                break;
            }
            let (messages, taken, more) =
                store.messages_of_group(partition, group, after.as_ref(), left, bytes).await?;
            bytes = bytes.saturating_sub(taken);
            after = messages.last().map(|message| message.id.clone()).filter(|_| more);
            page.scanned += messages.len() as u64;
            page.messages.extend(messages);
            if after.is_some() {
                page.cursor = Some(encoded(partition, None, after.as_ref()));
                break;
            }
        }
        Ok(page)
    }

    /// Cancels or moves pending messages of a group, at most `MAX_BATCH` together with those that are named in `work`,
    /// until `deadline`. `work` is correct after an error, too, except for the effect of the failed call.
    ///
    /// # Errors
    /// `Invalid` unless `change_group` made the cursor.
    pub async fn change_group(
        &self,
        route: &str,
        group: &str,
        action: GroupAction,
        cursor: Option<&str>,
        deadline: Instant,
        work: &mut GroupWork,
    ) -> Result<(), QueueError> {
        let store = self.store();
        if let GroupAction::Move(NewDue::At(due)) = action {
            check_due(due)?;
        }
        let partitions: Vec<_> = self.route(route)?.partitions.iter().map(|(partition, _)| partition.clone()).collect();
        let (Place { partition: first, mut after }, before) = place(&partitions, cursor)?;
        let change = match (action, before) {
            (GroupAction::Cancel, _) => None,
            (GroupAction::Move(due), Some(before)) => Some((due, before)),
            (GroupAction::Move(due), None) => Some((due, self.bound(route, work.before).await?)),
        };
        work.before = change.map(|(_, before)| before);
        let in_flight = store.gather(route, group).await?;
        if cursor.is_none() {
            work.in_flight.extend(in_flight.into_keys().take(MAX_BATCH));
        }
        for partition in &partitions[first..] {
            loop {
                if work.room() == 0 || Instant::now() >= deadline {
                    work.cursor = Some(encoded(partition, work.before, after.as_ref()));
                    return self.was_current(route).await;
                }
                after = match change {
                    None => self.cancel_some(partition, group, after.as_ref(), work).await?,
                    Some(change) => self.move_some(partition, group, change, after.as_ref(), work).await?,
                };
                if after.is_none() {
                    break;
                }
            }
        }
        self.was_current(route).await
    }

    /// Returns the last id that was looked at, if more can follow.
    async fn cancel_some(
        &self,
        partition: &Partition,
        group: &str,
        after: Option<&MessageId>,
        work: &mut GroupWork,
    ) -> Result<Option<MessageId>, QueueError> {
        let store = self.store();
        let cancelled = store.cancel_group(partition, group, after, work.room(), work.by.as_deref()).await?;
        work.count += cancelled.count;
        // Counted now, because the rest may fail or the caller may disconnect.
        metrics::cancelled(&partition.route, cancelled.count);
        work.in_flight.extend(cancelled.in_flight);
        Ok(cancelled.reached)
    }

    /// As `cancel_some`. The messages are moved in order of their due times: in an ordered flow each is before the next.
    async fn move_some(
        &self,
        partition: &Partition,
        group: &str,
        (due, before): (NewDue, UnixMillis),
        after: Option<&MessageId>,
        work: &mut GroupWork,
    ) -> Result<Option<MessageId>, QueueError> {
        let store = self.store();
        let GroupMembers { mut members, more } = store.members_of_group(partition, group, after, work.room()).await?;
        let last = members.last().map(|one| one.id.clone());
        members.sort_by_key(|one| if one.score >= PARKED { one.score - PARKED } else { one.score });
        let is_pending = |one: &&GroupMember| one.state == State::Pending;
        work.in_flight.extend(members.iter().filter(|one| one.state == State::Unack).map(|one| one.id.clone()));
        let pending: Vec<_> = members.iter().filter(is_pending).collect();
        for some in pending.chunks(MOVED_AT_ONCE) {
            let results = self.move_each(partition, some.iter().map(|one| &one.id), due, Some((group, before))).await?;
            for (one, result) in some.iter().zip(results) {
                match result {
                    Rescheduled::Done(_) => work.count += 1,
                    Rescheduled::InFlight => work.in_flight.push(one.id.clone()),
                    // It ended, left the group, or was moved by the call that this one repeats.
                    Rescheduled::NotFound | Rescheduled::Dead | Rescheduled::Later => {}
                    refused => work.refused.push((one.id.clone(), refused)),
                }
            }
        }
        Ok(last.filter(|_| more))
    }
}

/// `before`: of the call that began.
fn encoded(partition: &Partition, before: Option<UnixMillis>, after: Option<&MessageId>) -> String {
    cursor::encode_group((partition.index, partition.count), before, after)
}

/// The place at which a call continues; the beginning without a cursor, and after the number of partitions changed.
fn place(partitions: &[Partition], cursor: Option<&str>) -> Result<(Place, Option<UnixMillis>), QueueError> {
    let Some(cursor) = cursor else { return Ok((Place { partition: 0, after: None }, None)) };
    let ((index, count), before, after) = cursor::decode_group(cursor)?;
    let known = partitions.iter().position(|one| (one.index, one.count) == (index, count));
    let place = match known {
        Some(partition) => Place { partition, after },
        None => Place { partition: 0, after: None },
    };
    Ok((place, before))
}
