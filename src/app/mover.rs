//! Moves the messages of routes after a change of the number of partitions, and recovers messages in flight in former
//! partitions.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::{
    incidents::{Incidents, Sample},
    message::DeadReason,
    metrics,
    store::{Partition, Store, StoreError, redis::RedisStore},
};

/// Interval of the check for messages to move, which makes no call of Redis.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time until the next step when only messages in flight remain, and after an error.
const PAUSE: Duration = Duration::from_millis(200);
/// Interval of recoveries. It also applies after an error, because settlements that wait for Redis come first.
const RECOVERY_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the warning that some ids cannot be moved.
const WARN_INTERVAL: Duration = Duration::from_mins(1);

/// Moves messages of one route until `stop`.
pub async fn run(route: &Arc<str>, store: &RedisStore, incidents: &Incidents, mut stop: watch::Receiver<bool>) {
    tokio::select! {
        () = work(store, incidents, route) => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

async fn work(store: &RedisStore, incidents: &Incidents, route: &Arc<str>) {
    let mut warned: Option<Instant> = None;
    let mut recover_from = Instant::now() + RECOVERY_INTERVAL;
    loop {
        let former = store.former_partitions(route);
        if former.is_empty() {
            sleep(CHECK_INTERVAL).await;
            recover_from = Instant::now() + RECOVERY_INTERVAL;
            continue;
        }
        let began = Instant::now();
        let is_time = began >= recover_from;
        let step = async {
            if is_time {
                recover(store, incidents, &former).await?;
            }
            store.move_some(route).await
        };
        let result = step.await;
        if is_time || result.is_err() {
            recover_from = Instant::now() + RECOVERY_INTERVAL;
        }
        match result {
            // Half of the time of Redis is left to other calls.
            Ok(moved) if moved.count > 0 => sleep(began.elapsed()).await,
            Ok(moved) => {
                if moved.conflicts > 0 && warned.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
                    warned = Some(Instant::now());
                    tracing::warn!(
                        %route,
                        ids = moved.conflicts,
                        "ids are live in a former partition and in a new one: cancel them once, and they are moved"
                    );
                }
                sleep(PAUSE).await;
            }
            Err(error) => {
                tracing::debug!(%route, %error, "cannot move messages now");
                sleep(PAUSE).await;
            }
        }
    }
}

/// Recovers former partitions, because no claimer of this instance serves them.
async fn recover(store: &RedisStore, incidents: &Incidents, former: &[Partition]) -> Result<(), StoreError> {
    for partition in former {
        let recovered = store.recover(partition).await?;
        let (route, dead) = (&partition.route, recovered.dead);
        metrics::leases_expired(route, recovered.expired.into());
        metrics::dead(route, DeadReason::Crash, dead.count.into());
        let error = "its process ended, again and again".to_owned();
        let sample = dead.sample.map(|id| Sample::new(id.as_str(), &error));
        incidents.died(route, DeadReason::Crash, dead.count.into(), sample);
    }
    Ok(())
}
