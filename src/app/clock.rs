//! Redis' clock for what this instance shows: read now and then, and carried on by the monotonic clock.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use crate::{queue::Queue, time::ServerClock};

/// Age at which a reading is repeated: clocks drift apart by microseconds until then.
const FRESH: Duration = Duration::from_mins(1);

pub struct RedisClock {
    queue: Arc<Queue>,
    last: Mutex<Option<ServerClock>>,
}

impl RedisClock {
    pub fn new(queue: Arc<Queue>) -> Self {
        Self { queue, last: Mutex::default() }
    }

    /// While Redis is down the last reading; `None` before the first, and where there are no routes.
    pub async fn read(&self, patience: Duration) -> Option<ServerClock> {
        let last = || *self.last.lock();
        let taken = Instant::now();
        if last().is_none_or(|clock| taken >= clock.taken + FRESH)
            && let Some(route) = self.queue.routes().first()
            && let Ok(Ok(millis)) = timeout(patience, self.queue.now(route)).await
        {
            let clock = ServerClock { micros: millis * 1000, taken };
            *self.last.lock() = Some(clock);
        }
        last()
    }
}
