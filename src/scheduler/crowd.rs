//! Bounds slow destinations of a route with messages that name their destination: a slow one leaves a part of the
//! route's budget to the others.
//!
//! A claim takes messages in the order of their due times, so the backlog of one destination would fill the budget, and
//! the others would wait for the whole backlog. Therefore a slow destination gets at most seven eighths of the budget.
//! Its further messages are deferred, each to a different time, at twice the rate of the destination. So the
//! destination is never idle, and most messages are deferred once or twice.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::budget::Budget;
use crate::sink::Domain;

/// This part of the budget (1/N) is left to others; nothing if the budget has fewer than N messages.
const LEFT_TO_OTHERS: usize = 8;
/// A destination is slow if it needs longer than this for its messages in flight. Faster ones free the budget soon
/// enough.
const SLOW: Duration = Duration::from_millis(250);
/// Period in which the rate is measured.
const WINDOW: Duration = SLOW;
/// Minimum rate at which deferred messages become due again, in messages a second.
const MIN_RATE: f64 = 10.0;
/// Maximum deferral: after this time a destination that became fast again has its whole backlog.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The destinations of one route that have messages in flight.
pub struct Crowds {
    budget: Arc<Budget>,
    domains: Mutex<HashMap<Domain, Crowd>>,
}

struct Crowd {
    in_flight: usize,
    /// Start of the period in which `ended` is counted.
    window: Instant,
    ended: u32,
    /// Messages a second in the previous period; `None` in the first period.
    rate: Option<f64>,
    /// When the message that was deferred last is due.
    next: Instant,
}

/// One message in flight, until it is dropped.
pub struct CrowdShare {
    crowds: Arc<Crowds>,
    domain: Domain,
}

impl Crowds {
    pub fn new(budget: &Arc<Budget>) -> Arc<Self> {
        Arc::new(Self { budget: Arc::clone(budget), domains: Mutex::default() })
    }

    /// # Errors
    /// How long the message must wait, because others of its domain have enough of the budget.
    pub fn enter(self: &Arc<Self>, domain: Domain, now: Instant) -> Result<CrowdShare, Duration> {
        let budget = self.budget.limit();
        let most = budget - budget / LEFT_TO_OTHERS;
        let mut domains = self.domains.lock();
        let new = || Crowd { in_flight: 0, window: now, ended: 0, rate: None, next: now };
        let crowd = domains.entry(Arc::clone(&domain)).or_insert_with(new);
        crowd.measure(now);
        if crowd.in_flight >= most && most < budget && crowd.is_slow() {
            return Err(crowd.defer(now));
        }
        crowd.in_flight += 1;
        Ok(CrowdShare { crowds: Arc::clone(self), domain })
    }
}

impl Crowd {
    fn measure(&mut self, now: Instant) {
        let passed = now.duration_since(self.window);
        if passed >= WINDOW {
            self.rate = Some(f64::from(self.ended) / passed.as_secs_f64());
            (self.window, self.ended) = (now, 0);
        }
    }

    fn is_slow(&self) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "a budget is far below 2^52")]
        let in_flight = self.in_flight as f64;
        self.rate.is_some_and(|rate| in_flight > rate * SLOW.as_secs_f64())
    }

    fn defer(&mut self, now: Instant) -> Duration {
        let rate = (2.0 * self.rate.unwrap_or_default()).max(MIN_RATE);
        self.next = (self.next.max(now) + Duration::from_secs_f64(1.0 / rate)).min(now + MAX_PAUSE);
        self.next - now
    }
}

impl Drop for CrowdShare {
    fn drop(&mut self) {
        let mut domains = self.crowds.domains.lock();
        let Some(crowd) = domains.get_mut(&self.domain) else { return };
        crowd.in_flight -= 1;
        crowd.ended += 1;
        if crowd.in_flight == 0 {
            domains.remove(&self.domain);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::budget::Pool, *};

    fn crowds(messages: u32) -> Arc<Crowds> {
        Crowds::new(&Budget::new(messages, 1 << 30, 1, &Pool::new(1 << 40)))
    }

    /// Enters messages until one is refused.
    fn fill(crowds: &Arc<Crowds>, domain: &str, now: Instant, most: usize) -> Vec<CrowdShare> {
        (0..most).map_while(|_| crowds.enter(domain.into(), now).ok()).collect()
    }

    #[test]
    fn a_slow_destination_leaves_an_eighth_of_the_budget_to_others() {
        let (crowds, begun) = (crowds(80), Instant::now());
        let mut shares = fill(&crowds, "slow", begun, 80);
        assert_eq!(shares.len(), 80, "its rate is not known yet");
        shares.truncate(75);
        let now = begun + WINDOW;
        // Five ended in a quarter of a second, 20 a second: deferred messages come back at twice that rate.
        let waits: Vec<_> =
            (0..3).map(|_| crowds.enter("slow".into(), now).err().expect("refused").as_millis()).collect();
        assert_eq!(waits, [25, 50, 75]);
        assert_eq!(fill(&crowds, "other", now, 80).len(), 80);
        shares.truncate(69);
        assert_eq!(fill(&crowds, "slow", now, 80).len(), 1, "seven eighths");
    }

    #[test]
    fn a_fast_destination_may_have_the_whole_budget() {
        let (crowds, begun) = (crowds(80), Instant::now());
        let shares = fill(&crowds, "fast", begun, 80);
        for _ in 0..1000 {
            drop(crowds.enter("fast".into(), begun));
        }
        assert!(crowds.enter("fast".into(), begun + WINDOW).is_ok());
        assert_eq!(shares.len(), 80);
    }

    #[test]
    fn the_wait_is_bounded_and_a_destination_without_messages_is_forgotten() {
        let (crowds, begun) = (crowds(8), Instant::now());
        let shares = fill(&crowds, "hangs", begun, 8);
        let now = begun + WINDOW;
        let waits: Vec<_> = (0..1000).filter_map(|_| crowds.enter("hangs".into(), now).err()).collect();
        assert_eq!((waits.len(), waits[0], waits[999]), (1000, Duration::from_millis(100), MAX_PAUSE));
        drop(shares);
        assert!(crowds.domains.lock().is_empty());
        assert_eq!(fill(&crowds, "hangs", now, 8).len(), 8);
    }

    #[test]
    fn a_small_budget_has_nothing_to_leave() {
        let (crowds, begun) = (crowds(7), Instant::now());
        let _shares = fill(&crowds, "slow", begun, 7);
        assert!(crowds.enter("slow".into(), begun + 2 * WINDOW).is_ok());
    }

    #[test]
    fn a_destination_is_slow_from_a_quarter_of_a_second_for_its_messages_in_flight_on() {
        let now = Instant::now();
        for (in_flight, is_slow) in [(10, false), (11, true)] {
            let crowd = Crowd { in_flight, window: now, ended: 0, rate: Some(40.0), next: now };
            assert_eq!(crowd.is_slow(), is_slow, "{in_flight}");
        }
    }
}
