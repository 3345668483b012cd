//! Dead messages: added, redriven, purged, summarized and evicted.

use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use super::{
    MAX_BATCH, MAX_CALL_BYTES, RedisStore,
    engine::kept,
    filter::{FILTERED_BYTES, bound, filtered},
    queries::ListedPart,
    reply::Reply,
    script, unless_closed,
};
use crate::{
    message::{DeadLimits, MessageId, NewMessage, Rate, State, codec},
    metrics,
    store::{
        BulkProgress, DeadAction, DeadGroup, DeadWork, Death, Expiry, Filter, Order, PageRequest, Partition, Selection,
        Spread, StoreError,
    },
    time::UnixMillis,
};

impl RedisStore {
    /// Stores `batch`, all of `partition`, as dead letters, each with an error. Returns whether each was stored, in
    /// order: a message is not stored if its id is live. `Unavailable` of kind `UNREGISTERED` as for `schedule`.
    pub async fn bury(
        &self,
        partition: &Partition,
        death: Death,
        batch: &[(NewMessage, String)],
    ) -> Result<Vec<bool>, StoreError> {
        let in_flight = self.pull(partition, batch.iter().map(|(message, _)| &message.id)).await?;
        if !in_flight.is_empty() {
            let here: Vec<_> =
                batch.iter().filter(|(message, _)| !in_flight.contains_key(&message.id)).cloned().collect();
            let taken = if here.is_empty() { Vec::new() } else { self.bury_here(partition, death, &here).await? };
            let mut taken = taken.into_iter();
            let answer = |(message, _): &(NewMessage, String)| {
                if in_flight.contains_key(&message.id) { Some(false) } else { taken.next() }
            };
            return Ok(batch.iter().filter_map(answer).collect());
        }
        self.bury_here(partition, death, batch).await
    }

    async fn bury_here(
        &self,
        partition: &Partition,
        death: Death,
        batch: &[(NewMessage, String)],
    ) -> Result<Vec<bool>, StoreError> {
        let keys = self.keys(partition)?;
        let route = self.route(&partition.route)?;
        let all = vec![
            keys.messages.as_str(),
            &keys.dead,
            &keys.errors,
            &keys.pending,
            &keys.unack,
            &keys.route,
            &keys.remembered,
            &keys.groups,
            &keys.grouped,
        ];
        let mut call = script::BURY
            .keys(&route.with_outbox(all, keys))
            .arg(self.layout(partition)?)
            .arg(death.failures)
            .arg(route.history_settings());
        for (message, error) in batch {
            let text = format!("{}: {}", death.reason.as_str(), kept(error));
            let metadata = route.settings.with_flow(&message.metadata);
            let tail = codec::tail(&metadata, &message.payload);
            call = call.arg(message.id.as_str()).arg(text).arg(&tail[..]);
            call = call.arg(metadata.group.as_deref().unwrap_or_default());
            if route.settings.flow.is_some() {
                call = call.arg(metadata.flow.as_deref().unwrap_or_default());
            }
        }
        let (taken, link): (Vec<bool>, _) = self.writes.run(call).await.map_err(unless_closed)?;
        self.buried(partition);
        self.confirm(partition, link, taken.contains(&true)).await?;
        Ok(taken)
    }

    /// Redrives, purges or forwards selected dead messages of `partition`, or counts them, from the place in `done` on.
    /// Adds to `done`, which is correct after an error too, except for the failed call.
    pub async fn act_on_dead(
        &self,
        partition: &Partition,
        work: &DeadWork<'_>,
        done: &mut BulkProgress,
    ) -> Result<(), StoreError> {
        match work.selection {
            Selection::Where(filter) if filter.reads_bodies() => self.act_on_read(partition, work, filter, done).await,
            _ => self.act_on_selected(partition, work, done).await,
        }
    }

    /// As `act_on_dead`, with a filter that reads bodies: what matches is selected by its ids.
    async fn act_on_read(
        &self,
        partition: &Partition,
        work: &DeadWork<'_>,
        filter: &Filter,
        done: &mut BulkProgress,
    ) -> Result<(), StoreError> {
        loop {
            if Instant::now() >= work.deadline {
                done.more = true;
                return Ok(());
            }
            let filter = Filter { until: done.until.or(filter.until), ..filter.clone() };
            let room = usize::try_from(work.limit - done.count).unwrap_or(usize::MAX);
            let page = PageRequest {
                state: State::Dead,
                filter: &filter,
                order: Order::Ascending,
                limit: room.clamp(1, MAX_BATCH),
                max_bytes: FILTERED_BYTES,
                after: done.place.as_ref(),
            };
            let ListedPart { now, scanned, listed, reached } = self.list(partition, &page).await?;
            if room == 0 && !listed.is_empty() {
                done.more = true;
                return Ok(());
            }
            done.scanned += scanned;
            done.until = filter.until.or(UnixMillis::new(now.get() + 1));
            let ids: Vec<_> = listed.into_iter().map(|one| one.snapshot.id).collect();
            if work.dry_run {
                done.count += ids.len() as u64;
            } else if !ids.is_empty() {
                let selection = Selection::Ids { ids, until: done.until };
                let work = DeadWork { selection: &selection, ..*work };
                // Without the place: that is of the listing.
                let mut part = BulkProgress { next: done.next, ..BulkProgress::default() };
                let result = self.act_on_selected(partition, &work, &mut part).await;
                (done.count, done.next) = (done.count + part.count, part.next);
                result?;
                if part.more {
                    // The rest of the page follows in the next call.
                    done.more = true;
                    return Ok(());
                }
            }
            match reached {
                Some(place) => done.place = Some(place),
                None => return Ok(()),
            }
        }
    }

    async fn act_on_selected(
        &self,
        partition: &Partition,
        work: &DeadWork<'_>,
        done: &mut BulkProgress,
    ) -> Result<(), StoreError> {
        let keys = self.keys(partition)?;
        let route = self.route(&partition.route)?;
        let (mut filter, mut ids) = match work.selection {
            Selection::Where(filter) => (Filter { until: done.until.or(filter.until), ..filter.clone() }, None),
            Selection::Ids { ids, until } => {
                self.pull(partition, ids.iter()).await?;
                (Filter { until: *until, ..Filter::default() }, Some(&ids[..]))
            }
        };
        let mut place = done.place.clone();
        loop {
            if ids.is_some_and(<[_]>::is_empty) {
                return Ok(());
            }
            if Instant::now() >= work.deadline {
                done.more = true;
                return Ok(());
            }
            // At the limit, the call only checks whether more messages match.
            let is_full = done.count >= work.limit;
            let dry_run = work.dry_run || is_full;
            let most = if is_full { 1 } else { (work.limit - done.count).min(MAX_BATCH as u64) };
            let mut call = match work.action {
                DeadAction::Redrive(_) => {
                    let all = vec![
                        keys.pending.as_str(),
                        &keys.messages,
                        &keys.errors,
                        &keys.dead,
                        &keys.bytes,
                        &keys.groups,
                    ];
                    script::REDRIVE.keys(&route.with_flow(all, keys)).arg(&keys.wake).arg(MAX_CALL_BYTES)
                }
                DeadAction::Purge => script::PURGE.keys(&keys.of_dead(route.settings.flow.is_some())),
                DeadAction::Forward => {
                    let all = vec![keys.outbox.as_str(), &keys.dead, &keys.errors, &keys.groups];
                    script::POST.keys(&keys.with_flow_of_each(all, route.settings.flow.is_some()))
                }
            };
            call = call.arg(most).arg(u8::from(dry_run));
            if let DeadAction::Redrive(expiry) = work.action {
                call = call.arg(match expiry {
                    Expiry::Drop => "drop".to_owned(),
                    Expiry::Keep => "keep".to_owned(),
                    Expiry::After(millis) => format!("+{millis}"),
                });
                let step = work.spread.rate.map_or(0.0, Rate::interval);
                call = call.arg(bound(done.next.or(work.spread.start))).arg(step);
            }
            call = match ids {
                Some(ids) => {
                    let call = call.arg("ids").arg(bound(filter.until));
                    ids.iter().take(MAX_BATCH).fold(call, |call, id| call.arg(id.as_str()))
                }
                None => filtered(call.arg("where"), MAX_BATCH, &filter, Order::Ascending, place.as_ref()),
            };
            let reply: Vec<Value> = call.run(&self.servers).await?;
            let mut reply = Reply::from(reply);
            let (count, reached, more) = (reply.integer()?, reply.integer()?, reply.flag()?);
            let until = UnixMillis::new(reply.integer()?);
            let reached_place = reply.place()?;
            done.scanned += reached;
            if is_full && count > 0 {
                done.more = true;
                return Ok(());
            }
            done.count += count;
            if matches!(work.action, DeadAction::Redrive(_)) && work.spread != Spread::default() {
                done.next = Some(reply.millis()?);
            }
            if !dry_run {
                // Counted at once, because a later call can fail, or the caller give up.
                match work.action {
                    DeadAction::Redrive(_) => metrics::redriven(&partition.route, count),
                    DeadAction::Purge => metrics::purged(&partition.route, count),
                    DeadAction::Forward => self.buried(partition),
                }
            }
            if let Some(ids) = &mut ids {
                done.until = done.until.or(until);
                *ids = &ids[usize::try_from(reached).unwrap_or(usize::MAX).min(ids.len())..];
                continue;
            }
            (filter.until, done.until) = (until, until);
            place = reached_place.or(place);
            if !more {
                return Ok(());
            }
            if !is_full {
                done.place.clone_from(&place);
            }
        }
    }

    /// Dead messages of `partition` after `place`, by reason; and the place reached, if more follow.
    pub async fn summary(
        &self,
        partition: &Partition,
        filter: &Filter,
        place: Option<&(u64, MessageId)>,
    ) -> Result<(Vec<DeadGroup>, Option<(u64, MessageId)>), StoreError> {
        let keys = self.keys(partition)?;
        let all =
            keys.with_flow_of_each(vec![&keys.dead, &keys.errors, &keys.groups], self.has_flows(&partition.route));
        let call = filtered(script::SUMMARY.keys(&all), MAX_BATCH, filter, Order::Ascending, place);
        let reply: Vec<Value> = call.run(&self.listings).await?;
        let mut reply = Reply::from(reply);
        let (more, place) = (reply.flag()?, reply.place()?);
        let mut groups = Vec::new();
        while !reply.is_done() {
            groups.push(DeadGroup {
                reason: reply.text()?,
                count: reply.integer()?,
                oldest: reply.millis()?,
                newest: reply.millis()?,
                sample: (reply.id()?, reply.text()?),
            });
        }
        Ok((groups, place.filter(|_| more)))
    }

    /// Deletes dead letters that exceed `limits`, oldest first, at most `MAX_BATCH`.
    pub async fn evict(&self, partition: &Partition, limits: DeadLimits) -> Result<Evicted, StoreError> {
        let keys = self.keys(partition)?;
        let settings = &self.route(&partition.route)?.settings;
        let share = u64::from(settings.partitions);
        let max_age = limits.max_age.map_or(0, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        let mut all = keys.of_dead(settings.flow.is_some());
        all.extend(settings.forwards.then_some(&*keys.outbox));
        let reply: Vec<Value> = script::EVICT
            .keys(&all)
            .arg(max_age)
            .arg(limits.max_count.map_or(0, |count| (count / share).max(1)))
            .arg(MAX_BATCH)
            .arg(u8::from(settings.forwards))
            .run(&self.servers)
            .await?;
        let mut reply = Reply::from(reply);
        Ok(Evicted {
            aged: reply.integer()?,
            beyond: reply.integer()?,
            more: reply.flag()?,
            next: reply.optional()?.map(Duration::from_millis),
        })
    }
}

/// The result of an eviction of dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Deleted because they died too long ago.
    pub aged: u64,
    /// Deleted because they were too many.
    pub beyond: u64,
    /// Whether more are to be deleted.
    pub more: bool,
    /// Time until the oldest remaining dead letter is too old.
    pub next: Option<Duration>,
}
