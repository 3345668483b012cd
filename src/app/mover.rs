//! Moves the messages of routes whose number of partitions was changed.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::store::redis::RedisStore;

/// Interval at which it is checked whether the messages of a route are to be moved: no call of Redis.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time until the next step when all that remains is in flight, and after an error.
const PAUSE: Duration = Duration::from_millis(200);
/// Interval of the warning that some ids cannot be moved.
const WARN_INTERVAL: Duration = Duration::from_mins(1);

/// Moves what is to be moved of all routes of `store`, until `stop`.
pub async fn run(store: Arc<RedisStore>, mut stop: watch::Receiver<bool>) {
    let routes: Vec<_> = store.routes().map(|route| route.name.clone()).collect();
    tokio::select! {
        _ = join_all(routes.iter().map(|route| work(&store, route))) => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

async fn work(store: &RedisStore, route: &str) {
    let mut warned: Option<Instant> = None;
    loop {
        if store.former_partitions(route).is_empty() {
            sleep(CHECK_INTERVAL).await;
            continue;
        }
        let began = Instant::now();
        match store.move_some(route).await {
            // Half of Redis' time is left to the others.
            Ok(moved) if moved.count > 0 => sleep(began.elapsed()).await,
            Ok(moved) => {
                if moved.conflicts > 0 && warned.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
                    warned = Some(Instant::now());
                    tracing::warn!(
                        route,
                        ids = moved.conflicts,
                        "ids are live in a former partition and in a new one: cancel them once, and they are moved"
                    );
                }
                sleep(PAUSE).await;
            }
            Err(error) => {
                tracing::debug!(route, %error, "cannot move messages now");
                sleep(PAUSE).await;
            }
        }
    }
}
