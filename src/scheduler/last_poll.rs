//! The result of the last poll of a partition, in local time, and the time of the next poll.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::Claim;

/// One millisecond after its deadline a lease has expired, whether Redis compares with `<` or `<=`.
const LEASE_SLACK: Duration = Duration::from_millis(1);

/// Reasons for a wake-up without a signal; labels of `punctual_wakeups_total`.
const TIMER: &str = "timer";
const FALLBACK: &str = "fallback";

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts of one reply")]
pub struct LastPoll {
    /// When the last poll was answered.
    pub polled: Instant,
    /// Whether to poll at once; reset when a poll is answered.
    pub again: bool,
    /// The first wake-up since the last poll.
    pub woken: Option<Instant>,
    paused: bool,
    /// When the head is due; never earlier than by Redis' clock.
    due: Option<Instant>,
    /// The last poll parked messages.
    parks: bool,
    /// When the earliest lease has expired.
    pub lease: Option<Instant>,
    /// Suspects were deferred: the next claim may take some.
    pub suspects: bool,
}

impl LastPoll {
    /// Before the first poll, which is due at once.
    pub fn new(now: Instant) -> Self {
        Self {
            polled: now,
            again: true,
            woken: None,
            paused: false,
            due: None,
            parks: false,
            lease: None,
            suspects: false,
        }
    }

    /// Stores the reply of a poll. All instants count from `received`: Redis read its clock before that, so none is too
    /// early. Returns whether leases had expired by Redis' clock.
    pub fn update(&mut self, claim: &Claim, received: Instant) -> bool {
        let at = |micros: u64| received + Duration::from_micros(micros.saturating_sub(claim.clock.micros));
        self.polled = received;
        self.again = false;
        self.woken = None;
        self.paused = claim.paused;
        self.suspects = claim.suspects > 0;
        self.due = claim.next_due.map(|due| {
            let late = Duration::from_micros(claim.clock.micros.saturating_sub(due.get() * 1000));
            // Behind messages that were parked there are often others of their flow. They are not late.
            let late = if claim.parked > 0 { Duration::ZERO } else { late };
            received.checked_sub(late).filter(|_| !late.is_zero()).unwrap_or_else(|| at(due.get() * 1000))
        });
        self.parks = claim.parked > 0;
        self.lease = claim.next_lease.map(|deadline| at(deadline) + LEASE_SLACK);
        claim.next_lease.is_some_and(|deadline| deadline < claim.clock.micros)
    }

    /// The time of the next poll, at most `fallback`, and its label. `sharing_delay`: how long due messages are left to
    /// other instances. `recover_from`: an expired lease causes no poll before this time.
    pub fn next(&self, fallback: Instant, sharing_delay: Duration, recover_from: Instant) -> (Instant, &'static str) {
        if self.again {
            return (self.polled, TIMER);
        }
        // Messages that were overdue at the last poll are not taken by another instance: no delay. A backlog is parked by
        // the instance that serves the partition.
        let due = self.due.map(|at| if at <= self.polled && !self.parks { at } else { at + sharing_delay });
        let woken = self.woken.map(|at| at + sharing_delay);
        let lease = self.lease.map(|at| at.max(recover_from));
        let timer = [due.filter(|_| !self.paused), woken, lease].into_iter().flatten().min();
        timer.filter(|at| *at <= fallback).map_or((fallback, FALLBACK), |at| (at, TIMER))
    }

    /// Since when the head was overdue at the last poll; `None` if it was not.
    pub fn overdue_since(&self) -> Option<Instant> {
        self.due.filter(|due| !self.paused && *due <= self.polled)
    }

    /// Whether a message is due, as far as known.
    pub fn has_due(&self) -> bool {
        !self.paused && (self.woken.is_some() || self.due.is_some_and(|due| due <= Instant::now()))
    }
}

/// Whether a due time in milliseconds has passed by the clock of the reply.
pub fn overdue(claim: &Claim, due: u64) -> bool {
    due * 1000 <= claim.clock.micros
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{ServerClock, UnixMillis};

    /// The clock of the reply, in milliseconds.
    const CLOCK: u64 = 1_700_000_000_000;

    /// A reply with a head that is due this much after its clock, or before it.
    fn claim(now: Instant, due: Option<i64>) -> Claim {
        let next_due = due.and_then(|after| UnixMillis::new(CLOCK.saturating_add_signed(after)));
        Claim { next_due, ..Claim::empty(ServerClock { micros: CLOCK * 1000, taken: now }) }
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// The next poll after this reply, with a fallback after an hour and a delay of 20 ms.
    fn next(poll: &LastPoll, now: Instant) -> (Duration, &'static str) {
        let (at, label) = poll.next(now + Duration::from_hours(1), millis(20), now + millis(500));
        (at.saturating_duration_since(now), label)
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_poll_is_when_the_head_is_due_or_at_once_if_it_was() {
        tokio::time::advance(Duration::from_mins(1)).await;
        let now = Instant::now();
        let mut poll = LastPoll::new(now);
        assert_eq!((next(&poll, now), poll.has_due()), ((Duration::ZERO, TIMER), false));
        let cases =
            [(None, 3_600_000, FALLBACK), (Some(1000), 1020, TIMER), (Some(0), 0, TIMER), (Some(-900), 0, TIMER)];
        for (due, expected, label) in cases {
            assert!(!poll.update(&claim(now, due), now));
            assert_eq!(next(&poll, now), (millis(expected), label), "{due:?}");
            let is_due = due.is_some_and(|due| due <= 0);
            assert_eq!((poll.has_due(), poll.overdue_since().is_some()), (is_due, is_due), "{due:?}");
        }
        assert_eq!(poll.overdue_since(), Some(now - millis(900)));
        // Messages behind parked ones are not late, and are left to the others for a while.
        poll.update(&Claim { parked: 1, ..claim(now, Some(-900)) }, now);
        assert_eq!((next(&poll, now).0, poll.overdue_since()), (millis(20), Some(now)));
        // A wake-up and a paused route.
        poll.update(&Claim { paused: true, ..claim(now, Some(-900)) }, now);
        assert_eq!((next(&poll, now).1, poll.has_due(), poll.overdue_since()), (FALLBACK, false, None));
        poll.woken = Some(now + millis(7));
        assert_eq!((next(&poll, now).0, poll.has_due()), (millis(27), false));
        poll.update(&claim(now, Some(5000)), now);
        assert_eq!((poll.woken, poll.again), (None, false));
        poll.woken = Some(now);
        assert!(poll.has_due());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_ends_causes_a_poll_a_millisecond_later() {
        let now = Instant::now();
        let mut poll = LastPoll::new(now);
        let with = |lease: i64, suspects| {
            let deadline = (CLOCK * 1000).saturating_add_signed(lease);
            Claim { next_lease: Some(deadline), suspects, ..claim(now, Some(10_000)) }
        };
        assert!(!poll.update(&with(2_000_000, 0), now));
        assert_eq!((next(&poll, now).0, poll.suspects), (millis(2001), false));
        // Leases are recovered from this time on.
        assert!(!poll.update(&with(0, 3), now));
        assert_eq!((next(&poll, now).0, poll.suspects), (millis(500), true));
        assert!(poll.update(&with(-1, 0), now), "it has expired");
        assert!(overdue(&claim(now, None), CLOCK) && !overdue(&claim(now, None), CLOCK + 1));
    }
}
