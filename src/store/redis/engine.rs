//! The scheduler's port: claim, recover, settle.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use redis::Value;
use tokio::time::Instant;

use super::{MAX_BATCH, MAX_BODIES_BYTES, RedisStore, Route, reply::Reply, script};
use crate::{
    outcome::DeadReason,
    port::{
        Burial, Claim, ClaimMode, ClaimRequest, Claimed, Lease, Partition, Recovered, Release, Retry, Settled, Store,
        StoreError, Token, Transfer, Transferred,
    },
    time::{MAX_DELAY_MILLIS, ServerClock, UnixMillis},
};

/// Bodies that a claim reads at once: with the default largest payload they are what a reply may hold.
const BODIES_AT_ONCE: u32 = 8;

/// Longest error text that is kept with a message, in bytes: enough for a cause, too little for a page.
pub const MAX_ERROR_BYTES: usize = 500;

#[async_trait]
impl Store for RedisStore {
    async fn claim(&self, partition: &Partition, request: ClaimRequest) -> Result<Claim, StoreError> {
        let keys = self.keys(partition)?;
        let (mode, skip) = match request.mode {
            ClaimMode::Ordinary => ("ordinary", 0),
            ClaimMode::Probe { skip } => ("probe", skip),
            ClaimMode::Suspect => ("suspect", 0),
        };
        let taken = Instant::now();
        let reply: Vec<Value> = script::CLAIM
            .keys(&[
                &keys.pending,
                &keys.unack,
                &keys.messages,
                &keys.attempts,
                &keys.errors,
                &keys.dead,
                &keys.paused,
                &keys.remembered,
                &keys.records,
            ])
            .arg(mode)
            .arg(request.limit)
            .arg(request.max_bytes.min(MAX_BODIES_BYTES))
            .arg(u64::try_from(request.lease.as_micros()).unwrap_or(u64::MAX))
            .arg(skip)
            .arg(BODIES_AT_ONCE)
            .run(&self.connection)
            .await?;
        let mut reply = Reply::from(reply);
        let mut claim = Claim {
            clock: ServerClock { micros: reply.integer()?, taken },
            token: Token(reply.integer()?),
            paused: reply.flag()?,
            next_due: reply.optional()?.and_then(UnixMillis::new),
            next_lease: reply.optional()?,
            suspects: reply.count()?,
            orphans: reply.count()?,
            messages: Vec::new(),
        };
        while !reply.is_done() {
            claim.messages.push(Claimed {
                id: reply.id()?,
                body: reply.bytes()?,
                failures: reply.count()?,
                not_before: reply.millis()?,
            });
        }
        Ok(claim)
    }

    async fn recover(&self, partition: &Partition) -> Result<Recovered, StoreError> {
        let keys = self.keys(partition)?;
        let reply: Vec<Value> = script::RECOVER
            .keys(&[&keys.pending, &keys.unack, &keys.attempts, &keys.errors, &keys.dead])
            .arg(&keys.wake)
            .arg(MAX_BATCH)
            .run(&self.connection)
            .await?;
        let mut reply = Reply::from(reply);
        Ok(Recovered { expired: reply.count()?, dead: reply.count()?, more: reply.flag()? })
    }

    async fn ack(&self, partition: &Partition, leases: &[Lease]) -> Result<Vec<Settled>, StoreError> {
        let keys = self.keys(partition)?;
        let Route { settings, .. } = self.route(&partition.route)?;
        let mut call = script::ACK
            .keys(&[&keys.unack, &keys.messages, &keys.attempts, &keys.errors, &keys.remembered, &keys.records])
            .arg(settings.keep_millis())
            .arg(settings.kept_by_partition());
        for lease in leases {
            call = call.arg(lease.id.as_str()).arg(lease.token.0);
        }
        self.settle(call, leases.len()).await
    }

    async fn retry(&self, partition: &Partition, retries: &[Retry]) -> Result<Vec<Settled>, StoreError> {
        let keys = self.keys(partition)?;
        let mut call = script::RETRY.keys(&[&keys.pending, &keys.unack, &keys.attempts, &keys.errors]).arg(&keys.wake);
        for Retry { lease, delay, error } in retries {
            let delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX).min(MAX_DELAY_MILLIS);
            call = call.arg(lease.id.as_str()).arg(lease.token.0).arg(delay).arg(shortened(error));
        }
        self.settle(call, retries.len()).await
    }

    async fn bury(&self, partition: &Partition, burials: &[Burial]) -> Result<Vec<Settled>, StoreError> {
        let keys = self.keys(partition)?;
        let mut call = script::BURY.keys(&[&keys.unack, &keys.dead, &keys.attempts, &keys.errors]);
        for Burial { lease, reason, error } in burials {
            let attempted = matches!(reason, DeadReason::Rejected | DeadReason::Attempts);
            let text = format!("{}: {}", reason.as_str(), shortened(error));
            call = call.arg(lease.id.as_str()).arg(lease.token.0).arg(u8::from(attempted)).arg(text);
        }
        self.settle(call, burials.len()).await
    }

    async fn release(&self, partition: &Partition, releases: &[Release]) -> Result<Vec<Settled>, StoreError> {
        let keys = self.keys(partition)?;
        let mut call = script::RELEASE.keys(&[&keys.pending, &keys.unack, &keys.attempts]).arg(&keys.wake);
        for Release { lease, not_before } in releases {
            call = call.arg(lease.id.as_str()).arg(lease.token.0).arg(not_before.get());
        }
        self.settle(call, releases.len()).await
    }

    async fn transfer(&self, partition: &Partition, transfers: &[Transfer]) -> Result<Vec<Transferred>, StoreError> {
        let keys = self.keys(partition)?;
        let lists: BTreeSet<&str> = transfers.iter().map(|transfer| &*transfer.list).collect();
        let places: BTreeMap<&str, usize> = lists.iter().enumerate().map(|(n, list)| (*list, n + 1)).collect();
        let mut all =
            vec![keys.unack.as_str(), &keys.messages, &keys.attempts, &keys.errors, &keys.remembered, &keys.records];
        all.extend(&lists);
        let Route { settings, .. } = self.route(&partition.route)?;
        let mut call = script::TRANSFER.keys(&all).arg(settings.keep_millis()).arg(settings.kept_by_partition());
        for Transfer { lease, list, value } in transfers {
            call = call.arg(lease.id.as_str()).arg(lease.token.0).arg(places[&**list]).arg(&value[..]);
        }
        let mut reply = Reply::from(call.run::<Vec<Value>>(&self.connection).await?);
        transfers.iter().map(|_| reply.transferred()).collect()
    }
}

impl RedisStore {
    async fn settle(&self, call: script::Call, count: usize) -> Result<Vec<Settled>, StoreError> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let verdicts: Vec<bool> = call.run(&self.connection).await?;
        Ok(verdicts.into_iter().map(|done| if done { Settled::Done } else { Settled::Stale }).collect())
    }
}

pub(super) fn shortened(error: &str) -> &str {
    &error[..error.floor_char_boundary(MAX_ERROR_BYTES)]
}
