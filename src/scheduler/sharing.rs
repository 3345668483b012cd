//! How several instances share a partition without a leader. If another instance took the due messages, an instance
//! waits longer next time; if no other instance took them while it waited, it does not wait next time. So one instance
//! serves a partition while it can keep up, and the others poll the partition once a second.

use std::time::Duration;

use crate::store::Claim;

/// The first wait, doubled each time that another instance was faster.
const FIRST: Duration = Duration::from_millis(10);

/// The maximum wait: the delay of a message when the instance that served its partition has died.
const LONGEST: Duration = Duration::from_millis(900);

/// If a message is overdue by this time, no other instance serves the partition, or that instance cannot keep up and
/// wakes the others.
pub const OVERDUE: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub struct SharingDelay {
    base: Duration,
    /// `base` minus up to a quarter, random for each poll, so that instances and messages do not synchronise.
    wait: Duration,
    /// The clock of the last poll, in microseconds.
    polled: u64,
}

impl SharingDelay {
    /// The wait before the next poll for due messages.
    pub fn wait(&self) -> Duration {
        self.wait
    }

    /// Adapts the wait to the reply of a poll. `share`: random, in `0..1`.
    pub fn polled(&mut self, claim: &Claim, share: f64) {
        let beaten = claim.taken_elsewhere.is_some_and(|at| at > self.polled);
        self.polled = claim.clock.micros;
        let now = claim.clock.micros / 1000;
        let overdue = |due: u64| Duration::from_millis(now.saturating_sub(due));
        let waited_for = match (claim.messages.first(), claim.next_due) {
            // The time for which it waited for its flow is not the fault of another instance.
            (Some(first), _) => Some(overdue(first.not_before.get()).saturating_sub(first.waited)),
            // Behind parked messages there are often others of their flow, which no instance can take.
            (None, Some(head)) if head.get() <= now && claim.parked == 0 => Some(overdue(head.get())),
            _ => None,
        };
        // One millisecond less than the wait, because due times are cut to milliseconds. At most `OVERDUE`: several
        // instances that wait poll at different times, and possibly none of them ever finds a message that is overdue
        // by its whole wait.
        if waited_for.is_some_and(|late| late + Duration::from_millis(1) >= self.wait.min(OVERDUE)) {
            self.base = Duration::ZERO;
        } else if waited_for.is_none() && beaten {
            self.base = (self.base * 2).clamp(FIRST, LONGEST);
        }
        self.wait = self.base.mul_f64(1.0 - share / 4.0);
    }

    /// Ends the wait, because another instance cannot keep up.
    pub fn reset(&mut self) {
        (self.base, self.wait) = Default::default();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::{
        store::Claimed,
        time::{ServerClock, UnixMillis},
    };

    fn millis(value: u64) -> UnixMillis {
        UnixMillis::new(value).unwrap()
    }

    /// A reply at 10 s on the clock of the store. `taken` and `head`: messages that were due this number of ms before.
    fn claim(taken: Option<u64>, head: Option<u64>, elsewhere: Option<u64>) -> Claim {
        let clock = ServerClock { micros: 10_000_000, taken: Instant::now() };
        Claim {
            messages: taken.map(|late| Claimed::new("m", millis(10_000 - late))).into_iter().collect(),
            next_due: head.map(|late| millis(10_000 - late)),
            taken_elsewhere: elsewhere,
            ..Claim::empty(clock)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_that_comes_second_waits_longer_up_to_a_second() {
        let mut sharing_delay = SharingDelay::default();
        let mut waits = Vec::new();
        for _ in 0..9 {
            sharing_delay.polled = 0;
            sharing_delay.polled(&claim(None, None, Some(1)), 0.0);
            waits.push(sharing_delay.wait().as_millis());
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 900, 900]);
        let mut alone = SharingDelay::default();
        for elsewhere in [None, Some(10_000_000)] {
            alone.polled(&claim(None, None, elsewhere), 0.0);
            alone.polled(&claim(None, None, elsewhere), 0.0);
        }
        assert!(alone.wait() <= FIRST, "no other took anything since");
    }

    #[tokio::test(start_paused = true)]
    async fn messages_that_waited_for_their_flow_end_no_wait() {
        let waiting = || SharingDelay { base: 2 * FIRST, wait: 2 * FIRST, polled: 0 };
        let mut claim_of_flow = claim(Some(5000), None, Some(1));
        claim_of_flow.messages[0].waited = Duration::from_millis(4990);
        let mut sharing_delay = waiting();
        sharing_delay.polled(&claim_of_flow, 0.0);
        assert_eq!(sharing_delay.wait(), 2 * FIRST, "it could leave for 10 ms");
        let mut sharing_delay = waiting();
        sharing_delay.polled(&Claim { parked: 100, ..claim(None, Some(5000), Some(1)) }, 0.0);
        assert_eq!(sharing_delay.wait(), 4 * FIRST, "another instance took what could leave");
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_that_waited_in_vain_or_is_woken_waits_no_more() {
        for (taken, head, ends) in
            [(Some(20), None, true), (Some(19), None, true), (Some(5), None, false), (None, Some(20), true)]
        {
            let mut sharing_delay = SharingDelay { base: 2 * FIRST, wait: 2 * FIRST, polled: 0 };
            sharing_delay.polled(&claim(taken, head, Some(1)), 0.0);
            assert_eq!(sharing_delay.wait().is_zero(), ends, "{taken:?} {head:?}");
        }
        let mut sharing_delay = SharingDelay { base: LONGEST, wait: LONGEST, polled: 0 };
        sharing_delay.polled(&claim(Some(49), None, Some(1)), 0.0);
        assert!(sharing_delay.wait().is_zero(), "nothing serves what is so late");
        let mut sharing_delay = SharingDelay { base: LONGEST, wait: LONGEST, polled: 0 };
        sharing_delay.reset();
        assert!(sharing_delay.wait().is_zero());
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_is_up_to_a_quarter_shorter() {
        for (share, wait) in [(0.0, 10_000), (0.4, 9000), (0.8, 8000)] {
            let mut sharing_delay = SharingDelay::default();
            sharing_delay.polled(&claim(None, None, Some(1)), share);
            assert_eq!(sharing_delay.wait().as_micros(), wait, "{share}");
        }
    }
}
