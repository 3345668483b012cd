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

    use tokio::time::{advance, pause, resume, timeout};

    use super::*;
    use crate::{
        app::embedded::Embedded,
        store::redis::{RedisStore, RouteSettings, connection::Connection},
    };

    /// Timeout of an event that is due at once.
    const SOON: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn an_emptied_redis_is_prepared_again_after_a_reconnect_a_resubscription_and_a_minute() {
        let directory = tempfile::tempdir().unwrap();
        let embedded = Embedded::start(directory.path()).await.unwrap();
        let client = redis::Client::open(embedded.url()).unwrap();
        let connection = Arc::new(Connection::new(client.clone(), SOON));
        let store = Arc::new(RedisStore::new(connection, "p", [RouteSettings::plain("r", 100)]));
        let queue = Arc::new(Queue::new(store.clone(), &BTreeMap::new(), false));
        let (generations, subscriptions) = (watch::Sender::new(0), watch::Sender::new(0));
        let ((prepared, is_prepared), incidents) = (oneshot::channel(), Incidents::default());
        let keeping =
            tokio::spawn(keep(queue, generations.subscribe(), subscriptions.subscribe(), prepared, incidents));
        timeout(SOON, is_prepared).await.expect("it is prepared").unwrap();
        // Half a second, the default, is short on a machine that is busy with other tests.
        let patient = redis::AsyncConnectionConfig::new().set_response_timeout(Some(SOON));
        let mut raw = client.get_multiplexed_async_connection_with_config(&patient).await.unwrap();
        for what in ["reconnect", "resubscription", "minute"] {
            // `BLPOP` keeps every connection but this one idle for a second.
            let busy = async |raw: &mut redis::aio::MultiplexedConnection| {
                let list: String = redis::cmd("CLIENT").arg("LIST").query_async(raw).await.unwrap();
                list.lines().filter(|line| line.contains(" idle=0 ")).count()
            };
            while busy(&mut raw).await > 1 {
                sleep(Duration::from_millis(20)).await;
            }
            let () = redis::cmd("FLUSHALL").query_async(&mut raw).await.unwrap();
            match what {
                "reconnect" => generations.send_modify(|generation| *generation += 1),
                "resubscription" => subscriptions.send_modify(|generation| *generation += 1),
                _ => {
                    pause();
                    advance(CHECK_INTERVAL).await;
                    resume();
                }
            }
            let again = async {
                while store.known_routes().await.unwrap().is_empty() {
                    sleep(Duration::from_millis(10)).await;
                }
            };
            assert!(timeout(SOON, again).await.is_ok(), "it is not prepared after a {what}");
        }
        keeping.abort();
        embedded.stop().await;
    }
}
