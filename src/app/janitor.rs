//! Deletes the dead letters that a route does not keep.
//!
//! It looks after each death that this instance knows of, at most once a second, and when the oldest will be too old. A
//! route without `dead` has none.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    config::RouteConfig,
    message::DeadLimits,
    metrics,
    store::{Partition, StoreError, WakeSignal, redis::RedisStore},
};

/// Between two looks while messages die: as far as their number may be above the limit.
const PAUSE: Duration = Duration::from_secs(1);

/// The same after an error of Redis.
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// Between two log lines of a route and reason.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Of one route.
pub struct Janitor {
    route: Arc<str>,
    partitions: u16,
    limits: DeadLimits,
    /// Rings when a message of the route died.
    signal: Arc<WakeSignal>,
}

impl Janitor {
    /// `None`: all are kept.
    pub fn new(route: &Arc<str>, config: &RouteConfig) -> Option<Self> {
        let (limits, partitions) = (config.dead, config.partitions);
        (!limits.is_none()).then(|| Self { route: route.clone(), partitions, limits, signal: Arc::default() })
    }

    pub fn route(&self) -> &Arc<str> {
        &self.route
    }

    pub fn signal(&self) -> &Arc<WakeSignal> {
        &self.signal
    }

    async fn work(&self, store: &RedisStore) {
        let mut reports = [EvictionReport::new("age"), EvictionReport::new("count")];
        for report in &reports {
            metrics::dead_evicted(&self.route, report.reason, 0);
        }
        loop {
            let (next, pause) = match self.evict(store, &mut reports).await {
                Ok(next) => (next, PAUSE),
                Err(error) => {
                    tracing::debug!(route = &*self.route, %error, "cannot delete dead letters now");
                    (Some(RETRY_PAUSE), RETRY_PAUSE)
                }
            };
            sleep(pause).await;
            let next = next.map(|next| Instant::now() + next.saturating_sub(pause));
            self.until_needed(next, &mut reports).await;
        }
    }

    /// Until a message died, or the time `next`; what is to be logged meanwhile is.
    async fn until_needed(&self, next: Option<Instant>, reports: &mut [EvictionReport]) {
        loop {
            let log = reports.iter().filter_map(EvictionReport::due).min();
            let Some(wake) = next.into_iter().chain(log).min() else {
                self.signal.notified().await;
                return;
            };
            tokio::select! {
                _ = self.signal.notified() => return,
                () = sleep_until(wake) => {}
            }
            for report in &mut *reports {
                report.log(&self.route, Instant::now());
            }
            if next.is_some_and(|next| next <= Instant::now()) {
                return;
            }
        }
    }

    /// Deletes all that is to be deleted; how long until there is more, unless messages die.
    async fn evict(
        &self,
        store: &RedisStore,
        reports: &mut [EvictionReport; 2],
    ) -> Result<Option<Duration>, StoreError> {
        let mut next: Option<Duration> = None;
        for number in 0..self.partitions {
            let partition = Partition { route: self.route.clone(), number };
            loop {
                let evicted = store.evict(&partition, self.limits).await?;
                for (report, count) in reports.iter_mut().zip([evicted.aged, evicted.beyond]) {
                    metrics::dead_evicted(&self.route, report.reason, count);
                    report.add(&self.route, count, Instant::now());
                }
                if !evicted.more {
                    next = next.into_iter().chain(evicted.next).min();
                    break;
                }
            }
        }
        // What dies from now on is not too old before that; what another instance makes dead does not ring here.
        Ok(next.into_iter().chain(self.limits.max_age).min())
    }
}

/// What one reason is logged with: at once, then once a minute.
struct EvictionReport {
    reason: &'static str,
    /// Not logged yet.
    count: u64,
    logged: Option<Instant>,
}

impl EvictionReport {
    fn new(reason: &'static str) -> Self {
        Self { reason, count: 0, logged: None }
    }

    fn add(&mut self, route: &str, count: u64, now: Instant) {
        self.count += count;
        self.log(route, now);
    }

    /// When what is not logged yet will be.
    fn due(&self) -> Option<Instant> {
        self.logged.filter(|_| self.count > 0).map(|logged| logged + LOG_INTERVAL)
    }

    fn log(&mut self, route: &str, now: Instant) {
        if self.count == 0 || self.logged.is_some_and(|logged| now < logged + LOG_INTERVAL) {
            return;
        }
        let (reason, count) = (self.reason, self.count);
        tracing::warn!(route, reason, count, "dead letters were deleted: the `dead` setting of the route");
        (self.count, self.logged) = (0, Some(now));
    }
}

/// Runs all of them until `stop` says so.
pub async fn run(janitors: Vec<Janitor>, store: Arc<RedisStore>, mut stop: watch::Receiver<bool>) {
    let work = join_all(janitors.iter().map(|janitor| janitor.work(&store)));
    tokio::select! {
        _ = work, if !janitors.is_empty() => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_deleted_is_logged_at_once_then_once_a_minute() {
        let mut report = EvictionReport::new("count");
        report.add("r", 0, Instant::now());
        assert_eq!((report.logged, report.due()), (None, None));
        let begun = Instant::now();
        report.add("r", 5, begun);
        assert_eq!((report.count, report.logged, report.due()), (0, Some(begun), None));
        advance(LOG_INTERVAL / 2).await;
        report.add("r", 3, Instant::now());
        report.add("r", 4, Instant::now());
        assert_eq!((report.count, report.logged, report.due()), (7, Some(begun), Some(begun + LOG_INTERVAL)));
        advance(LOG_INTERVAL / 2).await;
        report.log("r", Instant::now());
        assert_eq!((report.count, report.logged), (0, Some(begun + LOG_INTERVAL)));
    }
}
