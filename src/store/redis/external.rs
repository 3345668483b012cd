//! Messages of other programs on this Redis: they stay in the keys of those programs until they are due, and one script
//! moves them.

use bytes::Bytes;
use redis::Value;

use super::{RedisStore, StoreRoute, keys::DelayQueueKeys, reply::Reply, script, unless_closed};
use crate::{
    message::{MAX_METADATA_BYTES, MessageId, Metadata},
    store::{Partition, StoreError},
    time::UnixMillis,
};

/// Maximum number of members in one reply. Moving them blocks Redis for 2 ms, or 5 ms if their bodies are in other
/// keys.
const MAX_MEMBERS: usize = 250;
/// Maximum number of members that name a hash, because a script has to quote the fields of hashes: 3 ms with ten fields
/// of 100 bytes each.
const MAX_HASHES: usize = 50;
/// Maximum bytes of one reply and of one move: copying 1 MiB takes 7 ms. A single message can be larger.
const MAX_BYTES: usize = 1024 * 1024;
/// Maximum bytes of one move of hashes, each field counted as 128 bytes more. A single hash of 1 MiB takes 25 ms, or 70
/// ms if it is not ASCII.
const MAX_HASHES_BYTES: usize = 128 * 1024;
/// Number of due messages in a partition's pending from which no more are taken: as many as a route has in flight by
/// default. While the sink is down, the others stay where their producers can cancel them.
const MAX_DUE: usize = 1000;
/// Maximum bytes of a message besides its payload.
const MAX_OVERHEAD: usize = MAX_METADATA_BYTES + 64;

/// The keys in which external messages wait.
#[derive(Clone, Debug)]
pub enum ExternalPlace {
    /// A sorted set of payloads. `unit`: milliseconds per 1 of a score.
    Members { key: String, unit: u32 },
    /// A sorted set of names of hashes; the fields of a hash are the payload. Only hashes with names that begin with
    /// `prefix` are touched.
    Hashes { key: String, unit: u32, prefix: String },
    /// The keys of hdt3213/delayqueue.
    DelayQueue(DelayQueueKeys),
}

/// The due members of a place, and the due time of the next one.
#[derive(Clone, Debug)]
pub struct ExternalDue {
    /// Redis' clock, microseconds.
    pub now: u64,
    /// Due time of the first member that is not due yet.
    pub next_due: Option<UnixMillis>,
    /// Due members, at most 250.
    pub members: Vec<Bytes>,
}

/// A due member, and the id and metadata of its message.
#[derive(Clone, Debug)]
pub struct ExternalEntry {
    pub member: Bytes,
    pub id: MessageId,
    pub metadata: Metadata,
}

/// The result of moving a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveOutcome {
    /// The message is in our pending now.
    Taken,
    /// The message is a dead letter now.
    Invalid,
    /// Cancelled, or taken by another program.
    Gone,
    /// The id is live in our queue; nothing changed.
    Conflict,
    /// The route is paused, at one of its limits, or has enough due messages; nothing changed.
    Left,
}

/// The result of moving one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedEntry {
    pub outcome: MoveOutcome,
    /// Why the message is invalid.
    pub error: Option<String>,
}

/// Whether a partition takes due external messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingCapacity {
    /// Capacity for many messages: to take them one by one would cost many calls.
    Free,
    Full,
    Paused,
}

impl RedisStore {
    pub async fn external_due(&self, place: &ExternalPlace) -> Result<ExternalDue, StoreError> {
        let (keys, sets, unit): (Vec<&str>, _, _) = match place {
            ExternalPlace::Members { key, unit } | ExternalPlace::Hashes { key, unit, .. } => (vec![key], 1, *unit),
            ExternalPlace::DelayQueue(keys) => {
                (vec![&keys.pending, &keys.unack, &keys.ready, &keys.retry], 2, DelayQueueKeys::UNIT)
            }
        };
        let reply: Vec<Value> = script::DUE
            .keys(&keys)
            .arg(sets)
            .arg(unit)
            .arg(if matches!(place, ExternalPlace::Hashes { .. }) { MAX_HASHES } else { MAX_MEMBERS })
            .arg(MAX_BYTES)
            .arg(u8::from(!matches!(place, ExternalPlace::DelayQueue(_))))
            .run(&self.servers)
            .await?;
        let mut reply = Reply::from(reply);
        let (now, next_due) = (reply.integer()?, reply.optional()?.and_then(UnixMillis::new));
        let mut members = Vec::new();
        while !reply.is_done() {
            members.push(reply.bytes()?);
        }
        Ok(ExternalDue { now, next_due, members })
    }

    /// Moves the entries of `batch`, all of `partition`, that still exist and are due; at most as many as
    /// `external_due` returns. Returns one outcome per entry, in order. `Unavailable` of kind `UNREGISTERED` as for
    /// `schedule`: nothing was moved.
    pub async fn take(
        &self,
        partition: &Partition,
        place: &ExternalPlace,
        max_payload: usize,
        batch: &[ExternalEntry],
    ) -> Result<Vec<MovedEntry>, StoreError> {
        let in_flight = self.pull(partition, batch.iter().map(|entry| &entry.id)).await?;
        if in_flight.is_empty() {
            return self.take_here(partition, place, max_payload, batch).await;
        }
        let here: Vec<_> = batch.iter().filter(|entry| !in_flight.contains_key(&entry.id)).cloned().collect();
        let mut taken = match &here[..] {
            [] => Vec::new(),
            here => self.take_here(partition, place, max_payload, here).await?,
        }
        .into_iter();
        let outcome = |entry: &ExternalEntry| {
            let conflict = || MovedEntry { outcome: MoveOutcome::Conflict, error: None };
            if in_flight.contains_key(&entry.id) { Some(conflict()) } else { taken.next() }
        };
        Ok(batch.iter().filter_map(outcome).collect())
    }

    async fn take_here(
        &self,
        partition: &Partition,
        place: &ExternalPlace,
        max_payload: usize,
        batch: &[ExternalEntry],
    ) -> Result<Vec<MovedEntry>, StoreError> {
        let (own, route) = (self.keys(partition)?, self.route(&partition.route)?);
        let own_keys = vec![
            own.pending.as_str(),
            &own.unack,
            &own.messages,
            &own.dead,
            &own.errors,
            &own.paused,
            &own.route,
            &own.remembered,
            &own.bytes,
        ];
        let StoreRoute { settings, .. } = route;
        let mut keys = route.with_outbox(own_keys, own);
        let members = batch.iter().map(|entry| &entry.member[..]);
        let call = match place {
            ExternalPlace::Members { key, .. } => {
                keys.push(key);
                script::TAKE_MEMBER.keys(&keys)
            }
            ExternalPlace::Hashes { key, prefix, .. } => {
                keys.push(key);
                // The script refuses other names too, but with a key that this user has no right to, the whole call
                // would fail.
                let named = |member: &[u8]| member.starts_with(prefix.as_bytes());
                let details =
                    members.map(|member| if named(member) { member.to_vec() } else { key.as_bytes().to_vec() });
                script::TAKE_HASH.keys_and(&keys, &details.collect::<Vec<_>>())
            }
            ExternalPlace::DelayQueue(theirs) => {
                keys.extend([&*theirs.pending, &theirs.ready, &theirs.retry, &theirs.unack, &theirs.counts]);
                script::TAKE_DELAYQUEUE.keys_and(&keys, &members.map(|id| theirs.body(id)).collect::<Vec<_>>())
            }
        };
        let max_bytes = if matches!(place, ExternalPlace::Hashes { .. }) { MAX_HASHES_BYTES } else { MAX_BYTES };
        let mut call = call.arg(&own.wake).arg(self.layout(partition)?).arg(MAX_DUE).arg(max_payload).arg(max_bytes);
        let further = [
            settings.forwards.then_some("outbox"),
            settings.history.map(|_| "history"),
            settings.flow.as_ref().map(|_| "flow"),
        ];
        call = call.arg(further.into_iter().flatten().collect::<Vec<_>>().join(" ")).arg(route.history_settings());
        if let ExternalPlace::Members { unit, .. } | ExternalPlace::Hashes { unit, .. } = place {
            call = call.arg(*unit);
        }
        if let ExternalPlace::Hashes { prefix, .. } = place {
            call = call.arg(prefix);
        }
        for ExternalEntry { member, id, metadata } in batch {
            let metadata =
                serde_json::to_vec(&*settings.with_flow(metadata)).expect("strings and integers always serialize");
            call = call.arg(id.as_str()).arg(&member[..]).arg(metadata);
        }
        let reply: Vec<Value> = call.run(&self.servers).await.map_err(unless_closed)?;
        let mut reply = Reply::from(reply);
        let mut verdicts = Vec::with_capacity(batch.len());
        while !reply.is_done() {
            let text = reply.text()?;
            let (outcome, error) = match text.as_str() {
                "taken" => (MoveOutcome::Taken, None),
                "gone" => (MoveOutcome::Gone, None),
                "conflict" => (MoveOutcome::Conflict, None),
                other => match other.strip_prefix("invalid: ") {
                    Some(error) => (MoveOutcome::Invalid, Some(error.to_owned())),
                    None => (MoveOutcome::Left, None),
                },
            };
            verdicts.push(MovedEntry { outcome, error });
        }
        if verdicts.iter().any(|one| one.outcome == MoveOutcome::Invalid) {
            self.buried(partition);
        }
        Ok(verdicts)
    }

    pub async fn capacity(&self, partition: &Partition) -> Result<PendingCapacity, StoreError> {
        let stats = self.stats(partition).await?;
        let settings = &self.route(&partition.route)?.settings;
        let [messages, bytes, _] = settings.shares();
        let held = stats.pending + stats.unack;
        // A message that was left takes at most this many bytes. With less capacity, it could be left again.
        let largest = (settings.max_payload + MAX_OVERHEAD) as u64;
        let is_full = messages > 0 && held * 10 > messages * 9 || bytes > 0 && stats.bytes + largest > bytes;
        Ok(if stats.paused.is_some() {
            PendingCapacity::Paused
        } else if is_full || stats.due > MAX_DUE as u64 / 2 {
            PendingCapacity::Full
        } else {
            PendingCapacity::Free
        })
    }

    /// Removes the expiry of these keys. Returns how many had one.
    pub async fn persist(&self, keys: &[Vec<u8>]) -> Result<u64, StoreError> {
        script::PERSIST.keys_and(&[], keys).run(&self.servers).await
    }
}
