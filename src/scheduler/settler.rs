//! Tells the store how claims ended, many at a time: one lane per kind of settlement and partition, so that
//! one that is refused (a foreign value in `dead`, say) does not hold up the others.
//!
//! A lane repeats until the store answers; fencing makes that safe. Until then it says so (`Unanswered`). A claim that has ended keeps its share of
//! the in-flight budget, its seat and its pass until then.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use super::{
    held::Held,
    patience::{Patience, is_outage},
    route::Route,
    unanswered::{Mark, Unanswered},
};
use crate::{
    outcome::{DeadReason, Decision},
    port::{Burial, Lease, Partition, Release, Retry, Settled, StoreError},
};

/// Between the starts of two calls of a lane, unless `FLUSH_AT` messages wait: at most 100 calls a second.
/// A lone message is settled at once.
const SETTLE_INTERVAL: Duration = Duration::from_millis(10);

/// Messages that are worth a call of their own.
const FLUSH_AT: usize = 256;

/// Messages of one call; the store takes up to 1000.
const FLUSH_MAX: usize = 1000;

/// The lanes of one partition. They end when it and its clones are gone and all is settled.
#[derive(Clone)]
pub struct Settler {
    ack: UnboundedSender<Item<()>>,
    retry: UnboundedSender<Item<(Duration, String)>>,
    bury: UnboundedSender<Item<(DeadReason, String)>>,
    release: UnboundedSender<Item<()>>,
    unanswered: Unanswered,
}

impl Settler {
    pub fn start(route: &Arc<Route>, partition: &Partition, tasks: &mut JoinSet<()>) -> Self {
        let unanswered = Unanswered::default();
        Self {
            ack: lane::<Ack>(route, partition, &unanswered, tasks),
            retry: lane::<RetryLater>(route, partition, &unanswered, tasks),
            bury: lane::<Bury>(route, partition, &unanswered, tasks),
            release: lane::<GiveBack>(route, partition, &unanswered, tasks),
            unanswered,
        }
    }

    /// What of the partition waits for an answer of the store that did not come at first.
    pub fn unanswered(&self) -> &Unanswered {
        &self.unanswered
    }

    /// `error` goes with a retry or a burial; the store shortens it.
    pub fn settle(&self, held: Held, decision: Decision, error: &str) {
        let text = || error.to_owned();
        // A lane is gone only after an abort: then the lease brings the message back.
        match decision {
            Decision::Ack => drop(self.ack.send(Item::new(held, ()))),
            Decision::Retry { delay } => drop(self.retry.send(Item::new(held, (delay, text())))),
            Decision::Bury(reason) => drop(self.bury.send(Item::new(held, (reason, text())))),
            Decision::Release => drop(self.release.send(Item::new(held, ()))),
        }
    }
}

struct Item<D> {
    held: Held,
    detail: D,
    /// An earlier try got no answer, so it may have been done.
    repeated: bool,
}

impl<D> Item<D> {
    fn new(held: Held, detail: D) -> Self {
        Self { held, detail, repeated: false }
    }
}

/// Whether a settlement counts as done. A stale verdict on a repeat, while nobody else could have taken
/// over the lease, means that the try without an answer had been done.
pub fn took_effect(verdict: Settled, held: &Held, repeated: bool) -> bool {
    verdict == Settled::Done || (repeated && Instant::now() < held.lease_ends)
}

/// One kind of settlement.
trait Kind: Send + 'static {
    const NAME: &'static str;
    type Detail: Send + Sync + 'static;

    fn call(
        route: &Route,
        partition: &Partition,
        items: &[Item<Self::Detail>],
    ) -> impl Future<Output = Result<Vec<Settled>, StoreError>> + Send;

    /// Counts what took effect.
    fn done(route: &Route, item: &Item<Self::Detail>);
}

struct Ack;
impl Kind for Ack {
    const NAME: &'static str = "ack";
    type Detail = ();

    async fn call(route: &Route, partition: &Partition, items: &[Item<()>]) -> Result<Vec<Settled>, StoreError> {
        let leases: Vec<Lease> = items.iter().map(|item| item.held.lease.clone()).collect();
        route.store.ack(partition, &leases).await
    }

    fn done(route: &Route, _: &Item<()>) {
        route.metrics.delivered.increment(1);
    }
}

struct RetryLater;
impl Kind for RetryLater {
    const NAME: &'static str = "retry";
    type Detail = (Duration, String);

    async fn call(
        route: &Route,
        partition: &Partition,
        items: &[Item<Self::Detail>],
    ) -> Result<Vec<Settled>, StoreError> {
        let retries: Vec<Retry> = items
            .iter()
            .map(|item| {
                let (delay, error) = item.detail.clone();
                Retry { lease: item.held.lease.clone(), delay, error }
            })
            .collect();
        route.store.retry(partition, &retries).await
    }

    fn done(route: &Route, _: &Item<Self::Detail>) {
        route.metrics.retried.increment(1);
    }
}

struct Bury;
impl Kind for Bury {
    const NAME: &'static str = "bury";
    type Detail = (DeadReason, String);

    async fn call(
        route: &Route,
        partition: &Partition,
        items: &[Item<Self::Detail>],
    ) -> Result<Vec<Settled>, StoreError> {
        let burials: Vec<Burial> = items
            .iter()
            .map(|item| {
                let (reason, error) = item.detail.clone();
                Burial { lease: item.held.lease.clone(), reason, error }
            })
            .collect();
        route.store.bury(partition, &burials).await
    }

    fn done(route: &Route, item: &Item<Self::Detail>) {
        route.metrics.dead(item.detail.0, 1);
    }
}

struct GiveBack;
impl Kind for GiveBack {
    const NAME: &'static str = "release";
    type Detail = ();

    async fn call(route: &Route, partition: &Partition, items: &[Item<()>]) -> Result<Vec<Settled>, StoreError> {
        let releases: Vec<Release> = items
            .iter()
            .map(|item| Release { lease: item.held.lease.clone(), not_before: item.held.not_before })
            .collect();
        route.store.release(partition, &releases).await
    }

    fn done(route: &Route, _: &Item<()>) {
        route.metrics.released.increment(1);
    }
}

fn lane<K: Kind>(
    route: &Arc<Route>,
    partition: &Partition,
    unanswered: &Unanswered,
    tasks: &mut JoinSet<()>,
) -> UnboundedSender<Item<K::Detail>> {
    // Holds at most what the route may have in flight.
    let (sender, arrivals) = unbounded_channel();
    let lane = Lane::<K> {
        route: Arc::clone(route),
        partition: partition.clone(),
        arrivals,
        waiting: Vec::new(),
        patience: Patience::default(),
        unanswered: unanswered.clone(),
        mark: None,
    };
    tasks.spawn(lane.run());
    sender
}

struct Lane<K: Kind> {
    route: Arc<Route>,
    partition: Partition,
    arrivals: UnboundedReceiver<Item<K::Detail>>,
    waiting: Vec<Item<K::Detail>>,
    patience: Patience,
    unanswered: Unanswered,
    /// From a call without an answer until nothing is left that waited for it.
    mark: Option<Mark>,
}

impl<K: Kind> Lane<K> {
    async fn run(mut self) {
        let mut next_flush = Instant::now();
        while self.gather(next_flush).await {
            next_flush = Instant::now() + SETTLE_INTERVAL;
            if let Err(error) = self.flush().await {
                let wait = self.patience.wait(&self.partition, K::NAME, &error);
                sleep(wait).await;
            }
        }
    }

    /// Waits for something to settle, then until `flush_at` for more. False at the end of all.
    async fn gather(&mut self, flush_at: Instant) -> bool {
        if self.waiting.is_empty() {
            match self.arrivals.recv().await {
                Some(item) => self.waiting.push(item),
                None => return false,
            }
        }
        while self.waiting.len() < FLUSH_AT {
            tokio::select! {
                biased;
                item = self.arrivals.recv() => match item {
                    Some(item) => self.waiting.push(item),
                    None => return true,
                },
                () = sleep_until(flush_at) => break,
            }
        }
        while self.waiting.len() < FLUSH_MAX
            && let Ok(item) = self.arrivals.try_recv()
        {
            self.waiting.push(item);
        }
        true
    }

    async fn flush(&mut self) -> Result<(), StoreError> {
        let count = self.waiting.len().min(FLUSH_MAX);
        match K::call(&self.route, &self.partition, &self.waiting[..count]).await {
            Ok(verdicts) => {
                self.patience.answered();
                self.count(&verdicts);
                self.waiting.drain(..count);
                if count < FLUSH_MAX {
                    self.mark = None;
                }
                self.route.show_in_flight();
                Ok(())
            }
            Err(error) => {
                let repeat = is_outage(&error);
                if repeat && self.mark.is_none() {
                    self.mark = Some(self.unanswered.mark());
                }
                // What is refused although it is no outage may be given up once its lease has ended: the
                // message is not lost by it, and its share of the budget is needed.
                let now = Instant::now();
                self.waiting.retain(|item| repeat || now < item.held.lease_ends);
                for item in &mut self.waiting {
                    item.repeated |= repeat;
                }
                Err(error)
            }
        }
    }

    fn count(&self, verdicts: &[Settled]) {
        let mut stale = 0;
        for (item, verdict) in self.waiting.iter().zip(verdicts) {
            if took_effect(*verdict, &item.held, item.repeated) {
                K::done(&self.route, item);
            } else {
                stale += 1;
            }
        }
        if stale > 0 {
            self.route.metrics.stale(K::NAME, stale);
        }
    }
}
