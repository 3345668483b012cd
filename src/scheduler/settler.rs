//! Settles claims, many in a call: one task for each partition.
//!
//! The task repeats a call until the store answers; fencing makes that safe. Until the answer `Unanswered` counts the
//! call. The permits of a message are free when its settlement is sent: Redis runs the settlement before the claim that
//! follows on the connection. While a failed call is repeated, the next settlements keep their permits until they are
//! answered. So at most the messages of the budget, and of one call of each partition, are unsettled.

use std::{collections::BTreeMap, sync::Arc};

use tokio::{
    sync::{
        OwnedSemaphorePermit,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    },
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{
    budget::GATHER_WAIT,
    in_flight::{InFlight, OccurrenceInFlight, Permits},
    recurring::{self, dead_occurrence},
    route::ActiveRoute,
    store_backoff::{StoreBackoff, is_outage},
    unanswered_settlements::{Unanswered, UnansweredGuard},
};
use crate::{
    incidents::Sample,
    message::{EndRecord, MessageId, OccurrenceMessage, TraceId},
    store::{ClaimEnd, Death, FailedAttempt, Lease, Partition, Settled, Settlement, Store, StoreError},
};

/// Maximum messages of one call; the store takes up to 1000.
const FLUSH_MAX: usize = 1000;

/// Number of settlements that have a call of their own; a quarter of `max_in_flight` if that is less, because the route needs their
/// permits.
const ENOUGH: usize = 256;

/// Maximum `max_in_flight` of a route that stops while its settlements wait to share a call with other partitions.
/// While such a route is full, its settler gathers settlements and makes a call of its own. Without this rule a drain
/// to HTTP with 100 messages in flight has 0.75 of the rate.
const FEW: usize = 256;

/// The handle of a partition's task, which ends when all handles are dropped and everything is settled.
#[derive(Clone)]
pub struct Settler {
    sender: UnboundedSender<Item>,
    unanswered: Unanswered,
}

struct Item {
    lease: Lease,
    lease_ends: Instant,
    /// Set for the message of a schedule.
    occurrence: Option<OccurrenceInFlight>,
    trace: Option<TraceId>,
    /// The id of that dead letter.
    buried_as: Option<MessageId>,
    /// `None` once freed.
    permits: Option<Permits>,
    /// Kept until the store has answered.
    _suspects: Option<Arc<OwnedSemaphorePermit>>,
    end: ClaimEnd,
    /// Stored with the error of `end`, and never logged.
    detail: Option<String>,
    attempt: Option<FailedAttempt>,
    record: Option<EndRecord>,
    /// An earlier try got no answer, so it may have taken effect.
    repeated: bool,
}

impl Item {
    fn settlement(&self) -> Settlement {
        Settlement {
            lease: self.lease.clone(),
            end: self.stored_end(),
            attempt: self.attempt.clone(),
            record: self.record.clone(),
        }
    }

    fn stored_end(&self) -> ClaimEnd {
        let mut end = self.end.clone();
        if let (ClaimEnd::Retry { error, .. } | ClaimEnd::Bury { error, .. }, Some(detail)) = (&mut end, &self.detail) {
            *error = format!("{error}: {detail}");
        }
        end
    }
}

impl Settler {
    pub fn start(route: &Arc<ActiveRoute>, partition: &Partition, tasks: &mut JoinSet<()>) -> Self {
        let unanswered = Unanswered::default();
        // The channel holds at most `max_in_flight` settlements.
        let (sender, arrivals) = unbounded_channel();
        let task = SettleTask {
            route: Arc::clone(route),
            partition: partition.clone(),
            arrivals,
            waiting: Vec::new(),
            backoff: StoreBackoff::default(),
            unanswered: unanswered.clone(),
            mark: None,
            refused: false,
            enough: (route.policy.max_in_flight / 4).clamp(1, ENOUGH),
        };
        tasks.spawn(task.run());
        Self { sender, unanswered }
    }

    /// Settlements and transfers of the partition that got no answer at the first try.
    pub fn unanswered(&self) -> &Unanswered {
        &self.unanswered
    }

    pub fn settle(&self, held: InFlight, end: ClaimEnd) {
        self.settle_with(held, end, None, None);
    }

    /// Like `settle`; `detail` is stored with the error of `end`, and never logged. `attempt`: the one that failed.
    pub fn settle_with(&self, held: InFlight, end: ClaimEnd, detail: Option<String>, attempt: Option<FailedAttempt>) {
        let InFlight { lease, lease_ends, permits, suspects, occurrence, trace, record, .. } = held;
        let permits = Some(permits);
        let (buried_as, repeated) = (None, false);
        let item = Item {
            lease,
            lease_ends,
            occurrence,
            trace,
            buried_as,
            permits,
            _suspects: suspects,
            end,
            detail,
            attempt,
            record,
            repeated,
        };
        // The task has ended only after an abort; the message returns when its lease expires.
        let _ = self.sender.send(item);
    }
}

/// Whether a settlement took effect. If a repeated settlement is stale although no other instance can have claimed the
/// message yet, the try without an answer took effect.
pub fn took_effect(verdict: Settled, lease_ends: Instant, repeated: bool) -> bool {
    verdict == Settled::Done || (repeated && Instant::now() < lease_ends)
}

struct SettleTask {
    route: Arc<ActiveRoute>,
    partition: Partition,
    arrivals: UnboundedReceiver<Item>,
    waiting: Vec<Item>,
    backoff: StoreBackoff,
    unanswered: Unanswered,
    /// Set from a call without an answer until all of its settlements are answered.
    mark: Option<UnansweredGuard>,
    /// A call was refused: the next calls have one kind of `end` each, so that only the refused kind waits.
    refused: bool,
    /// Number of settlements that have a call of their own.
    enough: usize,
}

impl SettleTask {
    async fn run(mut self) {
        while self.gather().await {
            if let Err(error) = self.flush().await {
                let wait = self.backoff.wait(&self.route.incidents, &self.partition, "settle", &error);
                sleep(wait).await;
            }
        }
    }

    /// Waits for a settlement, and takes those that arrived during the last call. Returns false when all handles are
    /// dropped.
    async fn gather(&mut self) -> bool {
        if self.waiting.is_empty() {
            match self.arrivals.recv().await {
                Some(item) => self.waiting.push(item),
                None => return false,
            }
        }
        while self.waiting.len() < FLUSH_MAX
            && let Ok(item) = self.arrivals.try_recv()
        {
            self.waiting.push(item);
        }
        if self.is_full() {
            let (enough, waiting, arrivals) = (self.enough, &mut self.waiting, &mut self.arrivals);
            let gathering = async {
                while waiting.len() < enough
                    && let Some(item) = arrivals.recv().await
                {
                    waiting.push(item);
                }
            };
            // After the timeout, the settlements gathered so far are sent.
            let _ = timeout(GATHER_WAIT, gathering).await;
        }
        true
    }

    /// Whether fewer permits are free than are worth a call.
    fn is_full(&self) -> bool {
        self.route.budget.free() < self.enough
    }

    async fn flush(&mut self) -> Result<(), StoreError> {
        let rest = self.waiting.split_off(self.waiting.len().min(FLUSH_MAX));
        let batch = std::mem::replace(&mut self.waiting, rest);
        let calls = if self.refused { by_kind(batch) } else { vec![batch] };
        let mut trouble = None;
        for items in calls {
            trouble = self.call(items).await.err().or(trouble);
        }
        self.refused = trouble.as_ref().is_some_and(|error| !is_outage(error));
        if !self.waiting.iter().any(|item| item.repeated) {
            self.mark = None;
        }
        self.route.show_in_flight();
        trouble.map_or(Ok(()), Err)
    }

    /// Makes one call. Settlements that failed wait for the next call.
    async fn call(&mut self, mut items: Vec<Item>) -> Result<(), StoreError> {
        let settlements: Vec<Settlement> = items.iter().map(Item::settlement).collect();
        let (store, partition) = (&self.route.store, &self.partition);
        let stands_still = self.route.policy.max_in_flight <= FEW && self.is_full();
        let _settling = self.route.settling.mark();
        if self.mark.is_none() && !self.refused {
            Permits::release(items.iter_mut().filter_map(|item| item.permits.take()));
        }
        let answer = match bury_occurrences(&**store, partition, &mut items).await {
            Err(error) => Err(error),
            Ok(()) if settlements.len() < self.enough && !stands_still => store.settle(partition, &settlements).await,
            Ok(()) => store.settle_alone(partition, &settlements).await,
        };
        let error = match answer {
            Ok(verdicts) => {
                self.backoff.answered();
                self.count(&items, &verdicts);
                Permits::release(items.into_iter().filter_map(|item| item.permits));
                return Ok(());
            }
            Err(error) => error,
        };
        if is_outage(&error) {
            for item in &mut items {
                item.repeated = true;
            }
            self.mark.get_or_insert_with(|| self.unanswered.mark());
        } else {
            // A refused settlement is given up when its lease has ended: the message is not lost, and its permits are
            // needed.
            let now = Instant::now();
            items.retain(|item| now < item.lease_ends);
        }
        self.waiting.append(&mut items);
        Err(error)
    }

    fn count(&self, settled: &[Item], verdicts: &[Settled]) {
        let metrics = &self.route.metrics;
        for (Item { lease, lease_ends, end, repeated, buried_as, trace, .. }, verdict) in settled.iter().zip(verdicts) {
            if !took_effect(*verdict, *lease_ends, *repeated) {
                metrics.stale(end.name(), 1);
                continue;
            }
            recurring::count(&lease.id, end);
            match end {
                ClaimEnd::Plan(_) => {}
                ClaimEnd::Ack => metrics.delivered.increment(1),
                ClaimEnd::Retry { .. } => metrics.retried.increment(1),
                ClaimEnd::Bury { reason, error } => {
                    let id = buried_as.as_ref().unwrap_or(&lease.id).as_str();
                    let sample = Sample { trace: *trace, ..Sample::new(id, error) };
                    self.route.died(*reason, 1, Some(sample));
                }
                ClaimEnd::Release { .. } | ClaimEnd::Defer { .. } => metrics.released.increment(1),
            }
        }
    }
}

/// Stores the occurrences of schedules that died. Repeated with the same occurrence, it stores it once. A repeated settlement
/// repeats this, too: a fail-over can have lost both.
async fn bury_occurrences(store: &dyn Store, partition: &Partition, items: &mut [Item]) -> Result<(), StoreError> {
    for item in items {
        let Some(held) = &item.occurrence else { continue };
        let ClaimEnd::Bury { reason, error } = item.stored_end() else { continue };
        if let Some(occurrence) = dead_occurrence(&item.lease.id, &held.body) {
            let failures = held.failures + u32::from(reason.is_attempted());
            let death = Death { reason, failures };
            item.buried_as = Some(bury_occurrence(store, partition, &occurrence, death, &error).await?);
        }
    }
    Ok(())
}

/// Returns the id of the dead letter: a message of a user can have that of the occurrence.
async fn bury_occurrence(
    store: &dyn Store,
    partition: &Partition,
    occurrence: &OccurrenceMessage,
    death: Death,
    error: &str,
) -> Result<MessageId, StoreError> {
    let mut taken = 0;
    loop {
        let buried = occurrence.under(taken);
        if store.bury_occurrence(partition, &buried, death, error).await? {
            return Ok(buried.id);
        }
        taken += 1;
    }
}

fn by_kind(items: Vec<Item>) -> Vec<Vec<Item>> {
    let mut kinds: BTreeMap<&str, Vec<Item>> = BTreeMap::new();
    for item in items {
        kinds.entry(item.end.name()).or_default().push(item);
    }
    kinds.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stale_settlement_took_effect_if_it_was_repeated_while_its_lease_ran() {
        let now = Instant::now();
        for (verdict, left, repeated, expected) in [
            (Settled::Done, 0, false, true),
            (Settled::Stale, 1, true, true),
            (Settled::Stale, 1, false, false),
            (Settled::Stale, 0, true, false),
        ] {
            let lease_ends = now + std::time::Duration::from_millis(left);
            assert_eq!(took_effect(verdict, lease_ends, repeated), expected, "{verdict:?} {left} {repeated}");
        }
    }
}
