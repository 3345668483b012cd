//! The clock of Redis, for times that this instance shows: read once a minute at most, and advanced by the monotonic
//! clock.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use crate::{queue::Queue, time::ServerClock};

/// Age at which a reading is repeated. Until then the clocks drift apart by microseconds.
const FRESH: Duration = Duration::from_mins(1);

pub struct RedisClock {
    queue: Arc<Queue>,
    last: Mutex<Option<ServerClock>>,
}

impl RedisClock {
    pub fn new(queue: Arc<Queue>) -> Self {
        Self { queue, last: Mutex::default() }
    }

    /// Returns the latest reading while Redis is down. `None` before the first reading, and without routes.
    pub async fn read(&self, max_wait: Duration) -> Option<ServerClock> {
        let last = || *self.last.lock();
        let taken = Instant::now();
        if last().is_none_or(|clock| taken >= clock.taken + FRESH)
            && let Some(route) = self.queue.routes().first()
            && let Ok(Ok(millis)) = timeout(max_wait, self.queue.now(route)).await
        {
            let clock = ServerClock { micros: millis * 1000, taken };
            *self.last.lock() = Some(clock);
        }
        last()
    }
}
