//! A failure domain that is down: one probe a second is sent, and other messages are deferred.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::message::MessageId;

/// Time between two probes of a domain that is down, and of an open breaker for all routes of its sink together.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Wait of the message of a failed probe: it is the next probe, unless another message of its domain comes first.
pub const PROBE_PAUSE: Duration = Duration::from_millis(1500);

/// Minimum and maximum wait of a message while its domain is down. In between, the wait keeps deferrals near `MAX_RATE`
/// messages a second: a small backlog is sent a second after the recovery, a large one does not keep Redis busy.
pub const MIN_PAUSE: Duration = Duration::from_secs(1);
pub const MAX_PAUSE: Duration = Duration::from_secs(30);
pub const MAX_RATE: u32 = 1000;

/// How often the wait is adapted to the rate.
pub const RATE_WINDOW: Duration = Duration::from_secs(1);

/// A message: its route and its id.
pub type MessageKey = (Arc<str>, MessageId);

/// Maximum bytes of the error that is kept for a domain: a thousand domains may be down.
const MAX_ERROR_BYTES: usize = 300;

#[derive(Debug)]
pub struct DomainOutage {
    pub since: Instant,
    /// The error that showed the outage.
    pub error: String,
    next_probe: Instant,
    /// The message of the latest probe.
    probe: Option<MessageKey>,
    pause: Duration,
    /// Messages deferred since `window`.
    deferred: u32,
    window: Instant,
}

impl DomainOutage {
    pub fn new(now: Instant, error: &str) -> Self {
        let error = error[..error.floor_char_boundary(MAX_ERROR_BYTES)].to_owned();
        Self {
            since: now,
            error,
            next_probe: now + PROBE_INTERVAL,
            probe: None,
            pause: MIN_PAUSE,
            deferred: 0,
            window: now,
        }
    }

    /// Whether the message may be sent as a probe. If so, it is recorded as the latest probe.
    pub fn probe(&mut self, now: Instant, message: &MessageKey) -> bool {
        let is_time = now >= self.next_probe;
        if is_time {
            self.next_probe = now + PROBE_INTERVAL;
            self.probe = Some(message.clone());
        }
        is_time
    }

    /// How long the message must wait. `share`, in `0..=1`, spreads the waits.
    pub fn pause(&mut self, now: Instant, message: &MessageKey, share: f64) -> Duration {
        if self.probe.as_ref() == Some(message) {
            return PROBE_PAUSE;
        }
        self.deferred += 1;
        if now >= self.window + RATE_WINDOW {
            let most = (now - self.window).as_secs_f64() * f64::from(MAX_RATE);
            if f64::from(self.deferred) > most {
                self.pause = (self.pause * 2).min(MAX_PAUSE);
            } else if f64::from(self.deferred) < most / 4.0 {
                self.pause = (self.pause / 2).max(MIN_PAUSE);
            }
            (self.window, self.deferred) = (now, 0);
        }
        self.pause.mul_f64(1.0 + 0.25 * share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_wait_follows_the_rate_of_deferrals() {
        let key = |id: &str| ("r".into(), MessageId::parse(id).unwrap());
        // Waits in seconds before and after a period with this number of deferrals.
        for (before, seconds, deferred, after) in [
            (4, 1, 1001, 8),
            (4, 1, 1000, 4),
            (4, 1, 500, 4),
            (4, 1, 250, 4),
            (4, 1, 249, 2),
            (4, 2, 1500, 4),
            (4, 2, 2001, 8),
            (1, 1, 1, 1),
            (30, 1, 5000, 30),
        ] {
            let now = Instant::now();
            let mut outage = DomainOutage::new(now, "refused");
            outage.pause = Duration::from_secs(before);
            for _ in 1..deferred {
                assert_eq!(outage.pause(now, &key("a"), 0.0), Duration::from_secs(before));
            }
            let end = now + Duration::from_secs(seconds);
            let pause = outage.pause(end, &key("a"), 0.0);
            assert_eq!(pause, Duration::from_secs(after), "{deferred} in {seconds} s");
            assert_eq!((outage.deferred, outage.window), (0, end));
        }
    }
}
