//! Moves messages of other programs on the queue's Redis into a route.

use std::collections::BTreeSet;

use futures::future::try_join_all;

use super::{Queue, QueueError};
use crate::{
    message::{DeadReason, MessageId},
    metrics,
    store::{
        Partition,
        redis::{ExternalDue, ExternalEntry, ExternalPlace, MoveOutcome, MovedEntry, PendingCapacity},
    },
};

impl Queue {
    /// The due members of `place`, and the time of the next one.
    pub async fn external_due(&self, place: &ExternalPlace) -> Result<ExternalDue, QueueError> {
        let store = self.store();
        Ok(store.external_due(place).await?)
    }

    /// Moves polled members that still exist. `via` is the source's name. One outcome per member, in order.
    ///
    /// # Errors
    /// After `Store(Unavailable)` it is unknown which members were moved: a repeated call returns `Gone` for them.
    pub async fn take(
        &self,
        route: &str,
        via: &str,
        place: &ExternalPlace,
        entries: &[ExternalEntry],
    ) -> Result<Vec<MovedEntry>, QueueError> {
        let store = self.store();
        let found = self.route(route)?;
        let take = async |partition: &Partition, part: Vec<ExternalEntry>| {
            let verdicts = self.registry.when_open(|| store.take(partition, place, found.max_payload, &part)).await?;
            let count = |wanted| verdicts.iter().filter(|one| one.outcome == wanted).count() as u64;
            metrics::scheduled(route, via, count(MoveOutcome::Taken));
            metrics::dead(route, DeadReason::Invalid, count(MoveOutcome::Invalid));
            Ok(verdicts)
        };
        found.scatter(entries.to_vec(), |entry| &entry.id, |partition, _, part| take(partition, part)).await
    }

    /// Whether some of the messages that were left for lack of capacity would be taken now.
    pub async fn capacity(&self, route: &str, ids: &[MessageId]) -> Result<PendingCapacity, QueueError> {
        let store = self.store();
        let found = self.route(route)?;
        let indexes: BTreeSet<u16> = ids.iter().map(|id| id.partition(found.count())).collect();
        let asked = indexes.into_iter().map(|index| store.capacity(&found.at(index).0));
        let capacities = try_join_all(asked).await?;
        let has = |capacity| capacities.contains(&capacity);
        Ok(if has(PendingCapacity::Free) || capacities.is_empty() {
            PendingCapacity::Free
        } else if has(PendingCapacity::Full) {
            PendingCapacity::Full
        } else {
            PendingCapacity::Paused
        })
    }

    /// Removes the expiry of values of other programs that the source waits for. Returns the number of values that had
    /// one.
    pub async fn persist(&self, keys: &[Vec<u8>]) -> Result<u64, QueueError> {
        let store = self.store();
        Ok(store.persist(keys).await?)
    }
}
