//! Consecutive failures: an endpoint that answers but fails every message is down.

use std::time::Duration;

use tokio::time::Instant;

use crate::message::MessageId;

/// Distinct throttled messages without a success in between: few, so that a destination that turns messages away is
/// relieved soon.
const THROTTLED: usize = 5;

/// Minimum consecutive failed attempts of an endpoint that is down.
const FAILURES: u32 = 20;
/// Minimum messages of these attempts, so that a few bad messages do not count as a bad endpoint.
const MESSAGES: usize = 10;
/// Minimum time from the first to the last of these attempts: a burst of failures is not an outage.
const LASTING: Duration = Duration::from_secs(10);

/// Failures since the last success.
#[derive(Debug, Default)]
pub struct Streak {
    since: Option<Instant>,
    failures: u32,
    /// Up to `MESSAGES` distinct messages that failed.
    messages: Vec<MessageId>,
    /// Up to `THROTTLED` distinct messages that were throttled.
    throttled: Vec<MessageId>,
}

impl Streak {
    /// Returns whether the destination is down.
    pub fn failed(&mut self, now: Instant, id: &MessageId, throttled: bool) -> bool {
        let since = *self.since.get_or_insert(now);
        self.failures = self.failures.saturating_add(1);
        remember(&mut self.messages, MESSAGES, id);
        if throttled {
            remember(&mut self.throttled, THROTTLED, id);
        }
        let lasting = self.failures >= FAILURES && self.messages.len() >= MESSAGES && now >= since + LASTING;
        lasting || self.throttled.len() >= THROTTLED
    }

    pub fn end(&mut self) {
        if self.since.is_some() {
            *self = Self::default();
        }
    }
}

fn remember(ids: &mut Vec<MessageId>, most: usize, id: &MessageId) {
    if ids.len() < most && !ids.contains(id) {
        ids.push(id.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> MessageId {
        MessageId::parse(&format!("m{n}")).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn twenty_failures_of_ten_messages_over_ten_seconds_are_an_outage() {
        for (failures, messages, millis, down) in
            [(20, 10, 10_000, true), (19, 10, 10_000, false), (20, 9, 10_000, false), (20, 10, 9_000, false)]
        {
            let (mut streak, begun) = (Streak::default(), Instant::now());
            let mut last = false;
            for n in 0..failures {
                let at = begun + Duration::from_millis(millis) * n / (failures - 1);
                last = streak.failed(at, &id(n as usize % messages), false);
            }
            assert_eq!(last, down, "{failures} {messages} {millis}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn five_throttled_messages_are_enough_and_a_success_ends_it() {
        let (mut streak, now) = (Streak::default(), Instant::now());
        assert!((0..100).all(|n| !streak.failed(now, &id(n % 4), true)));
        streak.end();
        assert!((0..4).all(|n| !streak.failed(now, &id(n), true)));
        assert!(!streak.failed(now, &id(9), false), "another failure does not end it");
        assert!(streak.failed(now, &id(4), true));
    }
}
