//! One attempt to deliver one claimed message: from its stored body to a decision.

use std::time::Duration;

use rand::rngs::StdRng;
use tokio::time::Instant;

use super::{held::Held, route::Route, settler::Settler};
use crate::{
    codec::{self, DecodeError},
    message::Metadata,
    outcome::{DeadReason, Decision, Outcome, decide},
    port::Claimed,
    sink::Delivery,
    time::ServerClock,
};

/// How long a message that a later release wrote stays away from this one: seldom enough to cost nothing, while an
/// instance of that release has its chance every time.
const LATER_RELEASE_PAUSE: Duration = Duration::from_secs(2);

pub struct Attempt {
    pub held: Held,
    number: u32,
    max_attempts: Option<u32>,
    /// Microseconds on Redis' clock from which it counts as late: the later of due and acceptance.
    from: u64,
}

impl Attempt {
    /// Reads what was stored. `clock`: as the claim told it. `None` when it cannot be sent, and is with the settler: it is
    /// dead, or a later release's.
    pub fn open(
        route: &Route,
        settler: &Settler,
        clock: &ServerClock,
        claimed: Claimed,
        held: Held,
    ) -> Option<(Self, Delivery)> {
        let message = match codec::decode(&claimed.body) {
            Ok(message) => message,
            Err(error @ DecodeError::Version(_)) => {
                route.unreadable.call_once(|| {
                    tracing::error!(route = %route.name, %error, "left to instances of that release: is one running?");
                });
                settler.settle(held.until(clock.at(Instant::now()), LATER_RELEASE_PAUSE), Decision::Release, "");
                return None;
            }
            Err(error) => {
                let reason = if error == DecodeError::Lost { DeadReason::Orphan } else { DeadReason::Undecodable };
                settler.settle(held, Decision::Bury(reason), &error.to_string());
                return None;
            }
        };
        let Metadata { max_attempts, expires_at, .. } = message.metadata;
        if let Some(expires_at) = expires_at.filter(|at| *at < clock.micros / 1000) {
            let late = clock.micros / 1000 - expires_at;
            let error = format!("claimed {late} ms after it had expired");
            settler.settle(held, Decision::Bury(DeadReason::Expired), &error);
            return None;
        }
        let number = claimed.failures.saturating_add(1);
        let delivery = Delivery {
            id: claimed.id,
            route: route.name.clone(),
            attempt: number,
            due: message.due,
            metadata: message.metadata,
            payload: message.payload,
        };
        let from = message.due.max(message.accepted).get() * 1000;
        Some((Self { held, number, max_attempts, from }, delivery))
    }

    /// Tells the breaker, the metrics and the settler.
    pub fn conclude(
        mut self,
        outcome: &Outcome,
        sent: Instant,
        clock: &ServerClock,
        (route, settler, rng): (&Route, &Settler, &mut StdRng),
    ) {
        let outcome = &*route.target.breaker().judge(&route.name, &self.held.lease.id, outcome);
        self.observe(outcome, sent, clock, route);
        let probe = self.held.seat.is_probe();
        let decision = decide(outcome, self.number, self.max_attempts, probe, &route.policy.retry, rng);
        settler.settle(self.held, decision, outcome.error().unwrap_or_default());
    }

    /// Tells the breaker and the metrics.
    pub fn observe(&mut self, outcome: &Outcome, sent: Instant, clock: &ServerClock, route: &Route) {
        let now = Instant::now();
        route.target.breaker().metrics().send.record((now - sent).as_secs_f64());
        self.held.seat.report(&self.held.lease.id, outcome);
        if let Some(kind) = outcome.failure_kind() {
            route.metrics.failure(kind);
        } else {
            let late = clock.at(now).saturating_sub(self.from);
            route.metrics.lateness.record(Duration::from_micros(late).as_secs_f64());
        }
    }

    pub fn give_back(self, settler: &Settler) {
        settler.settle(self.held, Decision::Release, "");
    }
}
