//! A delayqueue's bodies expire an hour after they are due: those of waiting ids lose their expiry, so that an outage
//! of punctual loses nothing that it has seen.

use std::time::Duration;

use tokio::time::sleep;

use super::RedisSets;
use crate::{
    source::{Intake, Stopped},
    store::{
        StoreError,
        redis::{DelayQueueKeys, ExternalPlace},
    },
};

/// Between two walks: a message lives an hour at least.
const WALK_INTERVAL: Duration = Duration::from_mins(5);
/// Until a walk that Redis did not let end is begun anew.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Ids at once: Redis stands still for a tenth of a millisecond.
const STEP: usize = 200;
/// Between two steps: a million bodies take a minute, and Redis a hundredth of its time.
const STEP_PAUSE: Duration = Duration::from_millis(10);

impl RedisSets {
    /// Never returns, for a delayqueue.
    pub(super) async fn keep_bodies(&self, intake: &Intake) -> Result<(), Stopped> {
        let ExternalPlace::DelayQueue(keys) = &self.place else { return Ok(()) };
        loop {
            let pause = match self.walk(intake, keys).await {
                Ok(()) => {
                    intake.running();
                    WALK_INTERVAL
                }
                Err(error) => {
                    // While Redis is away, whoever moves messages tells it.
                    if is_denied(&error) && intake.impaired(&format!("bodies may expire: {error}")) {
                        tracing::warn!(source = intake.name(), %error, "cannot take the expiry off waiting bodies");
                    }
                    RETRY_INTERVAL
                }
            };
            sleep(pause).await;
        }
    }

    async fn walk(&self, intake: &Intake, keys: &DelayQueueKeys) -> Result<(), StoreError> {
        for set in [&keys.pending, &keys.unack] {
            let mut cursor = 0_u64;
            loop {
                let mut scan = redis::cmd("ZSCAN");
                scan.arg(set).arg(cursor).arg("COUNT").arg(STEP);
                let (next, pairs): (u64, Vec<Vec<u8>>) = self.connection.run(&scan).await?;
                // Each with its score.
                let ids: Vec<_> = pairs.into_iter().step_by(2).collect();
                persist(intake, keys, &ids).await?;
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        for list in [&keys.ready, &keys.retry] {
            // From the left, where ids are put in: those that shift meanwhile are seen twice, none is passed over.
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

/// Whether it takes a person to change that.
fn is_denied(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable { kind: "noperm" | "other", .. } | StoreError::WrongType { .. })
}

async fn persist(intake: &Intake, keys: &DelayQueueKeys, ids: &[Vec<u8>]) -> Result<(), StoreError> {
    for step in ids.chunks(STEP) {
        let bodies: Vec<_> = step.iter().map(|id| keys.body(id)).collect();
        // A route is no part of it: the only error is the store's.
        intake.queue().persist(&bodies).await.map_err(|error| match error {
            crate::queue::QueueError::Store(error) => error,
            other => StoreError::Refused { slug: "persist".into(), text: other.to_string() },
        })?;
        sleep(STEP_PAUSE).await;
    }
    Ok(())
}
