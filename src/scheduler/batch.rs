//! One claim's messages on their way: opened, sent together, and concluded one by one as outcomes come.

use std::{sync::Arc, time::Duration};

use rand::{RngExt, rngs::StdRng};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{
    attempt::Attempt,
    held::Held,
    route::{ActiveRoute, Target},
    settler::Settler,
    transfer::Transfers,
};
use crate::{
    sink::{Delivery, Outcome, Report, Reported, Sink},
    store::{ClaimEnd, Claimed, Partition},
    time::ServerClock,
};

/// What must be left of a lease beyond the sink's timeout when a batch starts. Half of the 500 ms by which a
/// lease exceeds the timeout at least, so that a claim that took up to 250 ms can still start; after one that took
/// longer, the next one asks for a lease that is longer by it.
const START_MARGIN: Duration = Duration::from_millis(250);

/// After the sink's timeout: for an outcome that is under way already. Leaves 150 ms of the lease to settle.
const GRACE: Duration = Duration::from_millis(100);

/// What one claim brought.
pub struct ClaimedBatch {
    pub route: Arc<ActiveRoute>,
    pub partition: Partition,
    pub settler: Settler,
    pub clock: ServerClock,
    pub messages: Vec<(Claimed, Held)>,
    pub rng: StdRng,
}

/// Attempts by their place in the batch that the sink sees; empty once concluded.
struct SinkBatch {
    route: Arc<ActiveRoute>,
    settler: Settler,
    clock: ServerClock,
    rng: StdRng,
    sent: Instant,
    attempts: Vec<Option<Attempt>>,
}

impl ClaimedBatch {
    /// Ends when every message is with the settler.
    pub async fn run(mut self) {
        let (attempts, deliveries) = self.open();
        if attempts.is_empty() {
            return;
        }
        match &self.route.target {
            Target::Sink { sink, .. } => {
                let sink = Arc::clone(sink);
                let flight = SinkBatch {
                    route: self.route,
                    settler: self.settler,
                    clock: self.clock,
                    rng: self.rng,
                    sent: Instant::now(),
                    attempts: attempts.into_iter().map(Some).collect(),
                };
                flight.send(sink, deliveries).await;
            }
            Target::List { render, one_list, .. } => {
                let elements: Vec<_> = deliveries.iter().map(|delivery| render(delivery)).collect();
                drop(deliveries);
                let transfers = Transfers {
                    route: &self.route,
                    partition: &self.partition,
                    settler: &self.settler,
                    clock: &self.clock,
                    rng: &mut self.rng,
                    one_list: *one_list,
                };
                transfers.run(attempts, elements).await;
            }
        }
    }

    /// As if nothing had been claimed.
    pub fn give_back(self) {
        for (_, held) in self.messages {
            self.settler.give_back(held);
        }
    }

    /// What may be sent; the dead are buried, what could not end within its lease is given back, and what would go to a
    /// domain that is down waits.
    fn open(&mut self) -> (Vec<Attempt>, Vec<Delivery>) {
        let needed = self.route.target.timeout() + START_MARGIN;
        let latest_end = Instant::now() + needed;
        let mut attempts = Vec::with_capacity(self.messages.len());
        let mut deliveries = Vec::with_capacity(self.messages.len());
        for (claimed, held) in std::mem::take(&mut self.messages) {
            if latest_end > held.lease_ends {
                self.settler.give_back(held);
                continue;
            }
            let Some((attempt, delivery)) = Attempt::open(&self.route, &self.settler, &self.clock, claimed, held)
            else {
                continue;
            };
            if let Some(pause) = self.wait(&attempt.held, &delivery) {
                self.settler.settle(attempt.held, ClaimEnd::Defer { pause });
                continue;
            }
            attempts.push(attempt);
            deliveries.push(delivery);
        }
        (attempts, deliveries)
    }

    /// How long the message has to wait, although it was claimed.
    fn wait(&mut self, held: &Held, delivery: &Delivery) -> Option<Duration> {
        let Target::Sink { sink, breaker } = &self.route.target else { return None };
        let domain = if breaker.has_domains_down() { sink.domain(delivery) } else { None };
        held.sink_permit.wait((&delivery.route, &delivery.id), domain.as_ref(), self.rng.random())
    }
}

impl SinkBatch {
    /// The sink runs in a task of its own: its panic or its endless loop is not ours.
    async fn send(mut self, sink: Arc<dyn Sink>, deliveries: Vec<Delivery>) {
        let limit = sink.timeout();
        let (report, mut outcomes) = Report::channel();
        // Aborts the task when it is dropped.
        let mut sending = JoinSet::new();
        sending.spawn(async move { sink.send(deliveries, report).await });
        let unreported = loop {
            tokio::select! {
                biased;
                Some(reported) = outcomes.recv() => self.conclude(&reported),
                end = sending.join_next() => {
                    outcomes.close();
                    while let Ok(reported) = outcomes.try_recv() {
                        self.conclude(&reported);
                    }
                    let error = match end {
                        Some(Err(_)) => "the sink panicked".to_owned(),
                        _ => "the sink reported nothing".to_owned(),
                    };
                    break Outcome::Failed { error, retry_after: None };
                }
                () = sleep_until(self.sent + limit + GRACE) => {
                    let error = format!("timed out after {}", humantime::format_duration(limit));
                    break Outcome::Throttled { error, retry_after: None };
                }
            }
        };
        for index in 0..self.attempts.len() {
            self.conclude(&Reported { index, domain: None, outcome: unreported.clone() });
        }
    }

    fn conclude(&mut self, Reported { index, domain, outcome }: &Reported) {
        // A second outcome for the same message is ignored.
        if let Some(attempt) = self.attempts.get_mut(*index).and_then(Option::take) {
            let route = (&*self.route, &self.settler, &mut self.rng);
            attempt.conclude((outcome, domain.as_ref()), self.sent, &self.clock, route);
        }
    }
}
