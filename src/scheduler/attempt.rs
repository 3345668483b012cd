//! One attempt to deliver one claimed message: from its stored body to a decision.

use std::time::Duration;

use rand::{RngExt, rngs::StdRng};
use tokio::time::Instant;

use super::{breaker::Attempted, held::Held, route::ActiveRoute, settler::Settler};
use crate::{
    message::{
        DeadReason, Metadata,
        codec::{self, DecodeError},
    },
    scheduler::decide::{Attribution, Decision, decide},
    sink::{Delivery, Domain, Outcome},
    store::{ClaimEnd, Claimed},
    time::ServerClock,
};

/// How long a message that a later release wrote is deferred: long enough to cost nothing, while an
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
    /// Reads what was stored. `clock`: that of the claim. `None` when it cannot be sent, and is with the settler: it is
    /// dead, or a later release's.
    pub fn open(
        route: &ActiveRoute,
        settler: &Settler,
        clock: &ServerClock,
        claimed: Claimed,
        held: Held,
    ) -> Option<(Self, Delivery)> {
        let bury = |held, reason, error| settler.settle(held, ClaimEnd::Bury { reason, error });
        let message = match codec::decode(&claimed.body) {
            Ok(message) => message,
            Err(error @ DecodeError::Version(_)) => {
                route.unreadable.call_once(|| {
                    tracing::error!(route = %route.name, %error, "left to instances of that release: is one running?");
                });
                settler.settle(held, ClaimEnd::Defer { pause: LATER_RELEASE_PAUSE });
                return None;
            }
            Err(error) => {
                let reason = if error == DecodeError::Lost { DeadReason::Orphan } else { DeadReason::Undecodable };
                bury(held, reason, error.to_string());
                return None;
            }
        };
        let Metadata { max_attempts, expires_at, .. } = message.metadata;
        if let Some(expires_at) = expires_at.filter(|at| *at < clock.micros / 1000) {
            let late = clock.micros / 1000 - expires_at;
            bury(held, DeadReason::Expired, format!("claimed {late} ms after it had expired"));
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

    /// Reports to the breaker and the metrics, and settles.
    pub fn conclude(
        mut self,
        (outcome, domain): (&Outcome, Option<&Domain>),
        sent: Instant,
        clock: &ServerClock,
        (route, settler, rng): (&ActiveRoute, &Settler, &mut StdRng),
    ) {
        let verdict = self.observe((outcome, domain), sent, clock, route, rng.random());
        let end = match decide(outcome, verdict, self.number, self.max_attempts, &route.policy.retry, rng) {
            Decision::Ack => ClaimEnd::Ack,
            Decision::Retry { delay } => ClaimEnd::Retry { delay, error: text(outcome, verdict) },
            Decision::Bury(reason) => {
                self.held.sink_permit.forget((&route.name, &self.held.lease.id));
                ClaimEnd::Bury { reason, error: text(outcome, verdict) }
            }
            Decision::Defer { pause } => ClaimEnd::Defer { pause },
        };
        settler.settle(self.held, end);
    }

    /// Reports to the breaker and the metrics. `share` as in `SinkPermit::wait`.
    pub fn observe(
        &mut self,
        (outcome, domain): (&Outcome, Option<&Domain>),
        sent: Instant,
        clock: &ServerClock,
        route: &ActiveRoute,
        share: f64,
    ) -> Attribution {
        let now = Instant::now();
        route.target.breaker().metrics().send.record((now - sent).as_secs_f64());
        if let Some(kind) = outcome.failure_kind() {
            route.metrics.failure(kind);
        } else {
            let late = clock.at(now).saturating_sub(self.from);
            route.metrics.lateness.record(Duration::from_micros(late).as_secs_f64());
        }
        let attempted = Attempted { route: &route.name, id: &self.held.lease.id, sent, domain, outcome };
        self.held.sink_permit.conclude(&attempted, share)
    }
}

fn text(outcome: &Outcome, verdict: Attribution) -> String {
    let error = outcome.error().unwrap_or_default();
    match (outcome, verdict) {
        (Outcome::Unavailable { .. }, Attribution::Counts) => {
            format!("{error}; again and again with this message, while others get through")
        }
        _ => error.to_owned(),
    }
}
