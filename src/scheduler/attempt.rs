//! One attempt to deliver one claimed message: from its stored body to the end of its claim.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use rand::{RngExt, rngs::StdRng};
use tokio::time::Instant;

use super::{
    crowd::CrowdShare,
    decide::{Attribution, decide},
    in_flight::InFlight,
    route::ActiveRoute,
    settler::Settler,
};
use crate::{
    message::{
        DeadReason, StoredMessage, TraceId,
        codec::{self, DecodeError},
    },
    sink::{Domain, Outcome, Reply},
    spans::SendSpan,
    store::{ClaimEnd, FailedAttempt, Partition, Sent},
    time::ServerClock,
};

/// How long a message written by a later release is deferred: long enough to cost little, and each time an instance of
/// that release can claim it.
const LATER_RELEASE_PAUSE: Duration = Duration::from_secs(2);

/// Shared by the messages of one claim.
pub struct Batch {
    pub route: Arc<ActiveRoute>,
    pub partition: Partition,
    pub settler: Settler,
    pub clock: ServerClock,
    /// The opening of the route's window, in microseconds on the clock of Redis.
    pub open_since: u64,
    /// When the window closes; `None`: not soon, if ever.
    pub closes: Option<Instant>,
    pub rng: StdRng,
}

pub struct Attempt {
    pub held: InFlight,
    /// From 1.
    pub number: u32,
    /// The message's own limit.
    pub max_attempts: Option<u32>,
    /// Time from which lateness counts, in microseconds on Redis' clock: the latest of due time, acceptance and opening.
    pub from: u64,
    /// Only of a sampled message.
    pub span: Option<Box<SendSpan>>,
    /// Set if messages name their destination.
    pub _crowd: Option<CrowdShare>,
}

/// Decodes a stored message. `clock`: the clock of the claim.
///
/// # Errors
/// How the claim of a message that cannot be sent ends: dead, or deferred because a later release wrote the message.
pub fn read(route: &ActiveRoute, clock: &ServerClock, body: &Bytes) -> Result<StoredMessage, ClaimEnd> {
    let message = codec::decode(body).map_err(|error| {
        let reason = match error {
            DecodeError::Version(_) => {
                route.unreadable.call_once(|| {
                    tracing::error!(route = %route.name, %error, "left to instances of that release: is one running?");
                });
                return ClaimEnd::Defer { pause: LATER_RELEASE_PAUSE, sent: Sent::No };
            }
            DecodeError::Lost => DeadReason::Orphan,
            DecodeError::Damaged => DeadReason::Undecodable,
        };
        ClaimEnd::Bury { reason, error: error.to_string() }
    })?;
    let now = clock.micros / 1000;
    match message.metadata.expires_at {
        Some(expires_at) if expires_at < now => {
            // Long durations are cut to seconds.
            let late = now - expires_at;
            let late = Duration::from_millis(if late < 10_000 { late } else { late / 1000 * 1000 });
            let error = format!("claimed {} after it had expired", humantime::format_duration(late));
            Err(ClaimEnd::Bury { reason: DeadReason::Expired, error })
        }
        _ => Ok(message),
    }
}

/// The trace of a message that `read` made a dead letter: an expired one.
pub fn trace_of_unsendable(body: &Bytes, end: &ClaimEnd) -> Option<TraceId> {
    let ClaimEnd::Bury { .. } = end else { return None };
    codec::decode(body).ok()?.metadata.headers.trace().map(|context| context.trace)
}

/// For how long the endpoint asks to be left alone, with 429 and `Retry-After`.
fn asked_to_wait(outcome: &Outcome, reply: Option<&Reply>) -> Option<Duration> {
    match outcome {
        Outcome::Throttled { retry_after, .. } if reply.is_some_and(|reply| reply.status == 429) => *retry_after,
        _ => None,
    }
}

impl Attempt {
    /// Reports to the breaker and the metrics, and settles. `reply`: the reply of an HTTP endpoint.
    pub fn conclude(
        self,
        batch: &mut Batch,
        sent: Instant,
        outcome: &Outcome,
        domain: Option<&Domain>,
        reply: Option<Reply>,
    ) {
        let Self { number, max_attempts, .. } = self;
        if let Some(Reply { status, .. }) = reply {
            batch.route.target.breaker().metrics().http_response(status);
        }
        if outcome.is_unsent() {
            return self.unsent(batch, outcome);
        }
        let share = batch.rng.random();
        let asked = batch.route.metrics.flow_wait.as_ref().and_then(|_| asked_to_wait(outcome, reply.as_ref()));
        let (mut held, verdict) = self.observe(batch, sent, outcome, domain, share, asked.is_some());
        let policy = &batch.route.policy.retry;
        let end = decide(outcome, verdict, number, max_attempts, policy, &mut batch.rng);
        let end = if let ClaimEnd::Retry { delay, error, .. } = end {
            ClaimEnd::Retry { delay, error, hold: asked.map(|pause| pause.min(policy.backoff.max())) }
        } else {
            end
        };
        if let ClaimEnd::Bury { .. } = end {
            held.permits.sink.forget();
        }
        if let (Some(record), Some(reply)) = (&mut held.record, &reply) {
            record.status = Some(reply.status);
        }
        let attempt = if let ClaimEnd::Retry { error, .. } | ClaimEnd::Bury { error, .. } = &end {
            let text = reply.as_ref().map_or("", |reply| &reply.text);
            let error = if text.is_empty() { error.clone() } else { format!("{error}: {text}") };
            let (status, instance) = (reply.as_ref().map(|reply| reply.status), batch.route.instance_name.clone());
            Some(FailedAttempt { duration: sent.elapsed(), outcome: outcome.kind(), status, instance, error })
        } else {
            None
        };
        let detail = reply.map(|reply| reply.text).filter(|text| !text.is_empty());
        batch.settler.settle_with(held, end, detail, attempt);
    }

    /// Releases a message that was not sent, as if it had not been claimed. No attempt counts, and the route claims
    /// fewer messages.
    fn unsent(self, batch: &mut Batch, outcome: &Outcome) {
        let route = &batch.route;
        tracing::debug!(route = &*route.name, id = self.held.lease.id.as_str(), error = outcome.error(), "unsent");
        route.target.breaker().metrics().attempt(outcome.kind());
        // A closing does not show that the sink is slow.
        if batch.closes.is_none_or(|closes| Instant::now() < closes) {
            route.budget.concluded(false);
        }
        let end = self.held.given_back();
        batch.settler.settle(self.held, end);
    }

    /// Reports to the breaker and the metrics. `share` as in `SinkPermit::wait`. `of_flow`: the endpoint
    /// asked only the flow of this message to wait.
    pub fn observe(
        mut self,
        batch: &Batch,
        sent: Instant,
        outcome: &Outcome,
        domain: Option<&Domain>,
        share: f64,
        of_flow: bool,
    ) -> (InFlight, Attribution) {
        let (now, route) = (Instant::now(), &batch.route);
        route.target.breaker().metrics().send.record((now - sent).as_secs_f64());
        tracing::debug!(
            route = &*route.name,
            id = self.held.lease.id.as_str(),
            attempt = self.number,
            outcome = outcome.kind(),
            error = outcome.error(),
            "attempt"
        );
        route.target.breaker().metrics().attempt(outcome.kind());
        route.budget.concluded(true);
        let late = Duration::from_micros(batch.clock.at(now).saturating_sub(self.from));
        if let Some(kind) = outcome.failure_kind() {
            route.metrics.failure(kind);
        } else {
            route.metrics.lateness.record(late.as_secs_f64());
        }
        if let Some(span) = self.span.take() {
            span.end(outcome, late);
        }
        // To the breaker, it is like a refusal of this message.
        let refusal = of_flow.then(|| Outcome::Rejected { error: outcome.error().unwrap_or_default().to_owned() });
        let verdict = self.held.permits.sink.conclude(sent, refusal.as_ref().unwrap_or(outcome), domain, share);
        (self.held, verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{message::Metadata, time::UnixMillis};

    #[test]
    fn a_dead_letter_that_was_not_sent_has_the_trace_of_its_message() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let headers = [("traceparent".to_owned(), parent.to_owned())].into();
        let at = UnixMillis::new(1000).unwrap();
        let metadata = Metadata { headers, ..Metadata::default() };
        let body = codec::encode(&StoredMessage { due: at, accepted: at, metadata, payload: Bytes::new() });
        let dead = ClaimEnd::Bury { reason: DeadReason::Expired, error: String::new() };
        let trace = trace_of_unsendable(&body, &dead).map(|trace| trace.to_string());
        assert_eq!(trace.as_deref(), Some("0af7651916cd43dd8448eb211c80319c"));
        let later = ClaimEnd::Defer { pause: LATER_RELEASE_PAUSE, sent: Sent::No };
        assert_eq!(trace_of_unsendable(&body, &later), None);
        assert_eq!(trace_of_unsendable(&Bytes::new(), &dead), None);
    }

    #[test]
    fn only_429_asks_the_flow_to_wait() {
        let asked = Some(Duration::from_secs(7));
        let throttled = Outcome::Throttled { error: String::new(), retry_after: asked };
        let failed = Outcome::Failed { error: String::new(), retry_after: asked };
        let reply = |status| Some(Reply { status, text: String::new() });
        for (outcome, reply, expected) in [
            (&throttled, reply(429), asked),
            (&throttled, reply(503), None),
            (&throttled, None, None),
            (&failed, reply(429), None),
        ] {
            assert_eq!(asked_to_wait(outcome, reply.as_ref()), expected, "{outcome:?} {reply:?}");
        }
    }
}
