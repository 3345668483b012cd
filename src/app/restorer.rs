//! Restores messages that are in no set of Redis, and repairs flows, at the start and every ten minutes.
//!
//! A script checks the permission for the next command before it removes a message. So a message is in no set only if
//! the user lacked several permissions at once, or if the keys were edited.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use crate::{
    metrics,
    store::{Partition, StoreError, redis::RedisStore},
};

/// Each run makes one call for each partition, in which Redis compares four numbers.
const INTERVAL: Duration = Duration::from_mins(10);

/// Runs for one route until `stop`.
pub async fn run(route: &Arc<str>, partitions: u16, store: &RedisStore, mut stop: watch::Receiver<bool>) {
    metrics::restored(route, 0);
    let work = async {
        let mut interval = interval(INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            for partition in Partition::all(route, partitions) {
                match restore(store, &partition).await {
                    Ok(0) => {}
                    Ok(messages) => {
                        metrics::restored(&partition.route, messages);
                        tracing::warn!(%partition, messages, "messages were in no set of redis: they are pending again");
                    }
                    // The keeper reports an outage.
                    Err(error) => tracing::debug!(%partition, %error, "cannot look for messages that are in no set"),
                }
            }
        }
    };
    tokio::select! {
        () = work => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

/// Returns the number of restored messages.
async fn restore(store: &RedisStore, partition: &Partition) -> Result<u64, StoreError> {
    let (mut restored, mut cursor) = (0, String::new());
    loop {
        let (more, next, has_flows) = store.restore(partition, &cursor).await?;
        restored += more;
        if has_flows && !store.has_flows(&partition.route) {
            let messages = store.unpark(partition).await?;
            tracing::info!(%partition, messages, "the route no longer has flows: messages that waited for theirs are due");
        }
        if next.is_empty() {
            let repairs = store.tidy(partition).await?;
            if repairs > 0 {
                tracing::warn!(%partition, repairs, "flows of the partition were repaired");
            }
            return Ok(restored);
        }
        cursor = next;
    }
}
