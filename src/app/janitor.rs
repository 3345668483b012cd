//! Evicts dead letters that exceed a route's `dead` setting.
//!
//! It checks after each death that is signalled to this instance, at most once a second; when the oldest dead letter
//! reaches `max_age`; and once a minute for deaths without a signal here. A route without `dead` has no janitor.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    config::RouteConfig,
    incidents::Incidents,
    message::DeadLimits,
    metrics,
    store::{Partition, StoreError, WakeSignal, redis::RedisStore},
};

/// Minimum time between two checks. For this time the number can exceed the limit.
const PAUSE: Duration = Duration::from_secs(1);

/// Time until the next check after an error of Redis.
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// Maximum time between two checks: an instance without this setting causes deaths that send no signal here.
const FALLBACK_INTERVAL: Duration = Duration::from_mins(1);

/// Reasons of an eviction: labels of `punctual_dead_evicted_total`.
const REASONS: [&str; 2] = ["age", "count"];

/// Evicts the dead letters of one route.
pub struct Janitor {
    route: Arc<str>,
    partitions: u16,
    limits: DeadLimits,
    /// Notified when a message of the route becomes dead.
    signal: Arc<WakeSignal>,
}

impl Janitor {
    /// `None` if all dead letters are kept.
    pub fn new(route: &Arc<str>, config: &RouteConfig) -> Option<Self> {
        let (limits, partitions) = (config.dead, config.partitions);
        (!limits.is_none()).then(|| Self { route: route.clone(), partitions, limits, signal: Arc::default() })
    }

    pub fn signal(&self) -> &Arc<WakeSignal> {
        &self.signal
    }

    /// Runs until `stop`.
    pub async fn run(&self, store: &RedisStore, incidents: &Incidents, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            () = self.work(store, incidents) => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }

    async fn work(&self, store: &RedisStore, incidents: &Incidents) {
        for reason in REASONS {
            metrics::dead_evicted(&self.route, reason, 0);
        }
        loop {
            let (wait, pause) = match self.evict(store, incidents).await {
                Ok(wait) => (wait, PAUSE),
                Err(error) => {
                    tracing::debug!(route = &*self.route, %error, "cannot delete dead letters now");
                    (RETRY_PAUSE, RETRY_PAUSE)
                }
            };
            sleep(pause).await;
            self.until_needed(Instant::now() + wait.saturating_sub(pause)).await;
        }
    }

    /// Waits until a message dies or the time is `next`.
    async fn until_needed(&self, next: Instant) {
        tokio::select! {
            _ = self.signal.notified() => {}
            () = sleep_until(next) => {}
        }
    }

    /// Evicts all dead letters that exceed the limits. Returns the time until the next check.
    async fn evict(&self, store: &RedisStore, incidents: &Incidents) -> Result<Duration, StoreError> {
        let mut wait = FALLBACK_INTERVAL;
        for partition in Partition::all(&self.route, self.partitions) {
            loop {
                let evicted = store.evict(&partition, self.limits).await?;
                for (reason, count) in REASONS.into_iter().zip([evicted.aged, evicted.beyond]) {
                    metrics::dead_evicted(&self.route, reason, count);
                    incidents.evicted(&self.route, reason, count);
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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
        let store = Arc::new(RedisStore::new(connection, "p", [RouteSettings::plain("r", 100)]));
        Queue::new(store.clone(), &BTreeMap::new(), false).prepare().await.unwrap();
        let soon = Duration::from_secs(10);
        for (max_age, expected) in [(None, FALLBACK_INTERVAL), (Some(soon), soon)] {
            assert_eq!(janitor(max_age).evict(&store, &Incidents::default()).await, Ok(expected));
        }
        embedded.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_death_or_the_time_of_the_next_check_ends_the_wait() {
        let (janitor, begun) = (janitor(None), Instant::now());
        janitor.until_needed(begun + FALLBACK_INTERVAL).await;
        assert_eq!(begun.elapsed(), FALLBACK_INTERVAL);
        janitor.signal.notify();
        janitor.until_needed(Instant::now() + FALLBACK_INTERVAL).await;
        assert_eq!(begun.elapsed(), FALLBACK_INTERVAL);
    }
}
