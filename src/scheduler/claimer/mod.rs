//! The claimer of one partition: registers, polls, sleeps.
//!
//! The wake signal also notifies when its subscription is established, and a poll follows: no later wake-up is missed.
//! While the subscription is down, the fallback is one second. A poll is a claim; its reply determines the time of the
//! next poll (`LastPoll`). The claimer sleeps until that time, a wake-up or the fallback. While nothing may be claimed
//! (breaker open, no capacity), an overdue head is not polled again; only expired leases are recovered.

mod claim;
mod overlong;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    task::{JoinError, JoinSet},
    time::{Instant, sleep, sleep_until},
};

use self::{claim::ClaimCapacity, overlong::Overlong};
use super::{
    attempt::Batch,
    in_flight::{InFlight, OccurrenceInFlight, Permits},
    last_poll::{LastPoll, overdue},
    opening::Opening,
    polling::{ClaimYield, Polling},
    route::ActiveRoute,
    settler::Settler,
    sharing::{OVERDUE, SharingDelay},
    store_backoff::StoreBackoff,
};
use crate::{
    incidents::Sample,
    message::{DeadReason, EndRecord, codec},
    store::{Claim, Claimed, Deaths, Lease, Partition, WakeReason, WakeSignal},
};

/// Maximum messages of one claim: 2 ms of Redis' time.
const MAX_MESSAGES: u32 = 500;

/// Maximum bytes of bodies of one claim. With ids and scores the reply stays below 8 MiB.
const MAX_BYTES: u64 = 8 * 1024 * 1024 - 256 * 1024;

/// Maximum sleep while wake-ups are known not to arrive.
const UNHEARD_SLEEP: Duration = Duration::from_secs(1);

/// Maximum suspects of one claim; a quarter of `max_in_flight` if that is less, because ordinary messages need the
/// rest.
const MAX_SUSPECTS: usize = 32;

/// Maximum deferral of suspects while others are in flight in this process. The deferral is a random part of it, so
/// that some suspects are due soon after the permission is free.
const SUSPECTS_PAUSE: Duration = Duration::from_secs(1);

/// Minimum time between two wake-ups of the other instances.
const WAKE_OTHERS_INTERVAL: Duration = Duration::from_secs(1);

/// How long recovery waits when it would be useless or harmful: after a recovery that found no expired lease, while
/// settlements are unanswered, and after an outage of at least this duration. After an outage it waits for the
/// settlements of other instances, which repeat each of them twice a second.
const RECOVERY_PAUSE: Duration = Duration::from_secs(1);

/// How much later a partition without leases is checked for leases that end too late.
const NO_LEASE: Duration = Duration::from_hours(24);

pub struct Claimer {
    route: Arc<ActiveRoute>,
    partition: Partition,
    signal: Arc<WakeSignal>,
    settler: Settler,
    shutdown: watch::Receiver<bool>,
    rng: StdRng,
    last_poll: LastPoll,
    sharing_delay: SharingDelay,
    polling: Polling,
    backoff: StoreBackoff,
    /// Number of the latest claim.
    sequence: u64,
    /// Other instances are not woken before this time.
    wake_others_from: Instant,
    /// Expired leases are not recovered before this time.
    recover_from: Instant,
    overlong: Overlong,
    opening: Opening,
    /// Time of the store's latest answer.
    answered: Instant,
    /// Recent duration of claims, from sending to reply; at most the store's timeout.
    took: Duration,
    batches: JoinSet<()>,
}

impl Claimer {
    pub fn new(
        route: &Arc<ActiveRoute>,
        (partition, signal): (Partition, Arc<WakeSignal>),
        settler: Settler,
        shutdown: watch::Receiver<bool>,
        seed: u64,
    ) -> Self {
        let now = Instant::now();
        Self {
            route: Arc::clone(route),
            partition,
            signal,
            settler,
            shutdown,
            rng: StdRng::seed_from_u64(seed),
            last_poll: LastPoll::new(now),
            sharing_delay: SharingDelay::default(),
            polling: Polling::new(route.policy.max_in_flight),
            backoff: StoreBackoff::default(),
            sequence: 0,
            wake_others_from: now,
            recover_from: now,
            overlong: Overlong::new(route.policy.lease, now),
            opening: Opening::new(route.window.clone()),
            answered: now,
            took: Duration::ZERO,
            batches: JoinSet::new(),
        }
    }

    /// Runs until shutdown, and after that until the messages in flight are passed to the settler.
    pub async fn run(mut self) {
        while self.poll_is_due().await && self.may_claim().await {
            self.poll().await;
        }
        while let Some(end) = self.batches.join_next().await {
            report_panic(&self.partition, end);
        }
    }

    /// Sleeps until a poll is due. Returns false at shutdown.
    async fn poll_is_due(&mut self) -> bool {
        loop {
            if stopping(&self.shutdown) {
                return false;
            }
            let now = Instant::now();
            if self.may_look_at_leases() <= now {
                self.look_at_leases().await;
            }
            let look_at = self.may_look_at_leases();
            let (at, wake) = self.last_poll.next(self.fallback(), self.sharing_delay.wait(), self.recover_from);
            if at <= now {
                return true;
            }
            tokio::select! {
                biased;
                () = stopped(&mut self.shutdown) => return false,
                Some(end) = self.batches.join_next() => report_panic(&self.partition, end),
                reason = self.signal.notified() => {
                    self.route.metrics.woke(match reason {
                        WakeReason::HeadEarlier | WakeReason::Overdue => "notify",
                        WakeReason::Subscription => "resubscribe",
                    });
                    match reason {
                        WakeReason::HeadEarlier => {}
                        WakeReason::Overdue => self.sharing_delay.reset(),
                        WakeReason::Subscription => self.last_poll.again = true,
                    }
                    self.last_poll.woken.get_or_insert(Instant::now());
                    self.polling.refresh();
                }
                () = sleep_until(look_at.min(at)) => {
                    if at <= Instant::now() {
                        self.route.metrics.woke(wake);
                    }
                }
            }
        }
    }

    fn max_sleep(&self) -> Duration {
        let max_sleep = self.route.max_sleep;
        if self.signal.is_listening() { max_sleep } else { max_sleep.min(UNHEARD_SLEEP) }
    }

    /// The latest time of the next poll: the same for all partitions, so that their polls share calls.
    fn fallback(&self) -> Instant {
        let (polled, period) = (self.last_poll.polled, self.max_sleep());
        let passed = (polled - self.route.started).as_nanos() % period.as_nanos().max(1);
        polled + period.saturating_sub(Duration::from_nanos(u64::try_from(passed).unwrap_or(u64::MAX)))
    }

    /// Waits until polling, breaker and budget permit a claim. While it waits, it recovers expired leases. Returns false
    /// at shutdown.
    async fn may_claim(&mut self) -> bool {
        let began = Instant::now();
        let overdue_since = self.last_poll.overdue_since().unwrap_or(began);
        let worthwhile = self.polling.worthwhile();
        loop {
            let route = Arc::clone(&self.route);
            let polling = self.polling.next();
            let ready = async {
                if let Some(at) = polling {
                    sleep_until(at).await;
                }
                route.target.breaker().ready().await;
                route.budget.available(worthwhile).await;
            };
            let lease_ends = self
                .last_poll
                .lease
                .unwrap_or(self.last_poll.polled.max(began) + self.max_sleep())
                .max(self.recover_from);
            let look_at = self.may_look_at_leases();
            let wake_others_at = (overdue_since + OVERDUE).max(self.wake_others_from);
            tokio::select! {
                biased;
                () = stopped(&mut self.shutdown) => return false,
                () = sleep_until(wake_others_at) => self.wake_others().await,
                () = ready => return !stopping(&self.shutdown),
                Some(end) = self.batches.join_next() => report_panic(&self.partition, end),
                () = sleep_until(look_at) => self.look_at_leases().await,
                () = sleep_until(lease_ends) => self.recover().await,
            }
        }
    }

    /// Wakes the other instances, because messages are overdue and this instance does not keep up. Does nothing while
    /// the sink is down: other instances would not keep up either.
    async fn wake_others(&mut self) {
        self.wake_others_from = Instant::now() + WAKE_OTHERS_INTERVAL;
        if self.last_poll.has_due() && self.route.target.breaker().is_closed() {
            // An error does no harm: the call is repeated.
            let _ = self.route.store.wake_all(&self.partition).await;
        }
    }

    /// Claims messages and sends them. Does nothing if the capacity has just been used up.
    async fn poll(&mut self) {
        let Some(capacity) = self.reserve(MAX_MESSAGES, MAX_BYTES) else { return };
        let suspects = Arc::clone(&self.route.suspects);
        let right = self.last_poll.suspects.then(|| suspects.try_acquire_owned().ok()).flatten();
        self.sequence += 1;
        // This poll covers all wake-ups before it.
        let _ = self.signal.notified().now_or_never();
        let began = Instant::now();
        // Outside of the windows a poll reads the clock and the head.
        let limit = if self.opening.is_open(began) { capacity.reservation.messages() } else { 0 };
        let request = self.request(right.is_some(), limit, capacity.reservation.bytes());
        self.polling.start(began);
        let answer = self.claim(request, capacity).await;
        self.answered(request, began, answer, right).await;
    }

    /// `limit`: maximum number of messages that were asked for.
    async fn claimed(
        &mut self,
        mut claim: Claim,
        limit: u32,
        capacity: ClaimCapacity,
        right: Option<OwnedSemaphorePermit>,
    ) {
        self.store_answered();
        let is_open = self.opening.polled(&mut claim);
        let lease = self.lease();
        self.took = claim.clock.taken.elapsed().max(self.took / 2);
        // The lease of a repeated claim may have begun long ago.
        let left = Duration::from_micros(claim.token.0.saturating_sub(claim.clock.micros));
        // If Redis' clock has stepped back since, `left` is too long.
        let lease_ends = claim.clock.taken + left.min(lease);
        let expired = self.last_poll.update(&claim, Instant::now());
        self.sharing_delay.polled(&claim, self.rng.random());
        if !is_open {
            // The instance that served the partition before the closing can be gone at the opening.
            self.sharing_delay.reset();
        }
        self.polling.claimed(if limit == 0 { ClaimYield::Empty } else { claim_yield(&claim) });
        self.died(DeadReason::Orphan, &claim.orphans, "the body was missing");
        self.send(claim, capacity, right, lease_ends, is_open);
        if expired {
            self.recover().await;
        }
    }

    fn died(&self, reason: DeadReason, deaths: &Deaths, error: &str) {
        if deaths.count > 0 {
            let sample = deaths.sample.as_ref().map(|id| Sample::new(id.as_str(), error));
            self.route.died(reason, deaths.count.into(), sample);
        }
    }

    fn store_answered(&mut self) {
        let now = Instant::now();
        if self.backoff.answered() && now >= self.answered + RECOVERY_PAUSE {
            self.recover_from = self.recover_from.max(now + RECOVERY_PAUSE);
        }
        self.answered = now;
    }

    fn send(
        &mut self,
        claim: Claim,
        ClaimCapacity { mut admission, mut reservation }: ClaimCapacity,
        right: Option<OwnedSemaphorePermit>,
        lease_ends: Instant,
        is_open: bool,
    ) {
        if claim.messages.is_empty() {
            return;
        }
        admission.claimed(claim.messages.len());
        reservation.claimed(claim.messages.len());
        let right = right.map(Arc::new);
        let held = |claimed: Claimed| {
            let held = InFlight {
                lease: Lease { id: claimed.id.clone(), token: claim.token, bytes: claimed.body.len() },
                not_before: claimed.not_before,
                lease_ends,
                permits: Permits {
                    sink: admission.sink_permit((self.route.name.clone(), claimed.id.clone())),
                    share: reservation.permit(codec::weight(&claimed.body)),
                },
                suspects: right.clone().filter(|_| claimed.suspect),
                occurrence: claimed
                    .id
                    .schedule()
                    .map(|_| OccurrenceInFlight { body: claimed.body.clone(), failures: claimed.failures }),
                record: self.route.keeps_history.then(|| EndRecord::of(&claimed.body, claimed.failures)),
                trace: None,
            };
            (claimed, held)
        };
        let messages: Vec<_> = claim.messages.into_iter().map(held).collect();
        self.route.show_in_flight();
        if stopping(&self.shutdown) || !is_open || !self.opening.is_open(Instant::now()) {
            for (_, held) in messages {
                let end = held.given_back();
                self.settler.settle(held, end);
            }
            return;
        }
        let batch = Batch {
            route: Arc::clone(&self.route),
            partition: self.partition.clone(),
            settler: self.settler.clone(),
            clock: claim.clock,
            open_since: self.opening.since(),
            closes: self.opening.closes(),
            rng: StdRng::seed_from_u64(self.rng.random()),
        };
        self.batches.spawn(batch.run(messages));
    }

    /// Recovers expired leases, unless recovery must wait.
    async fn recover(&mut self) {
        let now = Instant::now();
        if self.settler.unanswered().any() {
            self.recover_from = now + RECOVERY_PAUSE;
        }
        if now < self.recover_from {
            return;
        }
        // Unknown until the next poll.
        self.last_poll.lease = None;
        match self.route.store.recover(&self.partition).await {
            Ok(recovered) => {
                self.store_answered();
                let now = Instant::now();
                self.route.metrics.leases_expired.increment(recovered.expired.into());
                self.died(DeadReason::Crash, &recovered.dead, "its process ended, again and again");
                self.last_poll.polled = now;
                self.last_poll.again = true;
                if recovered.more {
                    self.last_poll.lease = Some(now);
                } else if recovered.expired == 0 {
                    self.recover_from = now + RECOVERY_PAUSE;
                }
            }
            Err(error) => {
                self.last_poll.lease = Some(Instant::now());
                let wait = self.backoff.wait(&self.route.incidents, &self.partition, "recover", &error);
                self.pause(wait).await;
            }
        }
    }

    /// When to look for leases that end too late; in the far future while no lease is known.
    fn may_look_at_leases(&self) -> Instant {
        match self.last_poll.lease {
            Some(_) => self.overlong.look_at.max(self.recover_from),
            None => self.overlong.look_at + NO_LEASE,
        }
    }

    /// The lease of the next claim. A lease begins before its claim is answered. With slow answers, the configured
    /// lease would be too short for an attempt, and messages would be claimed and released forever.
    fn lease(&self) -> Duration {
        self.route.policy.lease + self.took
    }

    async fn look_at_leases(&mut self) {
        let now = Instant::now();
        if self.settler.unanswered().any() {
            self.overlong.look_later(now + RECOVERY_PAUSE);
            return;
        }
        let (longest, from) = (self.overlong.longest(), self.overlong.cut_from());
        match self.route.store.cut_leases(&self.partition, longest, from).await {
            Ok(found) => {
                let now = Instant::now();
                self.overlong.looked(found, now);
                if found.cut > 0 {
                    self.route.metrics.leases_cut.increment(found.cut.into());
                    tracing::warn!(
                        partition = %self.partition, leases = found.cut,
                        "leases ended later than any claim could have given them: the clock of redis stepped back; \
                         their messages are delivered again"
                    );
                    // The next poll finds them expired.
                    self.last_poll.polled = now;
                    self.last_poll.again = true;
                }
            }
            // The next poll reports the error.
            Err(_) => self.overlong.look_later(now + RECOVERY_PAUSE),
        }
    }

    async fn pause(&mut self, wait: Duration) {
        tokio::select! {
            biased;
            () = stopped(&mut self.shutdown) => {}
            () = sleep(wait) => {}
        }
    }
}

fn claim_yield(claim: &Claim) -> ClaimYield {
    let more = !claim.paused && claim.next_due.is_some_and(|due| overdue(claim, due.get()));
    match claim.messages.len() {
        // A buried orphan, a deferred suspect and a parked message are progress.
        0 if more && claim.suspects == 0 && claim.orphans.count == 0 && claim.parked == 0 => ClaimYield::Fruitless,
        0 => ClaimYield::Empty,
        count => ClaimYield::Messages { count, more },
    }
}

fn stopping(shutdown: &watch::Receiver<bool>) -> bool {
    *shutdown.borrow() || shutdown.has_changed().is_err()
}

/// Returns at shutdown or when its sender is dropped. Cancel-safe.
async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|stop| *stop).await;
}

/// A panic of a batch is a defect. Its messages return when their leases expire.
fn report_panic(partition: &Partition, end: Result<(), JoinError>) {
    if let Err(error) = end {
        tracing::error!(%partition, %error, "a batch ended in a panic");
    }
}
