//! Decides whether connections to the endpoint are used for more than one request. An endpoint or a proxy that drops
//! kept connections loses a message each time. So after a loss connections are used only once, for a while.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// Pause after a single loss, such as by a restart: new connections cost a busy sink a part of its speed.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Maximum time without reuse. Each trial after it can delay one message.
const MAX_PAUSE: Duration = Duration::from_mins(1);

pub struct Reuse {
    /// Whether `pause` has no effect. It is read for each message, without the lock.
    allowed: AtomicBool,
    pause: Mutex<Option<Pause>>,
}

#[derive(Clone, Copy)]
struct Pause {
    until: Instant,
    length: Duration,
}

/// Whether a kept connection can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    Granted,
    /// One request, which shows whether connections can be used again.
    Trial,
    Refused,
}

impl Reuse {
    pub fn new() -> Self {
        Self { allowed: AtomicBool::new(true), pause: Mutex::new(None) }
    }

    /// Whether a connection that is opened now is used for one request only.
    pub fn is_paused(&self) -> bool {
        !self.allowed.load(Ordering::Relaxed) && self.lock().is_some_and(|pause| Instant::now() < pause.until)
    }

    /// Permission for one more request over a kept connection.
    pub fn permission(&self) -> Permission {
        if self.allowed.load(Ordering::Relaxed) {
            return Permission::Granted;
        }
        let (now, mut pause) = (Instant::now(), self.lock());
        match &mut *pause {
            Some(pause) if now >= pause.until => {
                // Other requests wait for the result of the trial.
                pause.until = now + pause.length;
                Permission::Trial
            }
            _ => Permission::Refused,
        }
    }

    /// Notes that the request of a trial got a reply.
    pub fn passed(&self) {
        self.allowed.store(true, Ordering::Relaxed);
    }

    /// Notes that a request over a connection that was used before got no reply. Returns the pause that begins, if no
    /// other was in effect. `is_trial`: the request was a trial.
    pub fn lost(&self, is_trial: bool) -> Option<Duration> {
        let (now, mut pause) = (Instant::now(), self.lock());
        if !self.allowed.load(Ordering::Relaxed) && !is_trial {
            return None;
        }
        let length = match *pause {
            Some(last) if now < last.until + MAX_PAUSE => (last.length * 2).min(MAX_PAUSE),
            _ => FIRST_PAUSE,
        };
        *pause = Some(Pause { until: now + length, length });
        self.allowed.store(false, Ordering::Relaxed);
        Some(length)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Pause>> {
        self.pause.lock()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn after_a_loss_connections_are_used_once_until_a_trial_passes() {
        let reuse = Reuse::new();
        assert_eq!((reuse.permission(), reuse.is_paused()), (Permission::Granted, false));
        assert_eq!(reuse.lost(false), Some(FIRST_PAUSE));
        // Losses of requests that were under way.
        assert_eq!(reuse.lost(false), None);
        assert_eq!((reuse.permission(), reuse.is_paused()), (Permission::Refused, true));
        advance(FIRST_PAUSE).await;
        assert!(!reuse.is_paused());
        assert_eq!((reuse.permission(), reuse.permission()), (Permission::Trial, Permission::Refused));
        assert_eq!(reuse.lost(true), Some(2 * FIRST_PAUSE));
        advance(2 * FIRST_PAUSE).await;
        assert_eq!(reuse.permission(), Permission::Trial);
        reuse.passed();
        assert_eq!((reuse.permission(), reuse.is_paused()), (Permission::Granted, false));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_to_a_bound_and_are_short_again_after_a_good_time() {
        let reuse = Reuse::new();
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let pause = reuse.lost(true).expect("a pause");
            advance(pause).await;
            assert_eq!(reuse.permission(), Permission::Trial);
            reuse.passed();
            pauses.push(pause);
        }
        assert_eq!((pauses[1], pauses[3], pauses[11]), (2 * FIRST_PAUSE, 8 * FIRST_PAUSE, MAX_PAUSE));
        advance(2 * MAX_PAUSE).await;
        assert_eq!(reuse.lost(false), Some(FIRST_PAUSE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_trial_without_a_result_is_followed_by_another() {
        let reuse = Reuse::new();
        reuse.lost(false);
        advance(FIRST_PAUSE).await;
        assert_eq!(reuse.permission(), Permission::Trial);
        advance(FIRST_PAUSE).await;
        assert_eq!(reuse.permission(), Permission::Trial);
    }
}
