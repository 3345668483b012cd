//! Removes the expiry of a delayqueue's waiting bodies. They would expire an hour after their due time, and a longer
//! outage of punctual would lose them.

use std::time::Duration;

use tokio::time::sleep;

use super::{RETRY_INTERVAL, RedisSets};
use crate::{
    source::Intake,
    store::{
        StoreError,
        redis::{DelayQueueKeys, ExternalPlace},
    },
};

/// Pause between two scans. A body lives at least an hour.
const SCAN_INTERVAL: Duration = Duration::from_mins(5);
/// Ids of one step. It blocks Redis for 0.1 ms.
const STEP: usize = 200;
/// Pause between two steps. A million bodies take a minute, and 1 % of Redis' time.
const STEP_PAUSE: Duration = Duration::from_millis(10);

impl RedisSets {
    /// Returns at once unless the source is a delayqueue, for which it never returns.
    pub(super) async fn keep_bodies(&self, intake: &Intake) {
        let ExternalPlace::DelayQueue(keys) = &self.place else { return };
        loop {
            // `follow` reports an outage of Redis, `keep_checked` a missing right.
            let is_done = self.scan(intake, keys).await.is_ok();
            sleep(if is_done { SCAN_INTERVAL } else { RETRY_INTERVAL }).await;
        }
    }

    async fn scan(&self, intake: &Intake, keys: &DelayQueueKeys) -> Result<(), StoreError> {
        for set in [&keys.pending, &keys.unack] {
            let mut cursor = 0_u64;
            loop {
                let mut scan = redis::cmd("ZSCAN");
                scan.arg(set).arg(cursor).arg("COUNT").arg(STEP);
                let (next, pairs): (u64, Vec<Vec<u8>>) = self.connection.run(&scan).await?;
                // Each id has its score behind it.
                let ids: Vec<_> = pairs.into_iter().step_by(2).collect();
                persist(intake, keys, &ids).await?;
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        for list in [&keys.ready, &keys.retry] {
            // From the left, where ids are pushed: an id that shifts between two steps is read twice, and none is
            // missed.
            for start in (0..).step_by(STEP) {
                let mut range = redis::cmd("LRANGE");
                range.arg(list).arg(start).arg(start + STEP - 1);
                let ids: Vec<Vec<u8>> = self.connection.run(&range).await?;
                persist(intake, keys, &ids).await?;
                if ids.len() < STEP {
                    break;
                }
            }
        }
        Ok(())
    }
}

async fn persist(intake: &Intake, keys: &DelayQueueKeys, ids: &[Vec<u8>]) -> Result<(), StoreError> {
    for step in ids.chunks(STEP) {
        let bodies: Vec<_> = step.iter().map(|id| keys.body(id)).collect();
        // The call names no route, so its error is the store's.
        intake.queue().persist(&bodies).await.map_err(|error| match error {
            crate::queue::QueueError::Store(error) => error,
            other => StoreError::Refused { slug: "persist".into(), text: other.to_string() },
        })?;
        sleep(STEP_PAUSE).await;
    }
    Ok(())
}
