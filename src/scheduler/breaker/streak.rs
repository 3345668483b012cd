//! Failures in a row: an endpoint that answers, but fails everything, is down.

use std::time::Duration;

use tokio::time::Instant;

use crate::message::MessageId;

/// Throttled messages in a row: a destination that turns messages away is relieved soon.
const THROTTLED: usize = 5;

/// Failed attempts in a row...
const FAILURES: u32 = 20;
/// ...of so many messages, so that a few bad ones are not taken for a bad endpoint...
const MESSAGES: usize = 10;
/// ...over so long: a burst of failures is no outage.
const LASTING: Duration = Duration::from_secs(10);

/// Failures since the last success.
#[derive(Debug, Default)]
pub struct Streak {
    since: Option<Instant>,
    failures: u32,
    /// Up to `MESSAGES` distinct ones.
    messages: Vec<MessageId>,
    /// Up to `THROTTLED` distinct ones.
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
