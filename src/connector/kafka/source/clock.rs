//! Redis' clock, carried on by the monotonic one: no process' wall clock decides what is overdue.

use tokio::time::Instant;

use crate::{queue::QueueError, source::Intake};

#[derive(Clone, Copy, Debug)]
pub struct RedisClock {
    /// Milliseconds since the epoch.
    then: u64,
    asked: Instant,
}

impl RedisClock {
    /// # Errors
    /// When Redis does not tell.
    pub async fn ask(intake: &Intake) -> Result<Self, QueueError> {
        let then = intake.queue().now(intake.route()).await?;
        Ok(Self { then, asked: Instant::now() })
    }

    /// Milliseconds since the epoch.
    pub fn now(self) -> u64 {
        self.then.saturating_add(u64::try_from(self.asked.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}
