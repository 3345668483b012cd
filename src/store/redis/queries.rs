//! Calls that only read: one message, a listing, statistics.

use bytes::Bytes;
use redis::Value;

use super::{
    MAX_BODIES_BYTES, RedisStore,
    filter::{CONSIDERED, READ, filtered},
    history::ends_of,
    reply::{Failure, Reply},
    script, unless_closed,
};
use crate::{
    message::{Ended, Ending, MessageId, State, codec},
    store::{Filter, Found, PARKED, PageRequest, Partition, Pause, Snapshot, StoreError, revision},
    time::UnixMillis,
};

/// The periods of `PartitionStats::due_within`: label, and milliseconds.
pub const HORIZONS: [(&str, u64); 4] = [("1m", 60_000), ("5m", 300_000), ("1h", 3_600_000), ("1d", 86_400_000)];

/// Statistics of one partition.
#[derive(Clone, Debug)]
pub struct PartitionStats {
    /// Redis' clock, microseconds.
    pub now: u64,
    pub paused: Option<Pause>,
    pub pending: u64,
    pub due: u64,
    pub unack: u64,
    pub dead: u64,
    pub next_due: Option<UnixMillis>,
    /// Total bytes of the bodies in pending and unack.
    pub bytes: u64,
    /// Messages in pending and unack that have failed attempts or crashes.
    pub retrying: u64,
    /// Since when the oldest message in pending is due; for a retry, the time of the retry. Deferred messages behind
    /// many others are left out.
    pub oldest_due: Option<UnixMillis>,
    /// Due time and end of the lease of the message that was claimed longest after its due time, among the first ones in
    /// unack without a failed attempt. `None` on a route with flows.
    pub latest_claimed: Option<(UnixMillis, UnixMillis)>,
    /// Due messages that are parked, because their flow is busy.
    pub parked: u64,
    /// Flows for which messages are parked.
    pub waiting_flows: u64,
    /// Pending messages that come due within each of `HORIZONS`, overdue ones included, parked ones not.
    pub due_within: [u64; HORIZONS.len()],
}

/// Pending messages of one partition by due time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionForecast {
    /// Redis' clock.
    pub now: UnixMillis,
    pub overdue: u64,
    /// Messages due after the last interval.
    pub later: u64,
    pub counts: Vec<u64>,
}

impl PartitionForecast {
    /// Adds the numbers of another forecast with the same intervals.
    pub fn add(&mut self, other: &Self) {
        self.overdue += other.overdue;
        self.later += other.later;
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
    }
}

/// A message with its place in a listing.
pub struct Listed {
    pub score: u64,
    /// Bytes of the stored body.
    pub bytes: usize,
    pub snapshot: Snapshot,
}

/// A part of a listing, of one partition.
pub struct ListedPart {
    /// Redis' clock.
    pub now: UnixMillis,
    /// Messages that were looked at.
    pub scanned: u64,
    pub listed: Vec<Listed>,
    /// The place reached, if more can follow.
    pub reached: Option<(u64, MessageId)>,
}

impl RedisStore {
    pub async fn get(&self, partition: &Partition, id: &MessageId) -> Result<Option<Found>, StoreError> {
        let route = self.route(&partition.route)?;
        let mut found = self.get_from(partition, &self.layout(partition)?, id).await?;
        let is_live = |found: &Option<Found>| matches!(found, Some(Found::Live { .. }));
        if let (false, Some(former)) = (is_live(&found), route.former()) {
            let former = self.get_from(&partition.among(former, id), "", id).await?;
            if former.is_some() {
                return Ok(former);
            }
            // The message can have been moved between the two calls.
            found = self.get_from(partition, "", id).await?;
        }
        Ok(found)
    }

    /// The reply of lua/get.lua. `layout`: the layout that the partition must be open with; `""`: any.
    pub(super) async fn look_up(
        &self,
        partition: &Partition,
        layout: &str,
        id: &MessageId,
    ) -> Result<Reply, StoreError> {
        let keys = self.any_keys(partition);
        let mut all = vec![
            keys.pending.as_str(),
            &keys.unack,
            &keys.messages,
            &keys.errors,
            &keys.dead,
            &keys.remembered,
            &keys.paused,
            &keys.route,
        ];
        let settings = &self.route(&partition.route)?.settings;
        all.extend(settings.history.iter().flat_map(|_| [&*keys.history, &keys.ended]));
        let call = script::GET.keys(&all).arg(layout).arg(id.as_str()).arg(settings.keep_millis());
        let reply: Vec<Value> = call.run(&self.listings).await.map_err(unless_closed)?;
        Ok(Reply::from(reply))
    }

    async fn get_from(&self, partition: &Partition, layout: &str, id: &MessageId) -> Result<Option<Found>, StoreError> {
        let mut reply = self.look_up(partition, layout, id).await?;
        let settings = &self.route(&partition.route)?.settings;
        let (ends, now) = ends_of(&mut reply, id, settings.history_shares().map(|(age, _)| age))?;
        if reply.is_done() {
            return Ok((!ends.is_empty()).then_some(Found::Ended { remembered: None, ends }));
        }
        let text = reply.text()?;
        let state = match text.as_str() {
            "pending" => State::Pending,
            "unack" => State::Unack,
            other => match Ending::parse(other) {
                Some(ending) => {
                    let remembered = Some(Ended { ending, at: reply.millis()? });
                    return Ok(Some(Found::Ended { remembered, ends }));
                }
                None => State::Dead,
            },
        };
        let score = reply.integer()?;
        let (failure, body) = (reply.failure()?, reply.bytes()?);
        let revision = (state == State::Dead).then(|| revision(score, &body));
        let snapshot = Snapshot { revision, ..snapshot(id.clone(), state, score, failure, &body) };
        Ok(Some(Found::Live { snapshot: Box::new(snapshot), now, paused: reply.flag()?, ends }))
    }

    /// Matching messages behind a place. With a filter, a call considers a part of the messages, of which possibly none
    /// matches; it reads bodies of at most `MAX_BODIES_BYTES`.
    pub async fn list(&self, partition: &Partition, page: &PageRequest<'_>) -> Result<ListedPart, StoreError> {
        let PageRequest { state, filter, order, limit, max_bytes, after } = *page;
        let keys = self.keys(partition)?;
        let set = match state {
            State::Pending => &keys.pending,
            State::Unack => &keys.unack,
            State::Dead => &keys.dead,
        };
        let all = keys
            .with_flow_of_each(vec![set, &keys.messages, &keys.errors, &keys.groups], self.has_flows(&partition.route));
        // The bodies that a script returns are filtered here.
        let (most, considered) = match filter {
            _ if filter.reads_bodies() => (READ, READ),
            _ if *filter == Filter::default() => (limit, limit),
            _ => (limit, CONSIDERED),
        };
        let call = script::LIST.keys(&all).arg(most).arg(max_bytes.min(MAX_BODIES_BYTES));
        let reply: Vec<Value> = filtered(call, considered, filter, order, after).run(&self.listings).await?;
        let mut reply = Reply::from(reply);
        let (now, scanned, more, place) = (reply.millis()?, reply.integer()?, reply.flag()?, reply.place()?);
        let mut part = ListedPart { now, scanned, listed: Vec::new(), reached: place.filter(|_| more) };
        while !reply.is_done() {
            let (id, score) = (reply.id()?, reply.integer()?);
            let (failure, body) = (reply.failure()?, reply.bytes()?);
            let snapshot = snapshot(id, state, score, failure, &body);
            if !filter.takes(snapshot.message.as_ref().ok()) {
                continue;
            }
            if part.listed.len() == limit {
                part.reached = part.listed.last().map(|last: &Listed| (last.score, last.snapshot.id.clone()));
                break;
            }
            part.listed.push(Listed { score, bytes: codec::weight(&body), snapshot });
        }
        Ok(part)
    }

    /// Statistics of any partition, configured or not.
    pub async fn stats(&self, partition: &Partition) -> Result<PartitionStats, StoreError> {
        let keys = self.any_keys(partition);
        let mut all = vec![
            keys.pending.as_str(),
            &keys.unack,
            &keys.dead,
            &keys.paused,
            &keys.bytes,
            &keys.attempts,
            &keys.messages,
        ];
        if self.routes.get(&partition.route).is_some_and(|route| route.settings.flow.is_some()) {
            all.push(&keys.flow.gates);
        }
        let reply: Vec<Value> =
            script::STATS.keys(&all).arg(&HORIZONS.map(|(_, millis)| millis)[..]).run(&self.servers).await?;
        let mut reply = Reply::from(reply);
        Ok(PartitionStats {
            now: reply.integer()?,
            paused: Pause::parse(&reply.text()?),
            pending: reply.integer()?,
            due: reply.integer()?,
            unack: reply.integer()?,
            dead: reply.integer()?,
            next_due: reply.optional()?.and_then(UnixMillis::new),
            bytes: reply.integer()?,
            retrying: reply.integer()?,
            oldest_due: reply.optional()?.and_then(UnixMillis::new),
            latest_claimed: {
                let [due, lease_end] = [reply.optional()?, reply.optional()?];
                due.and_then(UnixMillis::new).zip(lease_end.and_then(UnixMillis::new))
            },
            parked: reply.integer()?,
            waiting_flows: reply.integer()?,
            due_within: [reply.integer()?, reply.integer()?, reply.integer()?, reply.integer()?],
        })
    }

    /// Counts pending messages by due time, in `count` (1 to 1000) intervals of `length` milliseconds, from `now` or
    /// from Redis' clock on.
    pub async fn forecast(
        &self,
        partition: &Partition,
        now: Option<UnixMillis>,
        length: u64,
        count: usize,
    ) -> Result<PartitionForecast, StoreError> {
        let keys = self.keys(partition)?;
        let now = now.map_or_else(String::new, |now| now.get().to_string());
        let call = script::FORECAST.keys(&[&keys.pending]).arg(now).arg(length).arg(count);
        let reply: Vec<Value> = call.run(&self.listings).await?;
        let mut reply = Reply::from(reply);
        let (now, overdue, later) = (reply.millis()?, reply.integer()?, reply.integer()?);
        let counts = (0..count).map(|_| reply.integer()).collect::<Result<_, _>>()?;
        Ok(PartitionForecast { now, overdue, later, counts })
    }
}

pub(super) fn snapshot(
    id: MessageId,
    state: State,
    score: u64,
    Failure { at: last_error_at, count: attempts, error: last_error, attempts: attempt_log }: Failure,
    body: &Bytes,
) -> Snapshot {
    let message = codec::decode(body);
    let parked = state == State::Pending && score >= PARKED;
    let deliver_at = match (&message, state) {
        (Ok(message), State::Unack | State::Dead) => message.due,
        _ => UnixMillis::new(if parked { score - PARKED } else { score }).unwrap_or_default(),
    };
    Snapshot {
        id,
        state,
        deliver_at,
        parked,
        attempts,
        last_error,
        last_error_at,
        attempt_log,
        revision: None,
        died_at: (state == State::Dead).then(|| UnixMillis::new(score)).flatten(),
        message: message.map_err(|error| error.to_string()),
    }
}
