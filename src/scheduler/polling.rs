//! How soon a partition may be polled again, to avoid busy loops.

use std::time::Duration;

use tokio::time::Instant;

/// Wait after an empty claim. It is short, because the claim may have come slightly too early by Redis' clock.
const EMPTY_GAP: Duration = Duration::from_millis(2);

/// First and maximum wait while repeated claims do not return an overdue head, for a reason that is not in the reply.
const FRUITLESS_GAP: Duration = Duration::from_millis(16);
const FRUITLESS_MAX: Duration = Duration::from_secs(1);

/// Number of messages that are worth a call; a quarter of `max_in_flight` if that is less. A claim that returns at
/// least this number while others are due shows a backlog.
const WORTHWHILE: usize = 100;

/// The result of the last claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimYield {
    /// A number of messages; `more`: others are due already.
    Messages { count: usize, more: bool },
    /// No message, and none is due.
    Empty,
    /// No message, although the head is overdue.
    Fruitless,
}

#[derive(Debug)]
pub struct Polling {
    worthwhile: usize,
    started: Option<Instant>,
    gap: Duration,
    is_backlog: bool,
}

impl Polling {
    /// `max_in_flight`: the limit of the route.
    pub fn new(max_in_flight: usize) -> Self {
        let worthwhile = (max_in_flight / 4).clamp(1, WORTHWHILE);
        Self { worthwhile, started: None, gap: Duration::ZERO, is_backlog: false }
    }

    /// When the next claim may start; `None`: now. A timer for a time that has just passed would take another millisecond.
    pub fn next(&self) -> Option<Instant> {
        self.started.filter(|_| !self.gap.is_zero()).map(|started| started + self.gap)
    }

    /// Number of messages that are worth a call.
    pub fn worthwhile(&self) -> usize {
        self.worthwhile
    }

    /// Whether the next claim is expected to return many messages. Other claims share a call of the store.
    pub fn is_backlog(&self) -> bool {
        self.is_backlog
    }

    /// Records that a claim is sent.
    pub fn start(&mut self, now: Instant) {
        self.started = Some(now);
    }

    pub fn claimed(&mut self, result: ClaimYield) {
        self.is_backlog = matches!(result, ClaimYield::Messages { count, more: true } if count >= self.worthwhile);
        self.gap = match result {
            ClaimYield::Messages { .. } => Duration::ZERO,
            ClaimYield::Empty => EMPTY_GAP,
            ClaimYield::Fruitless => (self.gap * 2).clamp(FRUITLESS_GAP, FRUITLESS_MAX),
        };
    }

    /// A wake-up came: an overdue head is worth another poll.
    pub fn refresh(&mut self) {
        self.gap = self.gap.min(FRUITLESS_GAP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(polling: &mut Polling, result: ClaimYield) -> u128 {
        let now = Instant::now();
        polling.start(now);
        polling.claimed(result);
        polling.next().unwrap().duration_since(now).as_millis()
    }

    #[test]
    fn a_backlog_is_many_messages_with_others_behind_them() {
        for (max_in_flight, count, more, expected) in
            [(1000, 100, true, true), (1000, 99, true, false), (1000, 500, false, false), (4, 1, true, true)]
        {
            let mut polling = Polling::new(max_in_flight);
            polling.claimed(ClaimYield::Messages { count, more });
            assert_eq!(polling.is_backlog(), expected, "{count} of {max_in_flight}, {more}");
        }
    }

    #[test]
    fn after_messages_the_next_claim_may_start_at_once() {
        let mut polling = Polling::new(1000);
        polling.start(Instant::now());
        polling.claimed(ClaimYield::Empty);
        assert!(polling.next().is_some());
        polling.claimed(ClaimYield::Messages { count: 1, more: true });
        assert_eq!(polling.next(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_cannot_be_claimed_is_polled_ever_more_rarely() {
        let mut polling = Polling::new(1000);
        let gaps: Vec<_> = (0..8).map(|_| gap(&mut polling, ClaimYield::Fruitless)).collect();
        assert_eq!(gaps, [16, 32, 64, 128, 256, 512, 1000, 1000]);
        polling.refresh();
        assert!(polling.next().unwrap() <= Instant::now() + FRUITLESS_GAP);
    }

    #[test]
    fn a_quarter_of_the_limit_is_worth_a_call() {
        let worthwhile = [1, 3, 4, 8, 400, 100_000].map(|max_in_flight| Polling::new(max_in_flight).worthwhile());
        assert_eq!(worthwhile, [1, 1, 1, 2, WORTHWHILE, WORTHWHILE]);
    }
}
