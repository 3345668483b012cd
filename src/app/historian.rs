//! Deletes old ends from the history of a route, and the history of a route that keeps none any more.
//!
//! The scripts that end messages bound a history by themselves. Without ends, only this task deletes those that are too
//! old. A route without `history` has its keys deleted once, after the start.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::sleep};

use crate::{
    metrics,
    store::{Partition, StoreError, redis::RedisStore},
};

/// Time between two rounds, and for a round that failed. For this time ends can be kept longer than `history.for`,
/// but they are not shown.
const INTERVAL: Duration = Duration::from_mins(1);

/// Runs for one route until `stop`.
pub async fn run(route: &Arc<str>, partitions: u16, store: &RedisStore, mut stop: watch::Receiver<bool>) {
    let work = async {
        loop {
            match trim(store, route, partitions).await {
                Ok(kept) if store.keeps_history(route) => metrics::history_entries(route, kept),
                Ok(_) => return,
                Err(error) => tracing::debug!(route = &**route, %error, "cannot delete old ends of messages now"),
            }
            sleep(INTERVAL).await;
        }
    };
    tokio::select! {
        () = work => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

/// Returns the number of ends that are kept.
async fn trim(store: &RedisStore, route: &Arc<str>, count: u16) -> Result<u64, StoreError> {
    let mut sum = 0;
    for partition in Partition::all(route, count) {
        sum += loop {
            let (kept, more) = store.trim_history(&partition).await?;
            if !more {
                break kept;
            }
        };
    }
    Ok(sum)
}
