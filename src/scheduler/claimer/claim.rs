//! One claim: its capacity, its answer, and its repetition while there is no answer.

use std::time::Duration;

use rand::RngExt;
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, sleep},
};

use super::{Claimer, MAX_SUSPECTS, SUSPECTS_PAUSE};
use crate::{
    scheduler::{breaker::Admission, budget::Reservation, store_backoff::is_outage},
    store::{Claim, ClaimEnd, ClaimRequest, Claimed, Lease, Settled, Settlement, StoreError, Suspects, Token},
};

/// How long a claim without an answer keeps its capacity.
const CAPACITY_HELD: Duration = Duration::from_secs(1);

/// The permits that a claim needs before it is sent.
pub struct ClaimCapacity {
    pub admission: Admission,
    pub reservation: Reservation,
}

/// A claim without an answer may have taken messages, so it keeps its capacity.
type ClaimAnswer = Result<(Claim, ClaimCapacity), (StoreError, ClaimCapacity)>;

impl Claimer {
    pub(super) async fn claim(&self, request: ClaimRequest, capacity: ClaimCapacity) -> ClaimAnswer {
        match self.route.store.claim(&self.partition, request).await {
            Ok(claim) => Ok((claim, capacity)),
            Err(error) => Err((error, capacity)),
        }
    }

    /// Sends the claimed messages. A claim without an answer is repeated until there is one. `began`: time of the first
    /// try. `right`: the permission to have suspects in flight.
    pub(super) async fn answered(
        &mut self,
        mut request: ClaimRequest,
        began: Instant,
        mut answer: ClaimAnswer,
        right: Option<OwnedSemaphorePermit>,
    ) {
        loop {
            let (error, capacity) = match answer {
                Ok((mut claim, capacity)) => {
                    // An earlier try may have claimed more.
                    let surplus = claim.messages.split_off(claim.messages.len().min(request.limit as usize));
                    let token = claim.token;
                    self.claimed(claim, request.limit, capacity, right).await;
                    return self.give_back(surplus, token).await;
                }
                Err(unanswered) => unanswered,
            };
            let wait = self.backoff.wait(&self.route.incidents, &self.partition, "claim", &error);
            if !is_outage(&error) {
                drop(capacity);
                self.last_poll.again = true;
                return self.pause(wait).await;
            }
            // The claim may have taken messages, so it is repeated until there is an answer. After `CAPACITY_HELD` its
            // capacity is left to other partitions: their server may be up.
            request.again = true;
            let capacity = if began.elapsed() < CAPACITY_HELD {
                sleep(wait).await;
                capacity
            } else {
                drop(capacity);
                sleep(wait).await;
                // A poll outside of the windows asks for none.
                request.limit = request.limit.min(1);
                self.capacity_for_one().await
            };
            answer = self.claim(request, capacity).await;
        }
    }

    /// `few`: whether suspects may be claimed.
    pub(super) fn request(&mut self, few: bool, limit: u32, max_bytes: u64) -> ClaimRequest {
        ClaimRequest {
            claimant: self.route.instance,
            sequence: self.sequence,
            again: false,
            backlog: self.polling.is_backlog(),
            suspects: match few {
                true => Suspects::Few,
                false if self.last_poll.suspects => Suspects::Defer(SUSPECTS_PAUSE.mul_f64(self.rng.random())),
                false => Suspects::Defer(Duration::ZERO),
            },
            max_suspects: (self.route.policy.max_in_flight / 4).clamp(1, MAX_SUSPECTS),
            limit,
            max_bytes,
            lease: self.lease(),
        }
    }

    pub(super) fn reserve(&self, messages: u32, bytes: u64) -> Option<ClaimCapacity> {
        let admission = self.route.target.breaker().admit(messages as usize)?;
        let reservation = self.route.budget.reserve(admission.messages(), bytes)?;
        Some(ClaimCapacity { admission, reservation })
    }

    /// Waits for the capacity of one message.
    async fn capacity_for_one(&self) -> ClaimCapacity {
        loop {
            self.route.target.breaker().ready().await;
            self.route.budget.available(1).await;
            // `Budget::reserve` reserves at least the bytes of the largest message.
            if let Some(capacity) = self.reserve(1, 0) {
                return capacity;
            }
        }
    }

    /// Releases messages for which there is no capacity, as if they had never been claimed.
    async fn give_back(&mut self, messages: Vec<Claimed>, token: Token) {
        if messages.is_empty() {
            return;
        }
        let settlement = |Claimed { id, body, not_before, .. }| {
            let lease = Lease { id, token, bytes: body.len() };
            Settlement::new(lease, ClaimEnd::Release { at: not_before })
        };
        let settlements: Vec<_> = messages.into_iter().map(settlement).collect();
        let released = loop {
            let error = match self.route.store.settle(&self.partition, &settlements).await {
                Ok(verdicts) => break verdicts,
                Err(error) => error,
            };
            let wait = self.backoff.wait(&self.route.incidents, &self.partition, "settle", &error);
            if !is_outage(&error) {
                // The messages return when their leases expire.
                return self.pause(wait).await;
            }
            sleep(wait).await;
        };
        let released = released.iter().filter(|one| **one == Settled::Done).count();
        self.route.metrics.released.increment(released as u64);
        self.last_poll.again = true;
    }
}
