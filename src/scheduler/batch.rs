//! The messages of one claim: decoded, sent together, and concluded one by one as outcomes arrive.

use std::{sync::Arc, time::Duration};

use rand::RngExt;
use tokio::{
    task::{JoinSet, yield_now},
    time::{Instant, sleep_until},
};

use super::{
    attempt::{Attempt, Batch, read, trace_of_unsendable},
    crowd::CrowdShare,
    in_flight::InFlight,
    recurring::{occurrence, readable_later},
    route::Target,
};
use crate::{
    sink::{Delivery, Outcome, Report, Reported, Sink},
    store::{ClaimEnd, Claimed, Sent},
};

/// Minimum rest of a lease beyond the sink's timeout when a batch starts. A lease exceeds the timeout by 500 ms or
/// more. Half of that allows for a claim that took up to 250 ms. After a slower claim, the next one requests a lease
/// that is longer by the duration of the slow claim.
const START_MARGIN: Duration = Duration::from_millis(250);

/// Added to the sink's timeout, for an outcome that is already on its way. Leaves 150 ms of the lease to settle.
const GRACE: Duration = Duration::from_millis(100);

/// Maximum outcomes that are concluded before the timeout is checked again: those of one claim.
const MAX_TOGETHER: usize = 500;

impl Batch {
    /// Returns when every message is passed to the settler or moved to its list.
    pub async fn run(mut self, messages: Vec<(Claimed, InFlight)>) {
        let latest_end = Instant::now() + self.route.target.timeout() + START_MARGIN;
        let mut attempts = Vec::with_capacity(messages.len());
        let mut deliveries = Vec::with_capacity(messages.len());
        for (claimed, mut held) in messages {
            match self.open(claimed, &mut held, latest_end) {
                Ok((mut delivery, from, crowd)) => {
                    let (number, max_attempts) = (delivery.attempt, delivery.metadata.max_attempts);
                    let span = self.route.spans.sending(&mut delivery);
                    attempts.push(Attempt { held, number, max_attempts, from, span, _crowd: crowd });
                    deliveries.push(delivery);
                }
                Err(end) => self.settler.settle(held, end),
            }
        }
        if attempts.is_empty() {
            return;
        }
        let route = Arc::clone(&self.route);
        match &route.target {
            Target::Sink { sink, .. } => self.send(Arc::clone(sink), attempts, deliveries).await,
            Target::List { render, one_list, .. } => {
                let elements: Vec<_> = deliveries.iter().map(|delivery| render(delivery)).collect();
                drop(deliveries);
                self.transfer(attempts, elements, *one_list).await;
            }
        }
    }

    /// Returns the delivery, `Attempt::from` and the `CrowdShare`. The error is the end of a claim without an attempt:
    /// dead, released because an attempt could not end within the lease, or deferred because the domain is down or has
    /// enough messages in flight.
    fn open(
        &mut self,
        claimed: Claimed,
        held: &mut InFlight,
        latest_end: Instant,
    ) -> Result<(Delivery, u64, Option<CrowdShare>), ClaimEnd> {
        if latest_end > held.lease_ends {
            return Err(held.given_back());
        }
        let message = read(&self.route, &self.clock, &claimed.body).map_err(|end| {
            held.trace = trace_of_unsendable(&claimed.body, &end);
            readable_later(&claimed, end)
        })?;
        held.trace = message.metadata.headers.trace().map(|context| context.trace);
        let message = occurrence(&claimed, message, self.clock.at(Instant::now()) / 1000)?;
        if let Some(flow_wait) = &self.route.metrics.flow_wait {
            flow_wait.record(claimed.waited.as_secs_f64());
        }
        let waited = u64::try_from(claimed.waited.as_millis()).unwrap_or(u64::MAX);
        // A message that waited for its flow could leave from then on.
        let free = if waited > 0 { claimed.not_before.get().saturating_add(waited) } else { 0 };
        let from = (message.due.max(message.accepted).get().max(free) * 1000).max(self.open_since);
        let delivery = Delivery {
            id: claimed.id,
            route: self.route.name.clone(),
            attempt: claimed.failures.saturating_add(1),
            due: message.due,
            metadata: message.metadata,
            payload: message.payload,
            send_until: self.closes,
        };
        match self.enter(held, &delivery) {
            Err(pause) => Err(ClaimEnd::Defer { pause, sent: Sent::No }),
            Ok(crowd) => Ok((delivery, from, crowd)),
        }
    }

    /// The error is how long the claimed message must wait.
    fn enter(&mut self, held: &InFlight, delivery: &Delivery) -> Result<Option<CrowdShare>, Duration> {
        let Target::Sink { sink, breaker } = &self.route.target else { return Ok(None) };
        let (is_down, is_crowd) = (breaker.has_domains_down(), sink.has_destinations());
        let domain = if is_down || is_crowd { sink.domain(delivery) } else { None };
        let wait = held.permits.sink.wait(domain.as_ref().filter(|_| is_down), self.rng.random());
        match (wait, domain.filter(|_| is_crowd)) {
            (Some(wait), _) => Err(wait),
            (None, Some(domain)) => self.route.crowds.enter(domain, Instant::now()).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// The sink runs in its own task, so that its panic or endless loop does not affect this one.
    async fn send(mut self, sink: Arc<dyn Sink>, attempts: Vec<Attempt>, deliveries: Vec<Delivery>) {
        let (sent, limit) = (Instant::now(), sink.timeout());
        // Indexed by the place in the sink's batch; `None` once concluded, so that a second outcome is ignored.
        let mut attempts: Vec<_> = attempts.into_iter().map(Some).collect();
        let mut conclude = |Reported { index, domain, outcome, reply }: Reported| {
            if let Some(attempt) = attempts.get_mut(index).and_then(Option::take) {
                attempt.conclude(&mut self, sent, &outcome, domain.as_ref(), reply);
            }
        };
        let (report, mut outcomes) = Report::channel();
        let mut together = Vec::new();
        let timed_out = sleep_until(sent + limit + GRACE);
        tokio::pin!(timed_out);
        // Aborts the sink's task on drop.
        let mut sending = JoinSet::new();
        sending.spawn(async move { sink.send(deliveries, report).await });
        let unreported = loop {
            tokio::select! {
                biased;
                1.. = outcomes.recv_many(&mut together, MAX_TOGETHER) => {
                    together.drain(..).for_each(&mut conclude);
                    // Other ready tasks run first, so that their outcomes are concluded together.
                    yield_now().await;
                }
                end = sending.join_next() => {
                    outcomes.close();
                    while let Ok(reported) = outcomes.try_recv() {
                        conclude(reported);
                    }
                    let error = match end {
                        Some(Err(_)) => "the sink panicked".to_owned(),
                        _ => "the sink reported nothing".to_owned(),
                    };
                    break Outcome::Failed { error, retry_after: None };
                }
                () = &mut timed_out => {
                    let error = format!("timed out after {}", humantime::format_duration(limit));
                    break Outcome::Throttled { error, retry_after: None };
                }
            }
        };
        for attempt in attempts.into_iter().flatten() {
            attempt.conclude(&mut self, sent, &unreported, None, None);
        }
    }
}
