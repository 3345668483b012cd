//! One partition's sleeper: registers, looks, sleeps (DESIGN.md, "wake protocol").
//!
//! The bell rings whenever its subscription comes about, the first time too, so that a look follows: nothing that
//! rings after that is missed. Until then, and while it is known to be lost, the fallback is a second. A look is a
//! claim; its reply says when the next is worth it (`View`). In between it sleeps until that, a ring, or the
//! fallback. While nothing may leave (breaker open, no room) an overdue head is not looked at again; only
//! expired leases are recovered then.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{
    sync::watch,
    task::{JoinError, JoinSet},
    time::{Instant, sleep, sleep_until},
};

use super::{
    batch::Batch,
    breaker::Admission,
    budget::Room,
    gate::Pass,
    held::Held,
    pace::{Catch, Pace},
    patience::Patience,
    rotation::Rotation,
    route::Route,
    settler::Settler,
    view::{Look, View, Wake, overdue},
};
use crate::{
    outcome::DeadReason,
    port::{Bell, Claim, ClaimMode, ClaimRequest, Lease, Partition, Ring, StoreError},
};

/// Messages of one claim: 2 ms of Redis' time.
const MAX_MESSAGES: u32 = 500;

/// Bytes of bodies of one claim; with ids and scores the reply stays below 8 MiB.
const MAX_BYTES: u64 = 8 * 1024 * 1024 - 256 * 1024;

/// Longest sleep while wake-ups are known not to arrive.
const UNHEARD_SLEEP: Duration = Duration::from_secs(1);

/// Suspects in a row before ordinary messages have their turn: each waits for every batch of the process.
const SUSPECTS_IN_A_ROW: u32 = 8;

/// How long recovery waits where it would do harm or nothing: after leases that seemed expired but were not, while
/// settlements wait for an answer, and after an outage of so long, for the settlements of other instances: each of
/// them is repeated twice a second.
const RECOVERY_PAUSE: Duration = Duration::from_secs(1);

pub struct Claimer {
    route: Arc<Route>,
    partition: Partition,
    bell: Arc<Bell>,
    settler: Settler,
    shutdown: watch::Receiver<bool>,
    rng: StdRng,
    view: View,
    pace: Pace,
    patience: Patience,
    rotation: Rotation,
    suspects_in_a_row: u32,
    /// Expired leases are not recovered before.
    recover_from: Instant,
    /// The store's latest answer.
    answered: Instant,
    /// What claims took lately, from sending to reply; at most the store's timeout.
    took: Duration,
    batches: JoinSet<()>,
}

/// What a claim needs before it is sent.
struct Leave {
    pass: Pass,
    admission: Admission,
    room: Room,
}

impl Claimer {
    pub fn new(
        route: &Arc<Route>,
        (partition, bell): (Partition, Arc<Bell>),
        settler: Settler,
        shutdown: watch::Receiver<bool>,
        seed: u64,
    ) -> Self {
        let now = Instant::now();
        Self {
            route: Arc::clone(route),
            partition,
            bell,
            settler,
            shutdown,
            rng: StdRng::seed_from_u64(seed),
            view: View::new(now),
            pace: Pace::new(route.max_in_flight()),
            patience: Patience::default(),
            rotation: Rotation::default(),
            suspects_in_a_row: 0,
            recover_from: now,
            answered: now,
            took: Duration::ZERO,
            batches: JoinSet::new(),
        }
    }

    /// Until shutdown; then until what is being sent is with the settler.
    pub async fn run(mut self) {
        while let Some(look) = self.reason().await {
            if !self.may_leave().await {
                break;
            }
            self.look(look).await;
        }
        while let Some(end) = self.batches.join_next().await {
            tell_of_panic(&self.partition, end);
        }
    }

    /// Sleeps until a look is worth it. `None`: shutdown.
    async fn reason(&mut self) -> Option<Look> {
        let breaker = Arc::clone(self.route.target.breaker());
        loop {
            if stopping(&self.shutdown) {
                return None;
            }
            let now = Instant::now();
            let (at, look, wake) = self.next_look(now);
            if at <= now {
                return Some(look);
            }
            let suspects_wait = self.view.suspects > 0 && !breaker.is_closed();
            tokio::select! {
                biased;
                () = stopped(&mut self.shutdown) => return None,
                Some(end) = self.batches.join_next() => tell_of_panic(&self.partition, end),
                ring = self.bell.heard() => {
                    self.route.metrics.woke(match ring {
                        Ring::Notify => "notify",
                        Ring::Resubscribe => "resubscribe",
                    });
                    self.view.again = true;
                    self.pace.refresh();
                }
                () = breaker.closed(), if suspects_wait => {}
                () = sleep_until(at) => self.route.metrics.woke(match wake {
                    Wake::Timer => "timer",
                    Wake::Fallback => "fallback",
                }),
            }
        }
    }

    fn next_look(&self, now: Instant) -> (Instant, Look, Wake) {
        let suspect_at = self.route.target.breaker().suspects_from();
        let (at, look, wake) = self.view.next(self.max_sleep(), suspect_at, self.recover_from);
        let ordinary_turn = look == Look::Suspect && at <= now && self.suspects_in_a_row >= SUSPECTS_IN_A_ROW;
        (at, if ordinary_turn { Look::Ordinary } else { look }, wake)
    }

    fn max_sleep(&self) -> Duration {
        let max_sleep = self.route.max_sleep;
        if self.bell.is_listening() { max_sleep } else { max_sleep.min(UNHEARD_SLEEP) }
    }

    /// Waits for pace, breaker and room; recovers expired leases meanwhile. False: shutdown.
    async fn may_leave(&mut self) -> bool {
        loop {
            let route = Arc::clone(&self.route);
            let pace = self.pace.next();
            let ready = async {
                if let Some(at) = pace {
                    sleep_until(at).await;
                }
                route.target.breaker().ready().await;
                route.budget.room().await;
            };
            let lease_ends = self.view.lease.unwrap_or(self.view.looked + self.max_sleep()).max(self.recover_from);
            tokio::select! {
                biased;
                () = stopped(&mut self.shutdown) => return false,
                () = ready => return true,
                Some(end) = self.batches.join_next() => tell_of_panic(&self.partition, end),
                () = sleep_until(lease_ends) => self.recover().await,
            }
        }
    }

    /// Claims, and sets off what it got. Does nothing where something that may leave has just changed.
    async fn look(&mut self, look: Look) {
        let Some(leave) = self.leave(look).await else { return };
        let request = ClaimRequest {
            mode: match look {
                Look::Suspect => ClaimMode::Suspect,
                Look::Ordinary if leave.admission.is_probe() => ClaimMode::Probe { skip: self.rotation.skip() },
                Look::Ordinary => ClaimMode::Ordinary,
            },
            limit: leave.room.messages(),
            max_bytes: leave.room.bytes(),
            // A lease begins before its claim is answered. Where answers are slow, it would not do for an attempt,
            // and what was claimed would be released and claimed again for ever.
            lease: self.route.policy.lease + self.took,
        };
        // This look answers whatever rang before it.
        let _ = self.bell.heard().now_or_never();
        self.pace.start(Instant::now());
        match self.route.store.claim(&self.partition, request).await {
            Ok(claim) => {
                self.store_answered();
                self.took = claim.clock.taken.elapsed().max(self.took / 2);
                let lease_ends = claim.clock.taken + request.lease;
                self.answered(claim, look, leave, lease_ends).await;
            }
            Err(error) => {
                // Nothing is held while it waits.
                drop(leave);
                self.view.again = true;
                self.wait_after("claim", &error).await;
            }
        }
    }

    async fn leave(&mut self, look: Look) -> Option<Leave> {
        let gate = self.route.gate.clone();
        let alone = look == Look::Suspect;
        let enter = async { if alone { gate.alone().await } else { gate.shared().await } };
        let pass = tokio::select! {
            biased;
            () = stopped(&mut self.shutdown) => return None,
            pass = enter => pass,
        };
        let want = if alone { 1 } else { MAX_MESSAGES };
        let admission = self.route.target.breaker().admit(want as usize, alone)?;
        let room = self.route.budget.reserve(admission.messages(), MAX_BYTES)?;
        self.suspects_in_a_row = if alone { self.suspects_in_a_row + 1 } else { 0 };
        Some(Leave { pass, admission, room })
    }

    async fn answered(&mut self, claim: Claim, look: Look, leave: Leave, lease_ends: Instant) {
        let probe = leave.admission.is_probe();
        let expired = self.view.update(&claim, look, Instant::now());
        self.pace.caught(caught(&claim, look));
        if claim.orphans > 0 {
            tracing::error!(partition = %self.partition, count = claim.orphans, "ids without a body are dead now");
            self.route.metrics.dead(DeadReason::Orphan, claim.orphans.into());
        }
        if probe && look == Look::Ordinary {
            claim.messages.iter().for_each(|probed| self.rotation.claimed(&probed.id));
        }
        self.set_off(claim, leave, lease_ends);
        if expired {
            self.recover().await;
        }
    }

    fn store_answered(&mut self) {
        let now = Instant::now();
        if self.patience.answered() && now >= self.answered + RECOVERY_PAUSE {
            self.recover_from = self.recover_from.max(now + RECOVERY_PAUSE);
        }
        self.answered = now;
    }

    fn set_off(&mut self, claim: Claim, Leave { pass, mut admission, mut room }: Leave, lease_ends: Instant) {
        if claim.messages.is_empty() {
            return;
        }
        let pass = Arc::new(pass);
        let messages = claim.messages.into_iter().map(|claimed| {
            let held = Held {
                lease: Lease { id: claimed.id.clone(), token: claim.token },
                not_before: claimed.not_before,
                lease_ends,
                seat: admission.seat(),
                _permit: room.permit(claimed.body.len()),
                _pass: Arc::clone(&pass),
            };
            (claimed, held)
        });
        let batch = Batch {
            route: Arc::clone(&self.route),
            partition: self.partition.clone(),
            settler: self.settler.clone(),
            clock: claim.clock,
            messages: messages.collect(),
            rng: StdRng::seed_from_u64(self.rng.random()),
        };
        self.route.show_in_flight();
        if stopping(&self.shutdown) {
            batch.give_back();
        } else {
            self.batches.spawn(batch.run());
        }
    }

    /// Unless it has to wait.
    async fn recover(&mut self) {
        let now = Instant::now();
        if self.settler.unanswered().any() {
            self.recover_from = now + RECOVERY_PAUSE;
        }
        if now < self.recover_from {
            return;
        }
        // Until the next look tells when.
        self.view.lease = None;
        match self.route.store.recover(&self.partition).await {
            Ok(recovered) => {
                self.store_answered();
                let now = Instant::now();
                self.route.metrics.leases_expired.increment(recovered.expired.into());
                self.route.metrics.dead(DeadReason::Crash, recovered.dead.into());
                self.view.looked = now;
                self.view.again = true;
                if recovered.more {
                    self.view.lease = Some(now);
                } else if recovered.expired == 0 {
                    self.recover_from = now + RECOVERY_PAUSE;
                }
            }
            Err(error) => {
                self.view.lease = Some(Instant::now());
                self.wait_after("recover", &error).await;
            }
        }
    }

    async fn wait_after(&mut self, doing: &'static str, error: &StoreError) {
        let wait = self.patience.wait(&self.partition, doing, error);
        tokio::select! {
            biased;
            () = stopped(&mut self.shutdown) => {}
            () = sleep(wait) => {}
        }
    }
}

fn caught(claim: &Claim, look: Look) -> Catch {
    let more = !claim.paused && claim.next_due.is_some_and(|due| overdue(claim, due.get()));
    match claim.messages.len() {
        // Suspects are a reason of their own to look again, an orphan was progress.
        0 if more && (claim.suspects == 0 || look == Look::Suspect) && claim.orphans == 0 => Catch::Fruitless,
        0 => Catch::Empty,
        count => Catch::Messages { count, more },
    }
}

fn stopping(shutdown: &watch::Receiver<bool>) -> bool {
    *shutdown.borrow() || shutdown.has_changed().is_err()
}

/// Ends at shutdown, which is also when nobody is left to order it. Cancel-safe.
async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|stop| *stop).await;
}

/// A batch that panics is a defect of ours: its messages come back when their lease ends.
fn tell_of_panic(partition: &Partition, end: Result<(), JoinError>) {
    if let Err(error) = end {
        tracing::error!(%partition, %error, "a batch ended in a panic");
    }
}
