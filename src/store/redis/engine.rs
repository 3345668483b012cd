//! The scheduler's `Store`: claim, recover, settle, transfer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use redis::Value;
use tokio::time::Instant;

use super::{
    Bundlers, MAX_BATCH, MAX_BODIES_BYTES, RedisStore,
    bundler::{Answered, Bundler},
    message_pack,
    reply::{self, Reply},
    script::{self, Call},
};
use crate::{
    message::OccurrenceMessage,
    store::{
        Claim, ClaimEnd, ClaimRequest, Claimed, CutLeases, Death, FailedAttempt, Found, NEVER, Partition, Planned,
        Recovered, Sent, Settled, Settlement, Store, StoreError, Suspects, Token, Transfer, Transferred,
    },
    time::{MAX_DELAY_MILLIS, ServerClock, UnixMillis},
};

/// Bodies that a claim reads at once: with the default maximum payload, as much as a reply can hold.
const BODIES_AT_ONCE: u32 = 8;

/// Maximum number of messages of a settlement or transfer that is bundled with those of other partitions.
const SMALL: usize = 255;
/// Maximum bytes of the values in such a transfer.
const SMALL_BYTES: usize = 64 * 1024;

/// Payload of a wake-up after which every instance must poll at once. Other wake-ups have an empty payload.
pub(super) const CALL: &str = "call";

/// Maximum bytes of an error text that is kept with a message: a cause and the 500 bytes that are kept of an HTTP
/// reply.
pub const MAX_ERROR_BYTES: usize = 640;

#[async_trait]
impl Store for RedisStore {
    async fn claim(&self, partition: &Partition, request: ClaimRequest) -> Result<Claim, StoreError> {
        let call = self.claim_call(partition, request)?;
        let Answered { sent, reply } = self.run(|of| &of.claims, call, !request.backlog).await?;
        self.claimed(partition, reply.into(), sent)
    }

    /// Also recovers leases of former partitions.
    async fn recover(&self, partition: &Partition) -> Result<Recovered, StoreError> {
        let keys = self.any_keys(partition);
        let route = self.route(&partition.route)?;
        let all = route.with_outbox(keys.of_messages(&[&keys.bytes]), &keys);
        let reply: Vec<Value> = script::RECOVER
            .keys(&all)
            .arg(&keys.wake)
            .arg(MAX_BATCH)
            .arg(u8::from(route.has_order()))
            .arg(route.history_settings())
            .run(&self.servers)
            .await?;
        let mut reply = Reply::from(reply);
        let recovered = Recovered { expired: reply.count()?, dead: reply.deaths()?, more: reply.flag()? };
        if recovered.dead.count > 0 {
            self.buried(partition);
        }
        Ok(recovered)
    }

    async fn cut_leases(
        &self,
        partition: &Partition,
        longest: Duration,
        from: Option<u64>,
    ) -> Result<CutLeases, StoreError> {
        let keys = self.keys(partition)?;
        let reply: Vec<Value> = script::CUT
            .keys(&[&keys.unack])
            .arg(u64::try_from(longest.as_micros()).unwrap_or(u64::MAX))
            .arg(from.map_or_else(String::new, |from| from.to_string()))
            .arg(MAX_BATCH)
            .run(&self.servers)
            .await?;
        let mut reply = Reply::from(reply);
        Ok(CutLeases { cut: reply.count()?, beyond: reply.optional()? })
    }

    async fn settle(&self, partition: &Partition, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        self.settle_in(partition, settlements, settlements.len() <= SMALL).await
    }

    async fn settle_alone(
        &self,
        partition: &Partition,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>, StoreError> {
        self.settle_in(partition, settlements, false).await
    }

    async fn bury_occurrence(
        &self,
        partition: &Partition,
        occurrence: &OccurrenceMessage,
        death: Death,
        error: &str,
    ) -> Result<bool, StoreError> {
        let partition = partition.among(partition.count, &occurrence.id);
        let buried = [(occurrence.clone().into(), error.to_owned())];
        loop {
            if self.bury(&partition, death, &buried).await?.contains(&true) {
                return Ok(true);
            }
            // Without a live message, that one has ended since.
            if let Some(Found::Live { snapshot, .. }) = self.get(&partition, &occurrence.id).await? {
                return Ok(snapshot.message.is_ok_and(|stored| occurrence.is(&stored)));
            }
        }
    }

    async fn transfer(&self, partition: &Partition, transfers: &[Transfer]) -> Result<Vec<Transferred>, StoreError> {
        let keys = self.keys(partition)?;
        let lists: BTreeSet<&str> = transfers.iter().map(|transfer| &*transfer.list).collect();
        let places: BTreeMap<&str, usize> = lists.iter().enumerate().map(|(n, list)| (*list, n + 1)).collect();
        let mut all = vec![
            keys.pending.as_str(),
            &keys.unack,
            &keys.messages,
            &keys.attempts,
            &keys.errors,
            &keys.remembered,
            &keys.records,
            &keys.bytes,
            &keys.schedules,
            &keys.groups,
            &keys.grouped,
        ];
        all.extend(&lists);
        let route = self.route(&partition.route)?;
        let all = route.with_history(all, keys);
        let has_schedules = transfers.iter().any(|one| one.lease.id.schedule().is_some());
        let is_plain = !has_schedules && !route.has_features();
        let script = if is_plain { &script::PLAIN_TRANSFER } else { &script::TRANSFER };
        let mut call = script
            .keys(&all)
            .arg(&keys.wake)
            .arg(route.settings.keep_millis())
            .arg(route.settings.kept_by_partition())
            .arg(lists.len())
            .arg(u8::from(has_schedules))
            .arg(route.history_settings());
        for group in transfers.chunk_by(|a, b| a.lease.token == b.lease.token && a.list == b.list) {
            let Transfer { lease, list, .. } = &group[0];
            let bytes: usize = group.iter().map(|one| one.lease.bytes).sum();
            call = call.arg(lease.token.0).arg(places[&**list]).arg(group.len()).arg(bytes);
            for one in group {
                call = call.arg(one.lease.id.as_str());
            }
            for one in group {
                call = call.arg(&one.value[..]);
            }
            for one in group.iter().filter(|_| route.settings.history.is_some()) {
                let entry = one.record.clone().unwrap_or_default().delivered(one.lease.id.as_str());
                call = call.arg(&entry[..]);
            }
        }
        let bytes: usize = transfers.iter().map(|transfer| transfer.value.len()).sum();
        let is_small = transfers.len() <= SMALL && bytes <= SMALL_BYTES;
        let mut reply = Reply::from(self.run(|of| &of.transfers, call, is_small).await?.reply);
        let verdicts = reply.verdicts(transfers.len())?;
        let verdicts = verdicts.iter().map(|verdict| match verdict {
            b'1' => Ok(Transferred::Done),
            b'0' => Ok(Transferred::Stale),
            _ => Ok(Transferred::Refused(format!("the key holds a {}", reply.text()?))),
        });
        verdicts.collect()
    }

    async fn wake_all(&self, partition: &Partition) -> Result<(), StoreError> {
        let keys = self.keys(partition)?;
        self.publish(keys, CALL).await.map(drop)
    }
}

impl RedisStore {
    fn claim_call(&self, partition: &Partition, request: ClaimRequest) -> Result<Call, StoreError> {
        let keys = self.keys(partition)?;
        let suspects = match request.suspects {
            Suspects::Few => "few".to_owned(),
            Suspects::Defer(pause) => pause.as_millis().to_string(),
        };
        let route = self.route(&partition.route)?;
        let all = route.with_outbox(
            keys.of_messages(&[
                &keys.paused,
                &keys.remembered,
                &keys.records,
                &keys.claims,
                &keys.bytes,
                &keys.groups,
                &keys.grouped,
            ]),
            keys,
        );
        let script = if route.has_features() { &script::CLAIM } else { &script::PLAIN_CLAIM };
        Ok(script
            .keys(&all)
            .arg(format!("{:016x}", request.claimant))
            .arg(request.sequence)
            .arg(request.limit)
            .arg(request.max_bytes.min(MAX_BODIES_BYTES))
            .arg(u64::try_from(request.lease.as_micros()).unwrap_or(u64::MAX))
            .arg(suspects)
            .arg(BODIES_AT_ONCE)
            .arg(u8::from(request.again))
            .arg(request.max_suspects)
            .arg(route.flow_settings())
            .arg(route.history_settings()))
    }

    /// Parses the reply of a claim that was sent at `sent`.
    fn claimed(&self, partition: &Partition, mut reply: Reply, sent: Instant) -> Result<Claim, StoreError> {
        let messages = reply.count()?;
        let mut claim = Claim {
            clock: ServerClock { micros: reply.integer()?, taken: sent },
            token: Token(reply.integer()?),
            paused: reply.flag()?,
            next_due: reply.optional()?.and_then(UnixMillis::new),
            next_lease: reply.optional()?,
            suspects: reply.count()?,
            orphans: reply.deaths()?,
            taken_elsewhere: reply.optional()?,
            parked: reply.count()?,
            messages: Vec::with_capacity(messages as usize),
        };
        let packed = reply.bytes()?;
        let (ids, rest) = message_pack::array(&packed)?;
        let (bodies, rest) = message_pack::array(rest)?;
        let (scores, _) = message_pack::array(rest)?;
        for ((id, body), score) in ids.into_iter().zip(bodies).zip(scores) {
            claim.messages.push(Claimed {
                id: reply::id(id)?,
                // A copy, because a slice would keep the other bodies in memory as long as this one.
                body: Bytes::copy_from_slice(body),
                failures: 0,
                waited: Duration::ZERO,
                not_before: reply::score(score)?,
                suspect: false,
                tried: false,
                crashed_out: false,
            });
        }
        let mut tried = reply.array()?;
        while !tried.is_done() {
            let place = tried.count()? as usize;
            let (failures, crashes) = (tried.count()?, tried.count()?);
            if let Some(claimed) = claim.messages.get_mut(place.wrapping_sub(1)) {
                (claimed.failures, claimed.tried) = (failures, true);
                (claimed.suspect, claimed.crashed_out) = (crashes > 0, crashes > 1);
            }
        }
        let mut waits = reply.array()?;
        while !waits.is_done() {
            let (place, waited) = (waits.count()? as usize, waits.integer()?);
            if let Some(claimed) = claim.messages.get_mut(place.wrapping_sub(1)) {
                claimed.waited = Duration::from_millis(waited);
            }
        }
        if claim.orphans.count > 0 {
            self.buried(partition);
        }
        Ok(claim)
    }

    /// `shares`: whether the call can be bundled with others.
    async fn settle_in(
        &self,
        partition: &Partition,
        settlements: &[Settlement],
        shares: bool,
    ) -> Result<Vec<Settled>, StoreError> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        let call = self.settle_call(partition, settlements)?;
        let reply = self.run(|of| &of.settlements, call, shares).await?.reply;
        self.settled(partition, settlements, reply.into())
    }

    fn settle_call(&self, partition: &Partition, settlements: &[Settlement]) -> Result<Call, StoreError> {
        let keys = self.keys(partition)?;
        let route = self.route(&partition.route)?;
        let others = [&*keys.remembered, &keys.records, &keys.bytes, &keys.schedules, &keys.groups, &keys.grouped];
        let all = route.with_outbox(keys.of_messages(&others), keys);
        let has_schedules = settlements.iter().any(|one| one.lease.id.schedule().is_some());
        let is_plain = !has_schedules && !route.has_features();
        let script = if is_plain { &script::PLAIN_SETTLE } else { &script::SETTLE };
        let mut call = script
            .keys(&all)
            .arg(&keys.wake)
            .arg(route.settings.keep_millis())
            .arg(route.settings.kept_by_partition())
            .arg(route.flow_settings())
            .arg(u8::from(has_schedules))
            .arg(route.history_settings());
        let alike = |a: &Settlement, b: &Settlement| a.lease.token == b.lease.token && is_ack(a) && is_ack(b);
        for group in settlements.chunk_by(alike) {
            let Settlement { lease, end, attempt, .. } = &group[0];
            let attempt = || attempt.as_ref().map_or_else(String::new, FailedAttempt::to_string);
            let bytes: usize = group.iter().map(|one| one.lease.bytes).sum();
            call = call.arg(lease.token.0).arg(group.len()).arg(bytes);
            call = match end {
                ClaimEnd::Ack => call.arg("ack"),
                ClaimEnd::Retry { delay, error, hold } => {
                    let hold = hold.map_or_else(String::new, |hold| millis(hold).to_string());
                    call.arg("retry").arg(millis(*delay)).arg(kept(error)).arg(attempt()).arg(hold)
                }
                ClaimEnd::Bury { reason, error } => {
                    let attempted = reason.is_attempted();
                    let text = format!("{}: {}", reason.as_str(), kept(error));
                    call.arg("bury").arg(u8::from(attempted)).arg(text).arg(attempt())
                }
                ClaimEnd::Release { at } => call.arg("release").arg(at.get()),
                ClaimEnd::Defer { pause, sent } => {
                    let hold = match sent {
                        Sent::No => "unsent".to_owned(),
                        Sent::Yes { hold } => hold.map_or_else(String::new, |hold| millis(hold).to_string()),
                    };
                    call.arg("defer").arg(millis(*pause)).arg(hold)
                }
                ClaimEnd::Plan(Planned { revision, occurrence, at, missed }) => {
                    let (occurrence, at) = occurrence.map_or((NEVER, NEVER), |occurrence| (occurrence.get(), at.get()));
                    call.arg("plan").arg(revision).arg(occurrence).arg(at).arg(*missed)
                }
            };
            for one in group {
                call = call.arg(one.lease.id.as_str());
            }
            for one in group.iter().filter(|_| route.settings.history.is_some()) {
                if let Some(entry) = entry_of(one) {
                    call = call.arg(&entry[..]);
                }
            }
        }
        Ok(call)
    }

    /// Parses the reply of a settlement.
    fn settled(
        &self,
        partition: &Partition,
        settlements: &[Settlement],
        mut reply: Reply,
    ) -> Result<Vec<Settled>, StoreError> {
        let verdicts = reply.verdicts(settlements.len())?;
        if settlements.iter().any(|one| matches!(one.end, ClaimEnd::Bury { .. })) {
            self.buried(partition);
        }
        Ok(verdicts.iter().map(|verdict| if *verdict == b'1' { Settled::Done } else { Settled::Stale }).collect())
    }

    /// Bundles a small call with others.
    async fn run(
        &self,
        bundler: fn(&Bundlers) -> &Arc<Bundler>,
        call: Call,
        is_small: bool,
    ) -> Result<Answered, StoreError> {
        if let Some(bundlers) = self.bundlers.as_ref().filter(|_| is_small) {
            return bundler(bundlers).run(call).await;
        }
        let sent = Instant::now();
        Ok(Answered { sent, reply: call.run(&self.servers).await? })
    }
}

/// The entry in the history of a message that ends.
fn entry_of(Settlement { lease, end, record, .. }: &Settlement) -> Option<Bytes> {
    let (id, record) = (lease.id.as_str(), || record.clone().unwrap_or_default());
    match end {
        ClaimEnd::Ack => Some(record().delivered(id)),
        ClaimEnd::Bury { reason, error } => Some(record().dead(id, *reason, &kept(error))),
        ClaimEnd::Retry { .. } | ClaimEnd::Release { .. } | ClaimEnd::Defer { .. } | ClaimEnd::Plan(_) => None,
    }
}

fn is_ack(settlement: &Settlement) -> bool {
    matches!(settlement.end, ClaimEnd::Ack)
}

/// Milliseconds, at most `MAX_DELAY_MILLIS`.
fn millis(delay: Duration) -> u64 {
    u64::try_from(delay.as_millis()).unwrap_or(u64::MAX).min(MAX_DELAY_MILLIS)
}

/// An error as it is kept: shortened, and without zero bytes.
pub(super) fn kept(error: &str) -> String {
    error[..error.floor_char_boundary(MAX_ERROR_BYTES)].replace('\0', " ")
}
