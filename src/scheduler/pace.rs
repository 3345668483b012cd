//! How soon a partition may be polled again, so that batches form and nothing spins.

use std::time::Duration;

use tokio::time::Instant;

/// Between the starts of two claims of a partition whose last one brought something: 125 claims a second
/// keep 5,000 messages a second far below 0.1 script calls each, and half of it is what a message of a busy
/// stream waits on average.
const CLAIM_INTERVAL: Duration = Duration::from_millis(8);

/// After an empty claim: it may have come a moment early by Redis' clock, and the message must not wait for that.
const EMPTY_INTERVAL: Duration = Duration::from_millis(2);

/// Longest wait when an overdue head cannot be claimed again and again, for a reason that the reply does not contain.
const FRUITLESS_MAX: Duration = Duration::from_secs(1);

/// A backlog is claimed without a pause as long as each claim brings so many messages (or a quarter of what
/// the route may have in flight, where that is less): 100 messages make a call cheap.
const WORTHWHILE: usize = 100;

/// What the last claim brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimYield {
    /// So many messages; `more` when others are due already.
    Messages { count: usize, more: bool },
    /// Nothing, and nothing is due.
    Empty,
    /// Nothing although the head is overdue.
    Fruitless,
}

#[derive(Debug)]
pub struct Pace {
    worthwhile: usize,
    started: Option<Instant>,
    gap: Duration,
}

impl Pace {
    /// `max_in_flight`: messages of the route.
    pub fn new(max_in_flight: usize) -> Self {
        let worthwhile = (max_in_flight / 4).clamp(1, WORTHWHILE);
        Self { worthwhile, started: None, gap: Duration::ZERO }
    }

    /// When the next claim may start.
    pub fn next(&self) -> Option<Instant> {
        self.started.map(|started| started + self.gap)
    }

    /// A claim is sent.
    pub fn start(&mut self, now: Instant) {
        self.started = Some(now);
        self.gap = CLAIM_INTERVAL.max(self.gap);
    }

    pub fn claimed(&mut self, result: ClaimYield) {
        self.gap = match result {
            ClaimYield::Messages { count, more: true } if count >= self.worthwhile => Duration::ZERO,
            ClaimYield::Messages { .. } => CLAIM_INTERVAL,
            ClaimYield::Empty => EMPTY_INTERVAL,
            ClaimYield::Fruitless => (self.gap * 2).min(FRUITLESS_MAX),
        };
    }

    /// Something changed: an overdue head is worth another poll.
    pub fn refresh(&mut self) {
        self.gap = self.gap.min(CLAIM_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(pace: &mut Pace, result: ClaimYield) -> u128 {
        let now = Instant::now();
        pace.start(now);
        pace.claimed(result);
        pace.next().unwrap().duration_since(now).as_millis()
    }

    #[tokio::test(start_paused = true)]
    async fn a_backlog_is_claimed_at_once_and_a_trickle_in_batches() {
        let mut pace = Pace::new(1000);
        assert_eq!(gap(&mut pace, ClaimYield::Messages { count: 100, more: true }), 0);
        assert_eq!(gap(&mut pace, ClaimYield::Messages { count: 99, more: true }), 8);
        assert_eq!(gap(&mut pace, ClaimYield::Messages { count: 500, more: false }), 8);
        assert_eq!(gap(&mut Pace::new(4), ClaimYield::Messages { count: 1, more: true }), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_cannot_be_claimed_is_polled_ever_more_rarely() {
        let mut pace = Pace::new(1000);
        let gaps: Vec<_> = (0..9).map(|_| gap(&mut pace, ClaimYield::Fruitless)).collect();
        assert_eq!(gaps, [16, 32, 64, 128, 256, 512, 1000, 1000, 1000]);
        pace.refresh();
        assert!(pace.next().unwrap() <= Instant::now() + CLAIM_INTERVAL);
    }
}
