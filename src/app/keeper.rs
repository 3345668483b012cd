//! Keeps Redis prepared: scripts loaded, routes registered, settings safe. Prepares it after every reconnect, and
//! checks it after a call without a reply and once a minute: a server that was emptied (FLUSHALL) or became a replica
//! keeps its connections. So the keeper detects that Redis is down.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{oneshot, watch},
    time::{Instant, sleep},
};

use crate::{
    incidents::{Incidents, Subject},
    queue::{Queue, RouteStats, StartError},
};

/// Delay between two attempts while Redis is down.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Interval of the check that Redis still has the routes, accepts writes and grants the permissions.
const CHECK_INTERVAL: Duration = Duration::from_mins(1);

/// Watches `generations` of the connection and `subscriptions` of the wake-ups: a new one may lead to another server.
/// Notifies `prepared` after the first preparation, or earlier if a part of a cluster can be served; then runs forever.
/// Reports outages of Redis to `incidents`.
///
/// # Errors
/// Returns if Redis is definitely unusable and was not used before.
pub async fn keep(
    queue: Arc<Queue>,
    mut generations: watch::Receiver<u64>,
    mut subscriptions: watch::Receiver<u64>,
    prepared: oneshot::Sender<()>,
    incidents: Incidents,
) -> StartError {
    let (began, mut prepared) = (Instant::now(), Some(prepared));
    let mut failures = Failures { incidents: incidents.clone(), loading: None };
    loop {
        match queue.prepare().await {
            Ok(()) => break,
            Err(error) if error.is_definite() && prepared.is_some() => return error,
            // The connection repeats the failure of a probe from before the embedded Redis accepted connections.
            Err(_) if began.elapsed() < RETRY_INTERVAL => {
                sleep(RETRY_INTERVAL / 10).await;
                continue;
            }
            Err(error) => {
                failures.report(&error);
                if prepared.is_some() && queue.may_serve_a_part().await {
                    tracing::warn!("what other primaries of the redis cluster have is delivered meanwhile");
                    notify(&mut prepared);
                }
            }
        }
        sleep(RETRY_INTERVAL).await;
    }
    failures.end();
    tracing::info!(routes = queue.routes().len(), "redis is ready");
    warn_of_unconfigured(&queue).await;
    notify(&mut prepared);
    loop {
        generations.mark_unchanged();
        subscriptions.mark_unchanged();
        while let Err(error) = queue.prepare().await {
            failures.report(&error);
            sleep(RETRY_INTERVAL).await;
        }
        failures.end();
        // A dropped sender means that the process stops; the check changes nothing.
        tokio::select! {
            Ok(()) = generations.changed() => {}
            Ok(()) = subscriptions.changed() => {}
            () = incidents.redis_suspected() => queue.distrust().await,
            () = sleep(CHECK_INTERVAL) => {}
        }
    }
}

/// Reports failures of Redis. Loading is not an outage, and does not start a new outage.
struct Failures {
    incidents: Incidents,
    /// The start of the loading.
    loading: Option<Instant>,
}

impl Failures {
    fn report(&mut self, error: &StartError) {
        if !error.is_loading() {
            self.loading = None;
            return self.incidents.failed(&Subject::Redis, &error.to_string());
        }
        self.incidents.recovers(&Subject::Redis, &error.to_string());
        if self.loading.is_none() {
            self.loading = Some(Instant::now());
            tracing::info!("redis is loading its data: waiting for it");
        }
    }

    fn end(&mut self) {
        self.loading = None;
        self.incidents.ended(&Subject::Redis);
    }
}

fn notify(prepared: &mut Option<oneshot::Sender<()>>) {
    if let Some(prepared) = prepared.take() {
        // The receiver is dropped while the process stops.
        let _ = prepared.send(());
    }
}

async fn warn_of_unconfigured(queue: &Queue) {
    match queue.unconfigured().await {
        Ok(routes) => {
            for (route, stats) in routes {
                match stats {
                    Ok(RouteStats { pending, unack, dead, .. }) => tracing::warn!(
                        %route, pending, unack, dead,
                        "a route that is not configured holds messages: they are not delivered"
                    ),
                    Err(error) => tracing::warn!(%route, %error, "a route that is not configured cannot be read"),
                }
            }
        }
        Err(error) => tracing::warn!(%error, "cannot list routes that are not configured"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use punctual_model::Keyspace;

    use super::*;
    use crate::store::redis::{RouteSettings, simulated::Simulated};

    #[tokio::test(start_paused = true)]
    async fn an_emptied_redis_is_prepared_again_after_a_reconnect_a_resubscription_and_a_minute() {
        let redis = Simulated::start([RouteSettings::plain("r", 100)]).await;
        let queue = Arc::new(Queue::new(redis.store.clone(), &BTreeMap::new(), false));
        let (generations, subscriptions) = (watch::Sender::new(0), watch::Sender::new(0));
        let ((prepared, is_prepared), incidents) = (oneshot::channel(), Incidents::default());
        let keeping =
            tokio::spawn(keep(queue, generations.subscribe(), subscriptions.subscribe(), prepared, incidents));
        is_prepared.await.unwrap();
        let is_empty = async || redis.store.known_routes().await.unwrap().is_empty();
        let (almost, second) = (CHECK_INTERVAL * 29 / 30, Duration::from_secs(1));
        for what in ["reconnect", "resubscription", "minute"] {
            redis.server.keys(Keyspace::clear);
            sleep(almost).await;
            assert!(is_empty().await, "it is prepared before a {what}");
            match what {
                "reconnect" => generations.send_modify(|generation| *generation += 1),
                "resubscription" => subscriptions.send_modify(|generation| *generation += 1),
                _ => sleep(2 * second).await,
            }
            sleep(second).await;
            assert!(!is_empty().await, "it is not prepared after a {what}");
        }
        keeping.abort();
    }
}
