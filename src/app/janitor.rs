//! Evicts the dead letters beyond a route's `dead` setting.
//!
//! It checks after each death that this instance knows of, at most once a second, when the oldest reaches `max_age`, and
//! once a minute for deaths that another instance caused. A route without `dead` has none.

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

/// Shortest time between two checks: for so long the number may exceed the limit.
const PAUSE: Duration = Duration::from_secs(1);

/// Time until the next check after an error of Redis.
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// Longest time between two checks: deaths that an instance without this setting caused send no signal here.
const FALLBACK_INTERVAL: Duration = Duration::from_mins(1);

/// Interval of log lines about a route and reason.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Evicts the dead letters of one route.
pub struct Janitor {
    route: Arc<str>,
    partitions: u16,
    limits: DeadLimits,
    /// Notified when a message of the route becomes dead.
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
            let (wait, pause) = match self.evict(store, &mut reports).await {
                Ok(wait) => (wait, PAUSE),
                Err(error) => {
                    tracing::debug!(route = &*self.route, %error, "cannot delete dead letters now");
                    (RETRY_PAUSE, RETRY_PAUSE)
                }
            };
            sleep(pause).await;
            self.until_needed(Instant::now() + wait.saturating_sub(pause), &mut reports).await;
        }
    }

    /// Waits for a death or the time `next`, and logs reports that are due meanwhile.
    async fn until_needed(&self, next: Instant, reports: &mut [EvictionReport]) {
        loop {
            let log = reports.iter().filter_map(EvictionReport::due).min();
            tokio::select! {
                _ = self.signal.notified() => return,
                () = sleep_until(log.map_or(next, |log| log.min(next))) => {}
            }
            for report in &mut *reports {
                report.log(&self.route, Instant::now());
            }
            if next <= Instant::now() {
                return;
            }
        }
    }

    /// Evicts all that exceeds the limits. Returns the time until the next check.
    async fn evict(&self, store: &RedisStore, reports: &mut [EvictionReport; 2]) -> Result<Duration, StoreError> {
        let mut wait = FALLBACK_INTERVAL;
        for number in 0..self.partitions {
            let partition = Partition { route: self.route.clone(), number };
            loop {
                let evicted = store.evict(&partition, self.limits).await?;
                for (report, count) in reports.iter_mut().zip([evicted.aged, evicted.beyond]) {
                    metrics::dead_evicted(&self.route, report.reason, count);
                    report.add(&self.route, count, Instant::now());
                }
                if !evicted.more {
                    wait = wait.min(evicted.next.unwrap_or(wait));
                    break;
                }
            }
        }
        Ok(self.limits.max_age.map_or(wait, |age| wait.min(age)))
    }
}

/// The log lines of one reason: at once, then once a minute.
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

    /// The time of the next log line.
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

/// Runs all of them until `stop`.
pub async fn run(janitors: Vec<Janitor>, store: Arc<RedisStore>, mut stop: watch::Receiver<bool>) {
    let work = join_all(janitors.iter().map(|janitor| janitor.work(&store)));
    tokio::select! {
        _ = work, if !janitors.is_empty() => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio::time::advance;

    use super::*;
    use crate::{
        app::embedded::Embedded,
        queue::Queue,
        store::redis::{RouteSettings, connection::Connection},
    };

    fn janitor(max_age: Option<Duration>) -> Janitor {
        let limits = DeadLimits { max_age, max_count: Some(1) };
        Janitor { route: "r".into(), partitions: 1, limits, signal: Arc::default() }
    }

    #[tokio::test]
    async fn the_next_check_comes_within_a_minute_without_any_signal() {
        let directory = tempfile::tempdir().unwrap();
        let embedded = Embedded::start(directory.path()).await.unwrap();
        let client = redis::Client::open(embedded.url()).unwrap();
        let connection = Arc::new(Connection::new(client, Duration::from_secs(10)));
        let settings = RouteSettings {
            name: "r".into(),
            partitions: 1,
            max_payload: 100,
            remember: None,
            limits: crate::message::RouteLimits::default(),
        };
        let store = Arc::new(RedisStore::new(connection, "p", [settings]));
        Queue::new(store.clone(), &BTreeMap::new(), false).prepare().await.unwrap();
        let soon = Duration::from_secs(10);
        for (max_age, expected) in [(None, FALLBACK_INTERVAL), (Some(soon), soon)] {
            let mut reports = [EvictionReport::new("age"), EvictionReport::new("count")];
            assert_eq!(janitor(max_age).evict(&store, &mut reports).await, Ok(expected));
        }
        embedded.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_death_or_the_time_of_the_next_check_ends_the_wait() {
        let (janitor, begun) = (janitor(None), Instant::now());
        janitor.until_needed(begun + FALLBACK_INTERVAL, &mut []).await;
        assert_eq!(begun.elapsed(), FALLBACK_INTERVAL);
        janitor.signal.notify();
        janitor.until_needed(Instant::now() + FALLBACK_INTERVAL, &mut []).await;
        assert_eq!(begun.elapsed(), FALLBACK_INTERVAL);
    }

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
