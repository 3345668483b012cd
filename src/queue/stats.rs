//! The state of a route in numbers, summed over its partitions.

use std::{array, sync::Arc, time::Duration};

use super::{Forecast, Moving, Queue, QueueError, RoutePause, RouteStats, RouteWindow};
use crate::{
    store::{NEVER, Partition, StoreError, redis::PartitionStats},
    time::{MAX_DELAY_MILLIS, UnixMillis},
};
use futures::future::try_join_all;
use tokio::time::Instant;

impl Queue {
    pub async fn stats(&self, route: &str) -> Result<RouteStats, QueueError> {
        let store = self.store();
        let found = self.route(route)?;
        let former = store.former_partitions(route);
        let mut parts = try_join_all(former.iter().map(|partition| store.stats(partition))).await?;
        let left = parts.iter().map(|part| part.pending + part.unack + part.dead).sum();
        let count = |partitions: usize| u16::try_from(partitions).expect("at most MAX_PARTITIONS");
        let moving = (!former.is_empty()).then(|| Moving { from: count(former.len()), to: found.count(), left });
        let own = found.partitions.iter().map(|(partition, _)| store.stats(partition));
        let own = try_join_all(own).await?;
        let limits_used = limits_used(store.limits_of_partition(route), &own);
        parts.extend(own);
        let window = |now| self.window(route, now);
        let summed = summed(route, found.shown.sink.clone(), &parts, found.shown.lease, window);
        *found.pending.lock() = Some((Instant::now(), summed.pending));
        let flows = self.flow_limits(route).ok().map(|_| parts.iter().map(|part| (part.parked, part.waiting_flows)));
        let (parked, keys) = flows.map(|of| of.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))).unzip();
        Ok(RouteStats {
            partitions: found.count(),
            moving,
            limits_used,
            waiting_for_flow: parked,
            waiting_flows: keys,
            history: self.store().keeps_history(route).then_some(true),
            ..summed
        })
    }

    /// The number of pending messages: the latest that `stats` read, unless that is older than `max_age`. Otherwise Redis
    /// counts them, which takes five commands for a partition.
    pub async fn pending(&self, route: &str, max_age: Duration) -> Result<u64, QueueError> {
        let known = *self.route(route)?.pending.lock();
        if let Some((_, pending)) = known.filter(|(at, _)| at.elapsed() <= max_age) {
            return Ok(pending);
        }
        let Forecast { overdue, later, counts, .. } = self.forecast(route, None, Duration::from_secs(1), 1).await?;
        Ok(overdue + later + counts.iter().sum::<u64>())
    }

    /// Unconfigured routes that hold messages, which this instance does not deliver. A route with keys of another type
    /// has an error.
    pub async fn unconfigured(&self) -> Result<Vec<(Arc<str>, Result<RouteStats, StoreError>)>, QueueError> {
        let store = self.store();
        let mut found = Vec::new();
        for known in store.known_routes().await? {
            if self.has_route(&known.name) {
                continue;
            }
            let partitions = Partition::all(&known.name, known.partitions);
            let parts = try_join_all(partitions.map(async |partition| store.stats(&partition).await)).await;
            let stats = match parts {
                Ok(parts) => Ok(summed(&known.name, None, &parts, None, |_| None)),
                Err(error @ StoreError::WrongType { .. }) => Err(error),
                Err(error) => return Err(error.into()),
            };
            if stats.as_ref().map_or(true, |stats| stats.pending + stats.unack + stats.dead > 0) {
                found.push((known.name, stats));
            }
        }
        Ok(found)
    }

    /// Pending messages by due time: `count` intervals (1 to 1000) of `length`, starting at `now`, or at the present time.
    pub async fn forecast(
        &self,
        route: &str,
        now: Option<UnixMillis>,
        length: Duration,
        count: usize,
    ) -> Result<Forecast, QueueError> {
        let store = self.store();
        let partitions = &self.route(route)?.partitions;
        let millis = u64::try_from(length.as_millis()).unwrap_or(MAX_DELAY_MILLIS);
        let first = store.forecast(&partitions[0].0, now, millis, count).await?;
        let now = Some(first.now);
        let others = partitions[1..].iter().map(|(partition, _)| store.forecast(partition, now, millis, count));
        Ok(try_join_all(others).await?.iter().fold(first, |mut sum, part| {
            sum.add(part);
            sum
        }))
    }

    /// The clock of Redis, in milliseconds since the epoch.
    pub async fn now(&self, route: &str) -> Result<u64, QueueError> {
        let store = self.store();
        let (partition, _) = &self.route(route)?.partitions[0];
        Ok(store.stats(partition).await?.now / 1000)
    }
}

/// Used shares of the limits of messages and bytes, in the fullest partition. `limits`: the limits of each partition.
fn limits_used(limits: [Option<u64>; 2], parts: &[PartitionStats]) -> [Option<f64>; 2] {
    let used: [fn(&PartitionStats) -> u64; 2] = [|part| part.pending + part.unack, |part| part.bytes];
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
    array::from_fn(|n| {
        let limit = limits[n]?;
        let fullest = parts.iter().map(used[n]).max()?;
        Some(fullest as f64 / limit as f64)
    })
}

/// `lease`: of the route. `window`: the window of the route at a time.
fn summed(
    route: &str,
    sink: Option<Arc<str>>,
    parts: &[PartitionStats],
    lease: Option<Duration>,
    window: impl Fn(UnixMillis) -> Option<RouteWindow>,
) -> RouteStats {
    let sum = |of: fn(&PartitionStats) -> u64| parts.iter().map(of).sum();
    // Schedules that are paused or have ended are never due.
    let next_due = parts.iter().filter_map(|part| part.next_due).filter(|due| due.get() < NEVER).min();
    let now = parts.iter().map(|part| part.now).max().unwrap_or(0) / 1000;
    let oldest = parts.iter().filter_map(|part| part.oldest_due).min();
    let window = window(UnixMillis::new(now).unwrap_or_default());
    let opening = window.and_then(|window| window.since).map_or(0, UnixMillis::get);
    let lease = lease.map(|lease| u64::try_from(lease.as_millis()).unwrap_or(u64::MAX));
    // Until its claim: the time in the sink does not count.
    let claimed = parts.iter().filter_map(|part| part.latest_claimed.zip(lease));
    let claimed = claimed.map(|((due, lease_end), lease)| (due.get(), lease_end.get().saturating_sub(lease).min(now)));
    let overdue = if matches!(window, Some(RouteWindow { open: false, .. })) {
        0
    } else {
        let waits = oldest.map(|due| (due.get(), now)).into_iter().chain(claimed);
        waits.map(|(due, until)| until.saturating_sub(due.max(opening))).max().unwrap_or(0)
    };
    RouteStats {
        route: route.into(),
        sink,
        paused: parts.iter().any(|part| part.paused.is_some()),
        window,
        pause: parts.iter().find_map(|part| part.paused.clone()).map(RoutePause::from),
        pending: sum(|part| part.pending),
        due: sum(|part| part.due),
        unack: sum(|part| part.unack),
        dead: sum(|part| part.dead),
        retrying: sum(|part| part.retrying),
        waiting_for_flow: None,
        waiting_flows: None,
        history: None,
        bytes: sum(|part| part.bytes),
        limits_used: [None; 2],
        due_within: array::from_fn(|n| parts.iter().map(|part| part.due_within[n]).sum()),
        next_due,
        oldest_overdue_seconds: Duration::from_millis(overdue).as_secs_f64(),
        partitions: u16::try_from(parts.len()).unwrap_or(u16::MAX),
        moving: None,
    }
}
