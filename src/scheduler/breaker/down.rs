//! A failure domain that is down: one probe a second, and the others are put off.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::message::MessageId;

/// Between two probes of a domain that is down, and of an open breaker over all routes of its sink.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// After a failed probe, for the message that was the probe: it is the next one, unless another of its domain comes first.
pub const PROBE_PAUSE: Duration = Duration::from_millis(1500);

/// Shortest and longest wait of a message whose domain is down. In between, as long as it takes to put off so many
/// messages a second: a small backlog leaves a second after the recovery, a large one does not keep Redis busy.
pub const MIN_PAUSE: Duration = Duration::from_secs(1);
pub const MAX_PAUSE: Duration = Duration::from_secs(30);
pub const MAX_RATE: u32 = 1000;

/// How often the wait is adapted to the rate.
pub const RATE_WINDOW: Duration = Duration::from_secs(1);

/// A message: its route, and its id there.
pub type MessageKey = (Arc<str>, MessageId);

/// Most bytes of an error that is kept for a domain: a thousand of them may be down.
const MAX_ERROR_BYTES: usize = 300;

#[derive(Debug)]
pub struct DomainOutage {
    pub since: Instant,
    /// The one that showed it.
    pub error: String,
    next_probe: Instant,
    /// The message of the latest probe.
    probe: Option<MessageKey>,
    pause: Duration,
    /// Messages put off since `window`.
    put_off: u32,
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
            put_off: 0,
            window: now,
        }
    }

    /// Whether the message may be sent as a probe; it is then.
    pub fn probe(&mut self, now: Instant, message: &MessageKey) -> bool {
        let is_time = now >= self.next_probe;
        if is_time {
            self.next_probe = now + PROBE_INTERVAL;
            self.probe = Some(message.clone());
        }
        is_time
    }

    /// How long the message waits. `share`: in `0..=1`, spreads those that wait.
    pub fn pause(&mut self, now: Instant, message: &MessageKey, share: f64) -> Duration {
        if self.probe.as_ref() == Some(message) {
            return PROBE_PAUSE;
        }
        self.put_off += 1;
        if now >= self.window + RATE_WINDOW {
            let most = (now - self.window).as_secs_f64() * f64::from(MAX_RATE);
            if f64::from(self.put_off) > most {
                self.pause = (self.pause * 2).min(MAX_PAUSE);
            } else if f64::from(self.put_off) < most / 4.0 {
                self.pause = (self.pause / 2).max(MIN_PAUSE);
            }
            (self.window, self.put_off) = (now, 0);
        }
        self.pause.mul_f64(1.0 + 0.25 * share)
    }
}
